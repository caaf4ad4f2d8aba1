"""Making room: whole units go, the least valuable first, then plain keys that would end anyway.

Nothing goes unless that makes room in the end. A plain key without a deadline never goes: nobody can
compute it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from . import accounts
from .catalog import Writer
from .errors import OutOfBudget, OverQuota
from .gone import EVICTED, note
from .keyspace import expiry
from .marks import would_be_lost
from .units import drop_unit

LOOKED_AT = 4096
"""Units of the queue among which those are looked for that another tier holds."""


def make_room(
    writer: Writer,
    needed: int,
    limit: int | None,
    keep: Container[bytes],
    now: float,
    *,
    tiered: bool = False,
) -> None:
    """Evict until `needed` more bytes fit under `limit`.

    Args:
        writer: The transaction.
        needed: Bytes to be taken.
        limit: The budget, or None.
        keep: Units, and places of plain keys, that stay.
        now: The time.
        tiered: Whether prefixes that no other tier holds are to go last.

    Raises:
        OutOfBudget: They cannot fit. The caller lets it abort the transaction, so nothing was evicted.
    """
    if limit is None or writer.totals.bytes + needed <= limit:
        return
    if needed > limit:
        raise OutOfBudget(needed, limit)

    def fits() -> bool:
        return writer.totals.bytes + needed <= limit

    def goes(unit: bytes) -> bool:
        return unit not in keep

    if tiered and _drop_units(writer, fits, goes, now, spare_lost=True):
        return
    if fits() or _drop_units(writer, fits, goes, now):
        return
    expiry.evict(writer, limit - needed, keep)
    if writer.totals.bytes + needed > limit:
        raise OutOfBudget(needed, limit)


def make_tenant_room(
    writer: Writer, tenant: bytes, needed: int, quota: int, keep: Container[bytes], now: float
) -> None:
    """Evict a tenant's own units until `needed` more bytes fit under its quota; plain keys stay.

    Args:
        writer: The transaction.
        tenant: Whose.
        needed: Bytes to be taken.
        quota: What it may have stored.
        keep: Units that stay.
        now: The time.

    Raises:
        OverQuota: They cannot fit. The caller lets it abort the transaction, so nothing was evicted.
    """

    def fits() -> bool:
        return accounts.account_of(writer, tenant).bytes + needed <= quota

    def goes(unit: bytes) -> bool:
        return unit not in keep and accounts.tenant_of(unit[1:]) == tenant

    if needed > 0 and not fits() and (needed > quota or not _drop_units(writer, fits, goes, now)):
        raise OverQuota(tenant, needed, accounts.account_of(writer, tenant).bytes, quota)


def _drop_units(
    writer: Writer,
    enough: Callable[[], bool],
    goes: Callable[[bytes], bool],
    now: float,
    *,
    spare_lost: bool = False,
) -> bool:
    """Drop units that may go, the least valuable first, until it is enough; whether it came to that."""
    # The queue is read in batches: a cursor must not be moved by the deletions under it.
    start, looked_at = b"", 0
    while (batch := _batch(writer, start)) and not (spare_lost and looked_at > LOOKED_AT):
        looked_at += len(batch)
        for key, unit in batch:
            start = key + b"\0"
            if not goes(unit):
                continue
            record = writer.namespace(unit)
            if record is None:
                writer.delete("queue", key)
                continue
            if spare_lost and would_be_lost(writer, record):
                continue
            writer.totals.inflation = max(writer.totals.inflation, record.priority)
            writer.totals.evictions += 1
            drop_unit(writer, record)
            note(writer, unit, EVICTED, now)
            if enough():
                return True
    return False


def _batch(writer: Writer, start: bytes, size: int = 64) -> list[tuple[bytes, bytes]]:
    found = []
    for item in writer.scan("queue", start=start):
        found.append(item)
        if len(found) == size:
            break
    return found

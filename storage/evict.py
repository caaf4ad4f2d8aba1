"""Making room: whole units go, the least valuable first, and only if that makes room in the end."""

from __future__ import annotations

from collections.abc import Container

from .catalog import Writer
from .errors import OutOfBudget
from .units import drop_unit


def make_room(writer: Writer, needed: int, limit: int | None, keep: Container[bytes]) -> None:
    """Evict until `needed` more bytes fit under `limit`.

    Raises:
        OutOfBudget: They cannot fit. The caller lets it abort the transaction, so nothing was evicted.
    """
    if limit is None or writer.totals.bytes + needed <= limit:
        return
    if needed > limit:
        raise OutOfBudget(needed, limit)
    # The queue is read in batches: a cursor must not be moved by the deletions under it.
    start = b""
    while writer.totals.bytes + needed > limit:
        batch = _batch(writer, start)
        if not batch:
            raise OutOfBudget(needed, limit)
        for key, unit in batch:
            start = key + b"\0"
            if unit in keep:
                continue
            record = writer.namespace(unit)
            if record is None:
                writer.delete("queue", key)
                continue
            writer.totals.inflation = max(writer.totals.inflation, record.priority)
            writer.totals.evictions += 1
            drop_unit(writer, record)
            if writer.totals.bytes + needed <= limit:
                return


def _batch(writer: Writer, start: bytes, size: int = 64) -> list[tuple[bytes, bytes]]:
    found = []
    for item in writer.scan("queue", start=start):
        found.append(item)
        if len(found) == size:
            break
    return found

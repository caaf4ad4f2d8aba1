"""Quarantine: a unit whose bytes failed their check is a miss with a reason, never bytes."""

from __future__ import annotations

from .catalog import Reader, Writer
from .engine import Engine
from .errors import PageCorrupt, PageGone, Quarantined
from .names import key_of
from .records import NamespaceRecord, SessionRecord, StateRecord


def quarantine(engine: Engine, error: PageGone | PageCorrupt, unit: bytes) -> None:
    """Mark every unit that names the page of an error, `unit` among them.

    Returns only when the page is not named any more: the catalog was read before that, and has to be read
    again.

    Raises:
        Quarantined: The unit is marked now.
    """
    reason = "its page file is missing" if isinstance(error, PageGone) else str(error)

    def mark(writer: Writer) -> bool:
        if writer.page(error.page) is None:
            return False
        for name in _units_naming(writer, error.page):
            if writer.get("quarantine", key_of(name)) is None:
                writer.put("quarantine", key_of(name), reason.encode())
                writer.totals.quarantined += 1
        return True

    if engine.catalog.write(mark):
        raise Quarantined(unit[1:], reason) from error


def _units_naming(reader: Reader, page: int) -> set[bytes]:
    """Reads every record: a damaged page is rare, and a back reference would cost every write."""
    sessions = (SessionRecord.decode(raw) for _, raw in reader.scan("sessions"))
    units = {session.unit for session in sessions if page in session.pages}
    uids = {key[:8] for key, raw in reader.scan("states") if StateRecord.decode(raw).page == page}
    return units | units_of(reader, uids)


def units_of(reader: Reader, uids: set[bytes]) -> set[bytes]:
    """The units with these serial numbers, found by reading every unit."""
    if not uids:
        return set()
    records = (NamespaceRecord.decode(raw) for _, raw in reader.scan("namespaces"))
    return {record.unit for record in records if record.uid.to_bytes(8, "big") in uids}

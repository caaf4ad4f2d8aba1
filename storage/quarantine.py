"""Quarantine: a unit whose bytes failed their check is a miss with a reason, never bytes."""

from __future__ import annotations

from .catalog import Reader, Writer
from .engine import Engine
from .errors import Quarantined
from .names import key_of
from .records import SessionRecord


def quarantine(engine: Engine, unit: bytes, page: int, reason: str) -> Quarantined:
    """Mark every unit that names the page, and `unit` at any rate; the error to raise."""
    text = reason.encode()

    def mark(writer: Writer) -> None:
        for name in {unit, *_units_naming(writer, page)}:
            named = writer.get("namespaces", key_of(name)) is not None
            if named and writer.get("quarantine", key_of(name)) is None:
                writer.put("quarantine", key_of(name), text)
                writer.totals.quarantined += 1

    engine.catalog.write(mark)
    return Quarantined(unit[1:], reason)


def _units_naming(reader: Reader, page: int) -> set[bytes]:
    """Reads every session: a damaged page is rare, and a back reference would cost every write."""
    found = set()
    for _, raw in reader.scan("sessions"):
        record = SessionRecord.decode(raw)
        if page in record.pages:
            found.add(record.unit)
    return found

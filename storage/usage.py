"""Uses of units, gathered in memory and written to the catalog together."""

from __future__ import annotations

from .catalog import Writer
from .queue import enqueue


class Usage:
    """Stamps and hits since the last `flush`."""

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[float, int]] = {}

    def note(self, unit: bytes, now: float, hits: int = 0) -> None:
        """A unit was used."""
        found = self._seen.get(unit)
        self._seen[unit] = (now, hits + (found[1] if found else 0))

    def take(self) -> dict[bytes, tuple[float, int]]:
        """What was gathered; gathering starts anew."""
        seen, self._seen = self._seen, {}
        return seen


def store_usage(writer: Writer, seen: dict[bytes, tuple[float, int]]) -> None:
    """Write stamps and hits, and move the units in the eviction queue."""
    for unit, (now, hits) in seen.items():
        record = writer.namespace(unit)
        if record is not None:
            record.used = max(record.used, now)
            record.hits += hits
            enqueue(writer, record)
            writer.put_namespace(record)

"""The eviction queue: which unit goes first. GreedyDual-Size-Frequency (Cherkasova, HP Labs, 1998).

    priority = inflation + (hits + 1) * cost / bytes

`cost` is the time that computing the rows anew would take, `inflation` the priority of the last unit
evicted: it only grows, so what is not used again sinks, and a scan of units used once cannot push out those
that are used.
"""

from __future__ import annotations

import struct

from .catalog import Writer
from .names import key_of
from .records import NamespaceRecord

PREFILL_US_PER_TOKEN = 555
"""Assumed cost of a token whose prefill time nobody measured, as the original server assumes."""

_TOLERANCE = 0.05
"""A smaller change of priority is not worth moving the unit: appends change it all the time."""

_PRIORITY = struct.Struct(">d")


def priority_of(record: NamespaceRecord, inflation: float) -> float:
    """The place of a unit in the queue, from its record."""
    cost = record.prefill_us or max(record.tokens, 1) * PREFILL_US_PER_TOKEN
    return inflation + (record.hits + 1) * cost / max(record.bytes, 1)


def enqueue(writer: Writer, record: NamespaceRecord) -> None:
    """Put a unit at its place; a pinned one gets none. The caller stores the record."""
    if record.pins:
        remove(writer, record)
        record.priority = 0.0
        return
    priority = priority_of(record, writer.totals.inflation)
    if abs(priority - record.priority) > _TOLERANCE * record.priority:
        remove(writer, record)
        record.priority = priority
        writer.put("queue", _key(record), record.unit)


def remove(writer: Writer, record: NamespaceRecord) -> None:
    """Take a unit out of the queue."""
    writer.delete("queue", _key(record))


def _key(record: NamespaceRecord) -> bytes:
    # Non-negative doubles, big-endian, sort as their bytes do.
    return _PRIORITY.pack(record.priority) + key_of(record.unit)

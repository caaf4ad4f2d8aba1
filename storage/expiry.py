"""Namespaces that end by themselves: a table ordered by the time at which they do."""

from __future__ import annotations

import struct

from .catalog import EXPIRING, Reader, Writer
from .names import key_of
from .records import NamespaceRecord

_TIME = struct.Struct(">d")
BATCH = 256
"""Units dropped in one transaction."""


def set_expiry(writer: Writer, record: NamespaceRecord, at: float) -> None:
    """Let a unit end at a time, 0 for never. The caller stores the record."""
    if record.expires:
        writer.delete("expiry", _key(record))
    record.expires = at
    if at:
        writer.put("expiry", _key(record), record.unit)
        writer.put("meta", EXPIRING, b"")
    elif not writer.entries("expiry"):
        writer.delete("meta", EXPIRING)


def expired(reader: Reader, now: float) -> list[bytes]:
    """Units that have ended, the first to end first, at most `BATCH`."""
    found: list[bytes] = []
    for key, unit in reader.scan("expiry"):
        if _TIME.unpack_from(key)[0] > now or len(found) == BATCH:
            break
        found.append(unit)
    return found


def _key(record: NamespaceRecord) -> bytes:
    # Non-negative doubles, big-endian, sort as their bytes do.
    return _TIME.pack(record.expires) + key_of(record.unit)

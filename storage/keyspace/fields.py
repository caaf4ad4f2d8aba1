"""The fields of a hash, and the members of a sorted set: kept the same way.

An item is a field and its value; for a sorted set a member and its score as a double. Items are in the
order of their places, so a cursor over them is a number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ..records import SEAL_BYTES, seal, unseal
from .access import KeyReader, KeyWriter
from .entry import PLACE_BYTES, Entry, item_cost, place_of

_LENGTH = struct.Struct("<I")
ITEM_KEY_BYTES = 8 + PLACE_BYTES


def get(keys: KeyReader, entry: Entry, field: bytes) -> bytes | None:
    """The value of a field, or None."""
    raw = keys.reader.get("fields", entry.key + place_of(field))
    return None if raw is None else _split(raw)[1]


def put(keys: KeyWriter, entry: Entry, field: bytes, value: bytes) -> None:
    """Set the value of a field; counting and charging it is the caller's."""
    raw = seal(_LENGTH.pack(len(field)) + field + value)
    keys.writer.put("fields", entry.key + place_of(field), raw)


def delete(keys: KeyWriter, entry: Entry, field: bytes) -> bool:
    """Remove a field; whether it was there."""
    return keys.writer.delete("fields", entry.key + place_of(field))


def items(keys: KeyReader, entry: Entry) -> Iterator[tuple[bytes, bytes]]:
    """Every field and its value."""
    for _, raw in keys.reader.scan("fields", prefix=entry.key):
        yield _split(raw)


def walk(keys: KeyReader, entry: Entry, start: int) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """Fields and values from a cursor on, each with the cursor that stands before it."""
    prefix = entry.key
    for key, raw in keys.reader.scan("fields", start=prefix + start.to_bytes(8, "big"), prefix=prefix):
        yield int.from_bytes(key[8:16], "big"), _split(raw)


def cost(field: bytes, value: bytes) -> int:
    """Bytes that an item takes."""
    return item_cost(ITEM_KEY_BYTES, _LENGTH.size + len(field) + len(value) + SEAL_BYTES)


def _split(raw: bytes) -> tuple[bytes, bytes]:
    body = unseal(raw)
    end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    return body[_LENGTH.size : end], body[end:]

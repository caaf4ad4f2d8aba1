"""Hashes: fields and their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from . import fields
from .access import KeyReader, KeyWriter
from .entry import Encoding, Entry, Kind
from .errors import NotANumber, WouldOverflow
from .numbers import INT64_MAX, INT64_MIN, parse_integer
from .strings import add_decimals, decimal

PACKED_FIELDS = 512
PACKED_BYTES = 64
"""Up to so many fields of so many bytes Redis keeps a hash as a listpack."""


def get(keys: KeyReader, name: bytes, field: bytes) -> bytes | None:
    """The value of a field, or None. Raises `WrongType`."""
    entry = keys.get(name, Kind.HASH)
    return None if entry is None else fields.get(keys, entry, field)


def get_many(keys: KeyReader, name: bytes, wanted: Sequence[bytes]) -> list[bytes | None]:
    """The values of fields, None for those that are not there. Raises `WrongType`."""
    entry = keys.get(name, Kind.HASH)
    return [None if entry is None else fields.get(keys, entry, field) for field in wanted]


def length(keys: KeyReader, name: bytes) -> int:
    """Number of fields. Raises `WrongType`."""
    entry = keys.get(name, Kind.HASH)
    return 0 if entry is None else entry.count


def items(keys: KeyReader, name: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Fields and values, in no particular order. Raises `WrongType`."""
    entry = keys.get(name, Kind.HASH)
    return iter(()) if entry is None else fields.items(keys, entry)


def put(keys: KeyWriter, name: bytes, values: Mapping[bytes, bytes]) -> int:
    """Set fields; how many are new. Raises `WrongType`, `OutOfBudget`."""
    entry = keys.open(name, Kind.HASH, Encoding.LISTPACK)
    growth = new = 0
    for field, value in values.items():
        old = fields.get(keys, entry, field) if entry.cost else None
        growth += fields.cost(field, value) - (fields.cost(field, old) if old is not None else 0)
        new += old is None
    keys.charge(entry, growth)
    for field, value in values.items():
        fields.put(keys, entry, field, value)
    entry.count += new
    _convert(entry, values)
    keys.save(entry)
    return new


def put_new(keys: KeyWriter, name: bytes, field: bytes, value: bytes) -> bool:
    """Set a field unless it is there; whether it was set. Raises `WrongType`, `OutOfBudget`."""
    if get(keys, name, field) is not None:
        return False
    put(keys, name, {field: value})
    return True


def delete(keys: KeyWriter, name: bytes, gone: Sequence[bytes]) -> int:
    """Remove fields, and the hash with its last one; how many there were. Raises `WrongType`."""
    entry = keys.get(name, Kind.HASH)
    if entry is None:
        return 0
    before = entry.count
    for field in gone:
        value = fields.get(keys, entry, field)
        if value is not None:
            fields.delete(keys, entry, field)
            keys.charge(entry, -fields.cost(field, value))
            entry.count -= 1
    if not entry.count:
        keys.remove(entry)
    elif entry.count < before:
        keys.save(entry)
    return before - entry.count


def increment(keys: KeyWriter, name: bytes, field: bytes, step: int) -> int:
    """Add to an integer field, 0 when it is not there; the result.

    Raises:
        WrongType: The key holds something else.
        NotANumber: The field holds no 64-bit integer.
        WouldOverflow: The result is none.
        OutOfBudget: There is no room for it.
    """
    text = get(keys, name, field)
    value = 0 if text is None else parse_integer(text)
    if value is None:
        raise NotANumber("hash value is not an integer")
    value += step
    if not INT64_MIN <= value <= INT64_MAX:
        raise WouldOverflow("increment or decrement would overflow")
    put(keys, name, {field: b"%d" % value})
    return value


def increment_float(keys: KeyWriter, name: bytes, field: bytes, step: bytes) -> bytes:
    """Add to a decimal field, 0 when it is not there; the result as it is stored. Raises as `increment`."""
    number = decimal(step, infinite="value is NaN or Infinity")
    old = get(keys, name, field)
    text = add_decimals(decimal(b"0" if old is None else old, "hash value is not a float"), number)
    put(keys, name, {field: text})
    return text


def _convert(entry: Entry, values: Mapping[bytes, bytes]) -> None:
    """Redis never goes back to a listpack."""
    longest = max(max(len(field), len(value)) for field, value in values.items())
    if entry.count > PACKED_FIELDS or longest > PACKED_BYTES:
        entry.encoding = Encoding.HASHTABLE

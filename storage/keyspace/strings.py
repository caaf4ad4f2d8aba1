"""Strings."""

from __future__ import annotations

from enum import Enum
from fractions import Fraction

from xxhash import xxh3_64_intdigest

from . import large, large_write
from .access import KeyReader, KeyWriter
from .entry import SHORT_VALUE, Encoding, Entry, Kind, item_cost, short_cost
from .errors import DamagedValue, NotANumber, ValueLimit, WouldOverflow
from .large import LARGE_BYTES
from .large_write import LargeWrite
from .numbers import (
    EXTENDED_LIMIT,
    INT64_MAX,
    INT64_MIN,
    LONGEST_NUMBER,
    format_extended,
    parse_double,
    parse_extended,
    parse_integer,
    round_extended,
)

VALUE_BYTES = 512 << 20
"""Greatest length of a string, as in Redis."""
EMBEDDED_BYTES = 44
NOT_AN_INTEGER = "value is not an integer or out of range"
NOT_A_FLOAT = "value is not a valid float"
NOT_FINITE = "increment would produce NaN or Infinity"


class Condition(Enum):
    """When a string is set."""

    ALWAYS = "always"
    IF_ABSENT = "NX"
    IF_PRESENT = "XX"


STRING, RAW, EMBSTR, INT = Kind.STRING, Encoding.RAW, Encoding.EMBSTR, Encoding.INT
ALWAYS = Condition.ALWAYS
"""Found faster here than in their classes."""

Value = bytes | memoryview
"""A string; a large one is a view of its page, which stays valid as long as it is referenced."""


def get(keys: KeyReader, name: bytes) -> Value | None:
    """The value, or None. Raises `WrongType`."""
    entry = keys.view(name, STRING)
    if entry is None:
        return None
    return entry.value if entry.count <= SHORT_VALUE else load(keys, entry)


def load(keys: KeyReader, entry: Entry) -> Value:
    """The value of a string that is there. Raises `DamagedValue`."""
    if entry.count <= SHORT_VALUE:
        return entry.value
    if entry.count >= LARGE_BYTES:
        return keys.view_page(large.find(keys.reader, entry).page, entry.count)
    value = keys.reader.get("values", entry.key)
    if value is None or xxh3_64_intdigest(value) != entry.digest:
        raise DamagedValue("it fails its digest")
    return value


def length(keys: KeyReader, name: bytes) -> int:
    """Bytes of the value, 0 when there is none. Raises `WrongType`."""
    entry = keys.view(name, STRING)
    return 0 if entry is None else entry.count


def get_range(keys: KeyReader, name: bytes, start: int, end: int) -> Value:
    """Bytes start..end of the value, both included, negative from its end. Raises `WrongType`."""
    value = get(keys, name) or b""
    if start < 0 and end < 0 and start > end:
        return b""
    start = max(start + len(value), 0) if start < 0 else start
    end = max(end + len(value), 0) if end < 0 else end
    return value[start : end + 1]


def put(
    keys: KeyWriter,
    name: bytes,
    value: Value | LargeWrite,
    *,
    deadline: int = 0,
    keep_deadline: bool = False,
    condition: Condition = ALWAYS,
) -> bool:
    """Set a string, in the place of whatever the key held.

    Args:
        keys: The transaction.
        name: The key.
        value: Its bytes; or a large string that was begun for this key and filled.
        deadline: When it ends, milliseconds since the epoch; 0 for never.
        keep_deadline: Keep the deadline that the key has instead.
        condition: When to do it at all.

    Returns:
        Whether it was set.

    Raises:
        ValueLimit: The value is too long.
        OutOfBudget: There is no room for it.
    """
    known = keys.known.get(name)
    entry = known or keys.find(name)
    if (
        entry is not None
        and type(value) is bytes
        and condition is ALWAYS
        and not (deadline or entry.deadline)
        and entry.kind is STRING
        and entry.count <= SHORT_VALUE >= len(value)
    ):
        _replace_short(keys, entry, value)
        return True
    if known is not None:
        entry = keys.find(name)
    if condition is not ALWAYS and (entry is None) is (condition is Condition.IF_PRESENT):
        return False
    if keep_deadline:
        deadline = entry.deadline if entry is not None else 0
    if entry is not None and entry.kind is not STRING:
        keys.remove(entry)
        entry = None
    if entry is None:
        entry = Entry(name, STRING, keys.writer.new_serial(), RAW)
    if entry.deadline != deadline:
        keys.set_deadline(entry, deadline)
    _store(keys, entry, value, encoding_of(value))
    return True


def append(keys: KeyWriter, name: bytes, tail: bytes) -> int:
    """Add bytes at the end; the length of the result. Raises `WrongType`, `ValueLimit`, `OutOfBudget`."""
    entry = keys.get(name, STRING)
    if entry is None:
        put(keys, name, tail)
        return len(tail)
    _store(keys, entry, b"".join((load(keys, entry), tail)), RAW)
    return entry.count


def set_range(keys: KeyWriter, name: bytes, offset: int, part: bytes) -> int:
    """Write bytes from `offset` on, zeros before them when the value is shorter; the length of the result.

    Raises:
        WrongType, ValueLimit, OutOfBudget: As the names say.
    """
    entry = keys.get(name, STRING)
    if not part:
        return entry.count if entry is not None else 0
    check_length(offset + len(part))
    entry = entry or Entry(name, STRING, keys.writer.new_serial(), RAW)
    old = bytes(load(keys, entry)) if entry.cost else b""
    changed = old[:offset].ljust(offset, b"\0") + part + old[offset + len(part) :]
    _store(keys, entry, changed, RAW)
    return entry.count


def increment(keys: KeyWriter, name: bytes, step: int) -> int:
    """Add to an integer, 0 when there is none; the result.

    Raises:
        WrongType: The key holds something else.
        NotANumber: The value is no 64-bit integer.
        WouldOverflow: The result is none.
        OutOfBudget: There is no room for it.
    """
    entry = keys.get(name, STRING)
    value = parse_integer(_number(keys, entry))
    if value is None:
        raise NotANumber(NOT_AN_INTEGER)
    value += step
    if not INT64_MIN <= value <= INT64_MAX:
        raise WouldOverflow("increment or decrement would overflow")
    put(keys, name, b"%d" % value, keep_deadline=True)
    return value


def increment_float(keys: KeyWriter, name: bytes, step: bytes) -> bytes:
    """Add to a decimal number, 0 when there is none; the result as it is stored.

    Raises:
        WrongType: The key holds something else.
        NotANumber: The value or the step is no number.
        WouldOverflow: The result is not finite.
        OutOfBudget: There is no room for it.
    """
    entry = keys.get(name, STRING)
    old = decimal(_number(keys, entry))
    text = add_decimals(old, decimal(step))
    entry = entry or Entry(name, STRING, keys.writer.new_serial(), RAW)
    _store(keys, entry, text, EMBSTR if len(text) <= EMBEDDED_BYTES else RAW)
    return text


def decimal(text: bytes, refusal: str = NOT_A_FLOAT, infinite: str = NOT_FINITE) -> Fraction:
    """A decimal number. Raises `NotANumber(refusal)`, or `WouldOverflow(infinite)` for an infinity."""
    number = parse_extended(text)
    if number is None:
        raise NotANumber(refusal) if parse_double(text) is None else WouldOverflow(infinite)
    return number


def add_decimals(value: Fraction, step: Fraction) -> bytes:
    """The sum of two decimal numbers, computed as x87 does. Raises `WouldOverflow`."""
    total = round_extended(value + step)
    if abs(total) >= EXTENDED_LIMIT:
        raise WouldOverflow(NOT_FINITE)
    return format_extended(total)


def encoding_of(value: Value | LargeWrite) -> Encoding:
    """How Redis would keep a string that is set as a whole."""
    if isinstance(value, bytes):
        text = value
    elif value.nbytes > EMBEDDED_BYTES or isinstance(value, LargeWrite):
        return RAW
    else:
        text = bytes(value)
    if len(text) > EMBEDDED_BYTES:
        return RAW
    return INT if text[-1:].isdigit() and parse_integer(text) is not None else EMBSTR


def size_of(value: Value | LargeWrite) -> int:
    """Bytes of a string."""
    return len(value) if isinstance(value, bytes) else value.nbytes


def check_length(size: int) -> None:
    """Raises `ValueLimit` for a string that would be too long."""
    if size > VALUE_BYTES:
        raise ValueLimit(size, VALUE_BYTES)


def _number(keys: KeyReader, entry: Entry | None) -> bytes:
    """The text of a number; no longer text is one, so it is not even loaded."""
    if entry is None:
        return b"0"
    return bytes(load(keys, entry)) if entry.count <= LONGEST_NUMBER else b""


def _value_cost(name: bytes, size: int) -> int:
    if size <= SHORT_VALUE:
        return short_cost(name, size)
    return item_cost(8, size if size < LARGE_BYTES else large.RECORD_BYTES)


def _replace_short(keys: KeyWriter, entry: Entry, value: bytes) -> None:
    """A short string becomes another one: nothing can fail here once the entry, known or not, is changed."""
    size = len(value)
    if size != entry.count:
        name = entry.name
        keys.charge(entry, short_cost(name, size) - short_cost(name, entry.count))
        entry.count = size
    entry.value = value
    entry.encoding = encoding_of(value)
    keys.save(entry)


def _store(keys: KeyWriter, entry: Entry, value: Value | LargeWrite, encoding: Encoding) -> None:
    size, before = size_of(value), entry.count
    if not entry.cost or size != before:
        check_length(size)
        name = entry.name
        keys.charge(entry, _value_cost(name, size) - (_value_cost(name, before) if entry.cost else 0))
    if before > SHORT_VALUE:
        _let_go(keys, entry, size)
    entry.value, entry.digest = b"", 0
    if size >= LARGE_BYTES:
        large_write.store(keys, entry, value)
    else:
        assert not isinstance(value, LargeWrite)
        if size <= SHORT_VALUE:
            entry.value = bytes(value)
        else:
            keys.writer.put("values", entry.key, value)
            entry.digest = xxh3_64_intdigest(value)
    entry.count = size
    entry.encoding = encoding
    keys.save(entry)


def _let_go(keys: KeyWriter, entry: Entry, size: int) -> None:
    """A string that is not short is about to be replaced by one of `size` bytes."""
    if entry.count >= LARGE_BYTES:
        large.release(keys.writer, entry.key)
    elif not SHORT_VALUE < size < LARGE_BYTES:
        keys.writer.delete("values", entry.key)

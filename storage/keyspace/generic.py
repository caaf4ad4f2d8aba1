"""What is done to keys of any type."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

from .. import accounts
from ..names import PREFIX, SINGLE
from ..records import NamespaceRecord
from ..units import drop_unit
from . import fields, large, strings
from .access import KeyReader, KeyWriter, account
from .cursors import empty
from .entry import SHORT_VALUE, Entry, Kind, contents_cost
from .errors import NoSuchKey, SameKey
from .zranges import walk, whole
from .zsets import SCORE, sortable

TABLES = ("keys", "values", "fields", "scores", "deadlines", "leftovers")


def delete(keys: KeyWriter, names: Iterable[bytes]) -> int:
    """Remove keys; how many there were."""
    gone = 0
    for name in names:
        entry = keys.find(name)
        if entry is not None:
            keys.remove(entry)
            gone += 1
    return gone


def rename(keys: KeyWriter, name: bytes, to: bytes, *, replace: bool = True) -> bool:
    """Give a key another name, in the place of the key that has it; whether it was done.

    Args:
        keys: The transaction.
        name: The key.
        to: Its new name.
        replace: False leaves everything as it is when there is a key of that name.

    Raises:
        NoSuchKey: There is no such key.
    """
    entry = keys.find(name)
    if entry is None:
        raise NoSuchKey
    if name == to:
        return replace
    other = keys.find(to)
    if other is not None:
        if not replace:
            return False
        keys.remove(other)
    keys.detach(entry)
    keys.attach(entry, to)
    return True


def copy(keys: KeyWriter, name: bytes, to: bytes, *, replace: bool = False) -> bool:
    """Make another key of the same value and deadline; whether it was done.

    Args:
        keys: The transaction.
        name: The key.
        to: The other key.
        replace: Whether it may take the place of a key that is there.

    Raises:
        SameKey: Both are the same.
        OutOfBudget: There is no room for it.
    """
    if name == to:
        raise SameKey
    entry = keys.find(name)
    if entry is None:
        return False
    other = keys.find(to)
    if other is not None:
        if not replace:
            return False
        keys.remove(other)
    twin = Entry(to, entry.kind, keys.writer.new_serial(), entry.encoding, count=entry.count)
    keys.charge(twin, contents_cost(entry, to))
    if entry.deadline:
        keys.set_deadline(twin, entry.deadline)
    _copy_contents(keys, entry, twin)
    keys.save(twin)
    return True


def _copy_contents(keys: KeyWriter, entry: Entry, twin: Entry) -> None:
    if large.is_large(entry):
        large.share(keys.writer, entry, twin)
        return
    if entry.kind is Kind.STRING:
        twin.value, twin.digest = entry.value, entry.digest
        if entry.count > SHORT_VALUE:
            keys.writer.put("values", twin.key, strings.load(keys, entry))
        return
    for field, value in list(fields.items(keys, entry)):
        fields.put(keys, twin, field, value)
    if entry.kind is Kind.ZSET:
        for member, score in list(walk(keys, whole(entry))):
            keys.writer.put("scores", twin.key + sortable(score) + member, SCORE.pack(score))


def entries(keys: KeyReader) -> Iterable[Entry]:
    """Every key, in no particular order."""
    for _, raw in keys.records():
        entry = Entry.decode(raw)
        if keys.lists(entry):
            yield entry


def count_tagged(keys: KeyReader, tag: bytes) -> int:
    """How many keys and units have names that begin so; reads all of them."""
    entries = (Entry.decode(raw) for _, raw in keys.records())
    units = (keys.reader.scan("namespaces", prefix=kind + tag) for kind in (PREFIX, SINGLE))
    return sum(entry.name.startswith(tag) for entry in entries) + sum(1 for found in units for _ in found)


def random_key(keys: KeyReader, source: random.Random) -> bytes | None:
    """The name of a random key, or None when there is none."""
    start = source.randbytes(8)
    for begin in (start, b""):
        for _, raw in keys.records(begin):
            entry = Entry.decode(raw)
            if keys.lists(entry):
                return entry.name
    return None


def scan(
    keys: KeyReader, cursor: int, count: int, wanted: Callable[[Entry], bool]
) -> tuple[int, list[bytes]]:
    """Look at about `count` keys from a cursor on.

    Keys that are there from the first call to the one that returns cursor 0 are met; others may be.

    Args:
        keys: The transaction.
        cursor: 0 to begin, else what the call before returned.
        count: How many keys to look at.
        wanted: Which of them to return.

    Returns:
        The next cursor, 0 at the end, and names.
    """
    found: list[bytes] = []
    at = -1
    for looked, (key, raw) in enumerate(keys.records(cursor.to_bytes(8, "big"))):
        before, at = at, int.from_bytes(key[:8], "big")
        if looked >= count and at != before:
            return at, found
        entry = Entry.decode(raw)
        if keys.lists(entry) and wanted(entry):
            found.append(entry.name)
    return 0, found


def scan_fields(
    keys: KeyReader, entry: Entry, cursor: int, count: int
) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Look at about `count` fields of a hash, or members of a sorted set, from a cursor on. See `scan`."""
    found: list[tuple[bytes, bytes]] = []
    last = -1
    for at, item in fields.walk(keys, entry, cursor):
        if len(found) >= count and at != last:
            return at, found
        last = at
        found.append(item)
    return 0, found


def flush(keys: KeyWriter) -> None:
    """Remove everything: every key, and every namespace and session with it."""
    writer = keys.writer
    keys.forget()
    for key, _ in list(writer.scan("large")):
        large.release(writer, key)
    for table in TABLES:
        empty(writer, table)
    account(writer, -writer.totals.key_bytes, b"")
    accounts.forget_keys(writer)
    for _, raw in list(writer.scan("namespaces")):
        drop_unit(writer, NamespaceRecord.decode(raw))


def note_uses(keys: KeyWriter, uses: Mapping[bytes, int]) -> None:
    """Write down when the keys at some places were last read, in seconds."""
    for place, used in uses.items():
        raw = keys.reader.get("keys", place)
        if raw is not None:
            entry = Entry.decode(raw)
            entry.used = max(entry.used, used)
            keys.put(entry)

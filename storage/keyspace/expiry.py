"""Deadlines of keys: set, read, and what is swept when they have passed."""

from __future__ import annotations

from collections.abc import Container
from enum import Enum
from itertools import islice

from .. import refs
from ..catalog import Reader, Writer
from ..checkpoint import last_checkpoint
from ..options import Durability
from . import large
from .access import CONTENTS, KeyReader, KeyWriter, remove
from .cursors import delete_some
from .entry import Entry

SWEPT_KEYS = 1000
SWEPT_ITEMS = 5000
"""Ended keys, and items of large values that are gone, removed in one step: some 20 ms of work."""

EVICTED_TOGETHER = 64

NO_CHECKPOINT = (1 << 64) - 1

NEVER = -1
ABSENT = -2


class DeadlineRule(Enum):
    """When a deadline is set (the options of EXPIRE). A key without one counts as ending never."""

    ALWAYS = "always"
    IF_NONE = "NX"
    IF_SET = "XX"
    IF_LATER = "GT"
    IF_SOONER = "LT"

    def allows(self, old: int, new: int) -> bool:
        """Whether a key with deadline `old` (0: none) may get `new`."""
        match self:
            case DeadlineRule.IF_NONE:
                return not old
            case DeadlineRule.IF_SET:
                return bool(old)
            case DeadlineRule.IF_LATER:
                return 0 < old < new
            case DeadlineRule.IF_SOONER:
                return not old or new < old
        return True


def deadline(keys: KeyReader, name: bytes) -> int:
    """When a key ends, milliseconds since the epoch; -1 for never, -2 when it is not there."""
    entry = keys.find(name)
    return ABSENT if entry is None else entry.deadline or NEVER


def expire(keys: KeyWriter, name: bytes, at: int, rules: frozenset[DeadlineRule] = frozenset()) -> bool:
    """Let a key end at a time, milliseconds since the epoch; now when it has passed. Whether it does.

    Args:
        keys: The transaction.
        name: The key.
        at: When.
        rules: All of which must allow it.
    """
    entry = keys.find(name)
    if entry is None or not all(rule.allows(entry.deadline, at) for rule in rules):
        return False
    if at <= keys.now:
        keys.remove(entry)
    else:
        keys.set_deadline(entry, at)
        keys.save(entry)
    return True


def persist(keys: KeyWriter, name: bytes) -> bool:
    """Let a key end never; whether it would have ended."""
    entry = keys.find(name)
    if entry is None or not entry.deadline:
        return False
    keys.set_deadline(entry, 0)
    keys.save(entry)
    return True


def is_due(keys: KeyReader) -> bool:
    """Whether there is anything to sweep."""
    reader = keys.reader
    first = next(reader.scan("deadlines"), None)
    if first is not None and int.from_bytes(first[0][:8], "big") <= keys.now:
        return True
    if next(reader.scan("leftovers"), None) is not None:
        return True
    return next(large.dead(reader, _checkpoint(keys)), None) is not None


def sweep(keys: KeyWriter) -> None:
    """Remove keys that have ended and contents that nothing names, a bounded number of both."""
    due: list[bytes] = []
    for key, _ in keys.reader.scan("deadlines"):
        if int.from_bytes(key[:8], "big") > keys.now or len(due) == SWEPT_KEYS:
            break
        due.append(key[8:])
    for place in due:
        raw = keys.reader.get("keys", place)
        if raw is not None:
            keys.remove(Entry.decode(raw))
            keys.writer.totals.keys_expired += 1
    _sweep_leftovers(keys.writer)
    for key, page in list(islice(large.dead(keys.reader, _checkpoint(keys)), SWEPT_KEYS)):
        refs.release(keys.writer, page)
        keys.writer.delete("dead", key)


def _checkpoint(keys: KeyReader) -> int:
    """The transaction before which nothing will be returned to."""
    everysec = keys.engine.options.durability is Durability.EVERYSEC
    return last_checkpoint(keys.reader) if everysec else NO_CHECKPOINT


def _sweep_leftovers(writer: Writer) -> None:
    room = SWEPT_ITEMS
    while room > 0 and (first := next(writer.scan("leftovers"), None)) is not None:
        for table in CONTENTS:
            room -= delete_some(writer, table, first[0], room)
        if room > 0:
            writer.delete("leftovers", first[0])


def evict(writer: Writer, target: int, keep: Container[bytes]) -> None:
    """Remove keys that have a deadline, the soonest first, until the budget is down to `target`.

    Args:
        writer: The transaction.
        target: Bytes that everything in the store may take.
        keep: Places of keys that stay.
    """
    while writer.totals.bytes > target and (batch := _soonest(writer, keep)):
        for entry in batch:
            if writer.totals.bytes <= target:
                return
            remove(writer, entry)
            writer.totals.keys_evicted += 1


def _soonest(reader: Reader, keep: Container[bytes]) -> list[Entry]:
    places = (key[8:] for key, _ in reader.scan("deadlines"))
    found = (reader.get("keys", place) for place in places if place not in keep)
    return [Entry.decode(raw) for raw in islice(found, EVICTED_TOGETHER) if raw is not None]

"""Ranges of sorted sets: by index, by score, by the members' bytes.

In the catalog a set is one run of keys in the order of its members, so every range by score or bytes is a
`Span`: a key where it begins and the first key beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from .access import KeyReader, KeyWriter
from .cursors import scan_back, scan_keys
from .entry import Entry, Kind
from .zsets import SCORE, Scored, read_score, remove_scored, score_of, sortable

HEAD_BYTES = 8 + SCORE.size


@dataclass(frozen=True, slots=True)
class Span:
    """Keys from `low` on, below `high`."""

    low: bytes
    high: bytes


@dataclass(frozen=True, slots=True)
class ScoreRange:
    """Scores from `low` to `high`, each included unless it is open."""

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False

    def span(self, keys: KeyReader, entry: Entry) -> Span:
        """The keys of members with these scores."""
        return Span(
            entry.key + _score_key(self.low, beyond=self.low_open),
            entry.key + _score_key(self.high, beyond=not self.high_open),
        )


@dataclass(frozen=True, slots=True)
class LexRange:
    """Members from `low` to `high`, each included unless it is open; None for no bound.

    As in Redis it makes sense when all members have the same score.
    """

    low: bytes | None
    high: bytes | None
    low_open: bool = False
    high_open: bool = False
    empty: bool = False
    """`+` as the low or `-` as the high end: nothing is in it."""

    def span(self, keys: KeyReader, entry: Entry) -> Span:
        """The keys of these members, by the score of the first."""
        everything = whole(entry)
        if self.empty:
            return Span(everything.high, everything.high)
        first = next(walk(keys, everything))
        score = entry.key + sortable(first[1])
        low = everything.low if self.low is None else score + self.low + b"\0" * self.low_open
        high = everything.high if self.high is None else score + self.high + b"\0" * (not self.high_open)
        return Span(low, high)


Range = ScoreRange | LexRange


def whole(entry: Entry) -> Span:
    """Every member of a set."""
    return Span(entry.key, (entry.id + 1).to_bytes(8, "big"))


def walk(keys: KeyReader, span: Span, *, reverse: bool = False) -> Iterator[Scored]:
    """Members and scores of a span, in order or from its end."""
    for key, raw in _backward(keys, span) if reverse else _forward(keys, span):
        yield key[HEAD_BYTES:], read_score(raw)


def by_index(keys: KeyReader, name: bytes, start: int, stop: int, *, reverse: bool = False) -> list[Scored]:
    """Members at start..stop, both included, negative from the end. Raises `WrongType`."""
    entry = keys.get(name, Kind.ZSET)
    return [] if entry is None else _at(keys, entry, start, stop, reverse=reverse)


def by_range(
    keys: KeyReader,
    name: bytes,
    wanted: Range,
    *,
    reverse: bool = False,
    offset: int = 0,
    limit: int = -1,
) -> list[Scored]:
    """Members within a range.

    Args:
        keys: The transaction.
        name: The key.
        wanted: Which members.
        reverse: From the high end.
        offset: How many to leave out at the beginning; negative: all.
        limit: How many at most; negative: no bound.

    Raises:
        WrongType: The key holds something else.
    """
    entry = keys.get(name, Kind.ZSET)
    if entry is None or offset < 0:
        return []
    steps = walk(keys, wanted.span(keys, entry), reverse=reverse)
    return list(islice(steps, offset, None if limit < 0 else offset + limit))


def remove_by_index(
    keys: KeyWriter, name: bytes, start: int, stop: int, *, reverse: bool = False
) -> list[Scored]:
    """Remove the members that `by_index` finds; which they were. Raises `WrongType`."""
    entry = keys.get(name, Kind.ZSET)
    if entry is None:
        return []
    gone = _at(keys, entry, start, stop, reverse=reverse)
    remove_scored(keys, entry, gone)
    return gone


def remove_by_range(keys: KeyWriter, name: bytes, wanted: Range) -> int:
    """Remove the members within a range; how many there were. Raises `WrongType`."""
    entry = keys.get(name, Kind.ZSET)
    if entry is None:
        return 0
    gone = list(walk(keys, wanted.span(keys, entry)))
    remove_scored(keys, entry, gone)
    return len(gone)


def count(keys: KeyReader, name: bytes, wanted: Range) -> int:
    """How many members are within a range. Raises `WrongType`."""
    entry = keys.get(name, Kind.ZSET)
    return 0 if entry is None else _count(keys, wanted.span(keys, entry))


def rank(keys: KeyReader, name: bytes, member: bytes, *, reverse: bool = False) -> int | None:
    """How many members come before this one; None when it is not there. O(rank). Raises `WrongType`."""
    entry = keys.get(name, Kind.ZSET)
    score = None if entry is None else score_of(keys, entry, member)
    if entry is None or score is None:
        return None
    before = _count(keys, Span(entry.key, entry.key + sortable(score) + member))
    return entry.count - 1 - before if reverse else before


def _at(keys: KeyReader, entry: Entry, start: int, stop: int, *, reverse: bool) -> list[Scored]:
    count = entry.count
    start = max(start + count, 0) if start < 0 else start
    stop = min(stop + count if stop < 0 else stop, count - 1)
    if start > stop:
        return []
    # The walk begins at whichever end is nearer.
    turned = start > count - 1 - stop
    skipped = count - 1 - stop if turned else start
    steps = walk(keys, whole(entry), reverse=reverse ^ turned)
    found = list(islice(steps, skipped, skipped + stop - start + 1))
    return found[::-1] if turned else found


def _score_key(score: float, *, beyond: bool) -> bytes:
    key = sortable(score)
    return (int.from_bytes(key, "big") + 1).to_bytes(SCORE.size, "big") if beyond else key


def _count(keys: KeyReader, span: Span) -> int:
    return sum(1 for _ in scan_keys(keys.reader, "scores", span.low, span.high))


def _forward(keys: KeyReader, span: Span) -> Iterator[tuple[bytes, bytes]]:
    for item in keys.reader.scan("scores", start=span.low):
        if item[0] >= span.high:
            return
        yield item


def _backward(keys: KeyReader, span: Span) -> Iterator[tuple[bytes, bytes]]:
    for item in scan_back(keys.reader, "scores", span.high):
        if item[0] < span.low:
            return
        yield item

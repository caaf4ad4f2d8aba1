"""Sorted sets: members in the order of their scores, and of their bytes where scores are equal."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import fields
from .access import KeyReader, KeyWriter
from .entry import Encoding, Entry, Kind, item_cost
from .errors import MemberLimit, WouldOverflow

SCORE = struct.Struct(">d")
_BITS = struct.Struct(">Q")
_SIGN = 1 << 63
_ALL = (1 << 64) - 1

MEMBER_BYTES = 511 - 8 - SCORE.size
"""LMDB takes keys of 511 bytes, and a member is part of one together with its set's id and its score."""

PACKED_MEMBERS = 128
PACKED_BYTES = 64
"""Up to so many members of so many bytes Redis keeps a sorted set as a listpack."""

Scored = tuple[bytes, float]
"""A member and its score."""


@dataclass(frozen=True, slots=True)
class AddRules:
    """Which members `add` may touch, as the options of ZADD say."""

    only_new: bool = False
    only_old: bool = False
    only_greater: bool = False
    only_less: bool = False
    increment: bool = False
    """Scores are added to the old ones."""

    def score(self, old: float | None, given: float) -> float | None:
        """The score to set, or None to leave the member as it is. Raises `WouldOverflow` for NaN."""
        if old is None:
            return None if self.only_old else given
        if self.only_new:
            return None
        new = old + given if self.increment else given
        if math.isnan(new):
            raise WouldOverflow("resulting score is not a number (NaN)")
        if (self.only_greater and new <= old) or (self.only_less and new >= old):
            return None
        return new


@dataclass(frozen=True, slots=True)
class Added:
    """What `add` did: new members, members whose score changed, and the last score (None: not set)."""

    new: int
    changed: int
    last: float | None


def sortable(score: float) -> bytes:
    """A score as eight bytes that sort as scores do; both zeros are one."""
    bits: int = _BITS.unpack(SCORE.pack(score + 0.0))[0]
    return _BITS.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))


def cost(member: bytes) -> int:
    """Bytes that a member takes."""
    return fields.cost(member, b"") + SCORE.size + item_cost(8 + SCORE.size + len(member), SCORE.size)


def length(keys: KeyReader, name: bytes) -> int:
    """Number of members. Raises `WrongType`."""
    entry = keys.get(name, Kind.ZSET)
    return 0 if entry is None else entry.count


def scores(keys: KeyReader, name: bytes, members: Sequence[bytes]) -> list[float | None]:
    """Scores of members, None for those that are not there. Raises `WrongType`."""
    entry = keys.get(name, Kind.ZSET)
    return [None if entry is None else score_of(keys, entry, member) for member in members]


def score_of(keys: KeyReader, entry: Entry, member: bytes) -> float | None:
    """The score of a member of a set that is there."""
    raw = fields.get(keys, entry, member)
    return None if raw is None else read_score(raw)


def read_score(raw: bytes) -> float:
    """A score from its stored form."""
    score: float = SCORE.unpack(raw)[0]
    return score


def add(keys: KeyWriter, name: bytes, given: Sequence[Scored], rules: AddRules) -> Added:
    """Add members or change their scores one after the other, as far as the rules say.

    Raises:
        WrongType: The key holds something else.
        MemberLimit: A member is too long.
        WouldOverflow: A score would become NaN.
        OutOfBudget: There is no room for it.
    """
    entry = keys.open(name, Kind.ZSET, Encoding.LISTPACK)
    olds = {member: score_of(keys, entry, member) if entry.cost else None for member, _ in given}
    current = dict(olds)
    changed = 0
    last: float | None = None
    for member, score in given:
        if len(member) > MEMBER_BYTES:
            raise MemberLimit(len(member), MEMBER_BYTES)
        last = rules.score(current[member], score)
        if last is not None:
            changed += current[member] not in (None, last)
            current[member] = last
    new = _apply(keys, entry, olds, current)
    return Added(new, changed, last)


def _apply(
    keys: KeyWriter, entry: Entry, olds: Mapping[bytes, float | None], wanted: Mapping[bytes, float | None]
) -> int:
    """Bring members to their scores; how many are new."""
    moved = {member: score for member, score in wanted.items() if score is not None and score != olds[member]}
    new = [member for member in moved if olds[member] is None]
    if not moved:
        return 0
    keys.charge(entry, sum(map(cost, new)))
    for member, score in moved.items():
        _put(keys, entry, member, score, olds[member])
    entry.count += len(new)
    _convert(entry, new)
    keys.save(entry)
    return len(new)


def remove(keys: KeyWriter, name: bytes, members: Sequence[bytes]) -> int:
    """Remove members, and the set with its last one; how many there were. Raises `WrongType`."""
    entry = keys.get(name, Kind.ZSET)
    if entry is None:
        return 0
    found = {member: score_of(keys, entry, member) for member in members}
    gone = [(member, score) for member, score in found.items() if score is not None]
    remove_scored(keys, entry, gone)
    return len(gone)


def remove_scored(keys: KeyWriter, entry: Entry, gone: Sequence[Scored]) -> None:
    """Remove members that are there, and the set with its last one."""
    if not gone:
        return
    for member, score in gone:
        fields.delete(keys, entry, member)
        keys.writer.delete("scores", entry.key + sortable(score) + member)
    keys.charge(entry, -sum(cost(member) for member, _ in gone))
    entry.count -= len(gone)
    if entry.count:
        keys.save(entry)
    else:
        keys.remove(entry)


def _put(keys: KeyWriter, entry: Entry, member: bytes, score: float, old: float | None) -> None:
    raw = SCORE.pack(score + 0.0)  # one zero: as in sets that Redis keeps small
    if old is not None:
        keys.writer.delete("scores", entry.key + sortable(old) + member)
    keys.writer.put("scores", entry.key + sortable(score) + member, raw)
    fields.put(keys, entry, member, raw)


def _convert(entry: Entry, new: Sequence[bytes]) -> None:
    """Redis never goes back to a listpack."""
    if entry.count > PACKED_MEMBERS or any(len(member) > PACKED_BYTES for member in new):
        entry.encoding = Encoding.SKIPLIST

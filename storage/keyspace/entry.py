"""The record of a plain key: what it holds, until when, and what it costs.

A key's place in the catalog is the BLAKE2b-128 of its name: of fixed length, so that names may be as long
as they like, and evenly spread, so that a cursor over places is a number (SCAN) and a random place is a
random key.

    keys        place                                  -> Entry, and the bytes of a string of up to 1024
    values      id                                     -> the bytes of a longer string
    large       id                                     -> or where they are: see large.py
    fields      id, BLAKE2b-128 of the field or member -> field, and its value or score
    scores      id, score in sortable form, member     -> the score as it was given
    deadlines   milliseconds, place                    -> nothing
    leftovers   id                                     -> nothing: contents of a key that is gone, to be swept
    dead        transaction, id                        -> page of a large string that is gone: see large.py

Numbers in keys are u64, big-endian. An `id` is given once: contents move with it when a key is renamed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import Self

from ..records import SEAL_BYTES, seal, unseal

PLACE_BYTES = 16
NODE_BYTES = 16
"""What a B-tree takes for an item beside its key and value: node header, slot, alignment."""
PAGE_BYTES = 4096
INLINE_BYTES = 2000
"""Items longer than about half a page get pages of their own."""

SHORT_NAME = 64
PLACES_KEPT = 8192
"""A command asks for the place of a key several times; places of so many short names are remembered."""

SHORT_VALUE = 1024
"""A string of up to so many bytes is part of its key's record: one item of the catalog less to be found."""

_RECORD = struct.Struct("<BBQQQQQQQ")


class Kind(IntEnum):
    """The type of a value. The numbers are stored."""

    STRING = 0
    HASH = 1
    ZSET = 2


class Encoding(IntEnum):
    """How Redis would keep a value of this size and history (OBJECT ENCODING). The numbers are stored."""

    INT = 0
    EMBSTR = 1
    RAW = 2
    LISTPACK = 3
    HASHTABLE = 4
    SKIPLIST = 5


_KINDS, _ENCODINGS = tuple(Kind), tuple(Encoding)
_STRING = int(Kind.STRING)
"""By number: looked up faster than an enumeration does."""


@dataclass(slots=True)
class Entry:
    """A key.

    Attributes:
        name: Its name.
        kind: The type of its value.
        id: Where its contents are.
        encoding: What OBJECT ENCODING answers.
        deadline: When it ends, milliseconds; 0 for never.
        count: Bytes of a string, fields of a hash, members of a sorted set.
        cost: Bytes it takes of the budget; 0 when it is not stored yet.
        version: Moves with every change (WATCH).
        used: When it was last used, seconds.
        digest: xxh3-64 of a string that is neither in the record nor in a page.
        value: The string itself, if it is short.
    """

    name: bytes
    kind: Kind
    id: int
    encoding: Encoding
    deadline: int = 0
    count: int = 0
    cost: int = 0
    version: int = 0
    used: int = 0
    digest: int = 0
    value: bytes = b""

    @property
    def place(self) -> bytes:
        """Where it is kept."""
        return place_of(self.name)

    @property
    def key(self) -> bytes:
        """Its id as it begins the keys of its contents."""
        return self.id.to_bytes(8, "big")

    def encode(self) -> bytes:
        """The stored form."""
        return seal(_RECORD.pack(*_numbers(self)) + self.name + self.value)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """The entry of a stored form."""
        body = unseal(raw)
        kind, encoding, number, deadline, count, cost, version, used, digest = _RECORD.unpack_from(body)
        end = len(body) - (count if kind == _STRING and count <= SHORT_VALUE else 0)
        name, value = body[_RECORD.size : end], body[end:]
        of, coded = _KINDS[kind], _ENCODINGS[encoding]
        return cls(name, of, number, coded, deadline, count, cost, version, used, digest, value)

    def copy(self) -> Self:
        """Another one that is the same."""
        return type(self)(*_everything(self))


_numbers = attrgetter("kind", "encoding", "id", "deadline", "count", "cost", "version", "used", "digest")
_everything = attrgetter(*(field.name for field in fields(Entry)))


def place_of(name: bytes) -> bytes:
    """Where a key, a field or a member is kept."""
    return _place_of_short(name) if len(name) <= SHORT_NAME else _hash(name)


def _hash(name: bytes) -> bytes:
    return blake2b(name, digest_size=PLACE_BYTES).digest()


_place_of_short = lru_cache(PLACES_KEPT)(_hash)


def deadline_key(deadline: int, place: bytes) -> bytes:
    """Where the end of a key is noted."""
    return deadline.to_bytes(8, "big") + place


def item_cost(key: int, value: int) -> int:
    """Bytes that an item of the catalog takes, from the lengths of its key and value."""
    if key + value <= INLINE_BYTES:
        return NODE_BYTES + key + value
    return NODE_BYTES + key + -(-(value + NODE_BYTES) // PAGE_BYTES) * PAGE_BYTES


def entry_cost(name: bytes) -> int:
    """Bytes that a key takes beside its contents, its deadline included."""
    return _record_cost(len(name)) + item_cost(8 + PLACE_BYTES, 0)


def short_cost(name: bytes, size: int) -> int:
    """Bytes that a short string adds to the record of its key."""
    return _record_cost(len(name) + size) - _record_cost(len(name))


def contents_cost(entry: Entry, name: bytes) -> int:
    """Bytes that the contents of a stored key would take under another name."""
    size = len(entry.value)
    return entry.cost - entry_cost(entry.name) - short_cost(entry.name, size) + short_cost(name, size)


def _record_cost(length: int) -> int:
    return item_cost(PLACE_BYTES, _RECORD.size + length + SEAL_BYTES)

"""What the two directions of a tier share."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from pionkv.storage import Store

from .guard import Guard, Pace

WINDOW = 4
"""Pieces of one prefix on their way at the same time."""
MEASURED_BYTES = 256 << 10
"""Smaller transfers say nothing about bandwidth."""
_MARK = struct.Struct("<Q16s")


class Mark(NamedTuple):
    """What the store notes about a prefix that the tier holds as it is here.

    Attributes:
        version: The version of the tier's record.
        content: Names the rows and states of that version; see `Record.content`.
    """

    version: int
    content: bytes

    def encode(self) -> bytes:
        """The stored form."""
        return _MARK.pack(*self)

    @classmethod
    def of(cls, note: bytes | None) -> Self | None:
        """The mark of a stored form."""
        return None if note is None or len(note) != _MARK.size else cls(*_MARK.unpack(note))


@dataclass
class Context:
    """The parts that publisher and reader share.

    Attributes:
        store: The store.
        guard: Asks the tier.
        counts: Counters, by name.
        origin: Names this server in what it writes.
        up: Bandwidth to the tier.
        down: Bandwidth from the tier.
    """

    store: Store
    guard: Guard
    counts: Counter[str]
    origin: str
    up: Pace = field(default_factory=Pace)
    down: Pace = field(default_factory=Pace)

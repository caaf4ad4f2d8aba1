"""Plain keys of a store: the transactions they are read and changed in, and what is swept in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from ..catalog import Writer
from ..engine import Engine
from ..evict import make_room
from . import expiry
from .access import KeyReader, KeyWriter
from .generic import note_uses

T = TypeVar("T")

VALUE_BYTES = 512 << 20
"""Greatest length of a string, as in Redis."""
USES_NOTED = 65_536
USES_WRITTEN = 1000
"""Reads of so many keys are remembered until they are written down, so many at a time."""


@dataclass(frozen=True, slots=True)
class KeyspaceInfo:
    """Numbers of plain keys, those of all processes.

    Attributes:
        keys: Keys, those not yet swept included.
        deadlines: Keys that end.
        bytes: Bytes they take of the budget.
        expired: Keys that have ended since the directory was made.
        evicted: Keys removed before their deadline to make room.
    """

    keys: int
    deadlines: int
    bytes: int
    expired: int
    evicted: int


class Keyspace:
    """Plain keys: strings, hashes and sorted sets in the catalog, within the byte budget.

    The modules beside this one hold the operations, as functions over the `KeyReader` and `KeyWriter` that
    `read` and `change` hand out: `space.read(lambda keys: strings.get(keys, b"name"))`.

    A key is never removed to make room unless it has a deadline. When the budget is full prefixes go first,
    then keys with a deadline, the soonest first; when nothing is left to go, a write is refused.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._uses: dict[bytes, int] = {}

    def read(self, question: Callable[[KeyReader], T], *, note_use: bool = True) -> T:
        """What `question` finds out about one state of the keys.

        Args:
            question: Must not let the reader out.
            note_use: Whether it counts as use of the keys it reads.
        """
        uses = self._uses if note_use and len(self._uses) < USES_NOTED else None
        with self._engine.catalog.snapshot() as reader:
            return question(KeyReader(reader, self._now(), VALUE_BYTES, uses))

    def change(self, change: Callable[[KeyWriter], T]) -> T:
        """Run `change` as one transaction; when it raises, nothing of it is done.

        Args:
            change: May be run more than once, so it must not touch anything but its writer.

        Raises:
            OutOfBudget: There is no room, whatever may be removed.
            NoSpace: The file system takes no more.
        """
        now = self._now()
        return self._engine.catalog.write(
            lambda writer: change(KeyWriter(writer, now, VALUE_BYTES, self._make_room))
        )

    def sweep(self) -> None:
        """Remove what has ended, and write down uses: a bounded step of both."""
        catalog, now = self._engine.catalog, self._now()
        with catalog.snapshot() as reader:
            due = expiry.is_due(reader, now)
        seen = {place: self._uses.pop(place) for place in list(islice(self._uses, USES_WRITTEN))}
        if due:
            self.change(expiry.sweep)
        if seen:
            self.change(lambda keys: note_uses(keys, seen))

    def info(self) -> KeyspaceInfo:
        """Numbers of plain keys."""
        with self._engine.catalog.snapshot() as reader:
            totals = reader.counters()
            return KeyspaceInfo(
                keys=reader.entries("keys"),
                deadlines=reader.entries("deadlines"),
                bytes=totals.key_bytes,
                expired=totals.keys_expired,
                evicted=totals.keys_evicted,
            )

    def _now(self) -> int:
        return int(self._engine.clock() * 1000)

    def _make_room(self, writer: Writer, needed: int, keep: bytes) -> None:
        engine = self._engine
        make_room(writer, needed + engine.reserved, engine.options.max_bytes, engine.writing, keep)

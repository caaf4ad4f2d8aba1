"""Plain keys of a store: the transactions they are read and changed in, and what is swept in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from ..accounts import EVERYTHING, Listing, tenant_of
from ..catalog import Writer
from ..engine import Engine
from ..errors import PageCorrupt, PageGone
from ..known import Known
from . import expiry, large, strings
from .access import ENTRIES_KNOWN, KeyReader, KeyWriter
from .entry import Entry, place_of
from .errors import DamagedValue
from .generic import note_uses
from .large_write import LargeWrite

T = TypeVar("T")

USES_NOTED = 65_536
USES_WRITTEN = 1000
"""Reads of so many keys are remembered until they are written down, so many at a time."""
_ATTEMPTS = 4


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
        self._known: Known[bytes, Entry] = Known(ENTRIES_KNOWN)

    def read(
        self,
        question: Callable[[KeyReader], T],
        *,
        note_use: bool = True,
        listing: Listing = EVERYTHING,
    ) -> T:
        """What `question` finds out about one state of the keys.

        Args:
            question: Must not let the reader out.
            note_use: Whether it counts as use of the keys it reads.
            listing: Which names listings hold, and how they tell them.

        Raises:
            DamagedValue: A value fails its check.
        """
        engine, uses = self._engine, self._noting() if note_use else None
        for attempt in range(_ATTEMPTS):
            try:
                with engine.catalog.snapshot() as reader:
                    known = self._known.of(reader.state)
                    return question(KeyReader(reader, self._now(), engine, uses, listing, known))
            except PageGone as error:
                # Another process has let go of a page since the snapshot: there is a newer state.
                if attempt == _ATTEMPTS - 1:
                    raise DamagedValue("its page file is missing") from error
            except PageCorrupt as error:
                raise DamagedValue(str(error)) from error
        raise AssertionError("unreachable")

    def known_values(self, names: Sequence[bytes], *, note_use: bool = True) -> list[bytes] | None:
        """The values of strings; None unless all are short, not empty, without an end, and found before.

        What was found in another state of the catalog is not known any more: this one may be different.
        """
        known = self._known.of(self._engine.catalog.state)
        try:
            entries = [known[name] for name in names]
        except KeyError:
            return None
        # What has no value in its record is no short string.
        values = [entry.value for entry in entries if not entry.deadline]
        if len(values) < len(names) or not all(values):
            return None
        if note_use and (uses := self._noting()) is not None:
            seconds = int(self._engine.clock())
            for name in {*names}:
                uses[place_of(name)] = seconds
        return values

    def change(self, change: Callable[[KeyWriter], T]) -> T:
        """Run `change` as one transaction; when it raises, nothing of it is done.

        Args:
            change: May be run more than once, so it must not touch anything but its writer.

        Raises:
            OutOfBudget: There is no room, whatever may be removed.
            NoSpace: The file system takes no more.
            DamagedValue: A value fails its check.
        """
        engine, now = self._engine, self._now()
        keys: KeyWriter | None = None

        def run(writer: Writer) -> T:
            nonlocal keys
            self._undo(keys)
            keys = KeyWriter(writer, now, engine, self._noting(), self._known.of(writer.id - 1))
            result = change(keys)
            keys.store()
            return result

        try:
            result = engine.catalog.write(run, reuse=True)
        except (PageGone, PageCorrupt) as error:
            self._undo(keys)
            raise DamagedValue(str(error)) from error
        except BaseException:
            self._undo(keys)
            raise
        assert keys is not None
        self._known.moved(keys.writer.id, keys.known)
        for write in keys.named:
            write.committed()
        return result

    def begin_large(self, name: bytes, length: int) -> LargeWrite:
        """Begin to write a string of `LARGE_BYTES` or more, to be given to `strings.put`, or aborted.

        Raises:
            ValueLimit: It is too long.
            OutOfBudget: There is no room for it, even in the place of what the key holds.
            NoSpace: The file system takes no more.
        """
        strings.check_length(length)
        engine, place = self._engine, place_of(name)
        with engine.catalog.snapshot() as reader:
            entry = KeyReader(reader, self._now(), engine).find(name)
            replaced = large.disk_bytes(entry.count) if entry is not None and large.is_large(entry) else 0
            stored = reader.counters().bytes
        tenant = tenant_of(name)
        engine.reserve(place, max(0, large.disk_bytes(length) - replaced), stored, tenant)
        return LargeWrite(engine, place, length, tenant)

    def sweep(self) -> None:
        """Remove what has ended, and write down uses: a bounded step of both."""
        seen = {place: self._uses.pop(place) for place in list(islice(self._uses, USES_WRITTEN))}
        if self.read(expiry.is_due):
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

    def _undo(self, keys: KeyWriter | None) -> None:
        """The transaction is given up: what it wrote beside the catalog goes."""
        if keys is not None:
            self._known.forget()
            for write in keys.made:
                write.abort()

    def _noting(self) -> dict[bytes, int] | None:
        """Where uses are noted, unless too many are already."""
        return self._uses if len(self._uses) < USES_NOTED else None

    def _now(self) -> int:
        return int(self._engine.clock() * 1000)

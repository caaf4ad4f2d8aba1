"""Plain keys within one transaction of the catalog: found, charged, stored, removed.

Everything else of this package is functions over a `KeyReader` or `KeyWriter`. A key whose deadline has
passed is not there, for either: the writer removes it on sight, `sweep` removes the rest.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

from .. import accounts
from ..accounts import EVERYTHING, Listing
from ..catalog import Reader, Writer
from . import large
from .cursors import delete_some
from .entry import SHORT_VALUE, Encoding, Entry, Kind, contents_cost, deadline_key, entry_cost, place_of
from .errors import WrongType

if TYPE_CHECKING:
    from ..engine import Engine
    from .large_write import LargeWrite

ENTRIES_KNOWN = 4096
KNOWN_BYTES = 512
"""So many decoded entries are known at once, of a name and a short value of up to so many bytes together."""

REMOVED_AT_ONCE = 64
"""Contents of up to so many items go with their key; more are left to the sweep, so that no removal takes
long.
"""

CONTENTS = ("fields", "scores")


class KeyReader:
    """Keys as one read transaction sees them.

    Args:
        reader: The transaction.
        now: The time, milliseconds since the epoch: the same for everything in the transaction.
        engine: The store.
        uses: Where uses are noted, place -> seconds; None: they are not.
        listing: Which names listings hold, and how they tell them.
        known: Entries by name as this transaction sees them; more are added. They are not to be changed.
    """

    __slots__ = ("engine", "known", "listing", "now", "reader", "uses")

    def __init__(
        self,
        reader: Reader,
        now: int,
        engine: Engine,
        uses: dict[bytes, int] | None = None,
        listing: Listing = EVERYTHING,
        known: dict[bytes, Entry] | None = None,
    ) -> None:
        self.reader = reader
        self.now = now
        self.engine = engine
        self.uses = uses
        self.listing = listing
        self.known = {} if known is None else known

    def find(self, name: bytes) -> Entry | None:
        """The key of this name, of any type, not to be changed; no use of it is noted."""
        entry = self.known.get(name) or self._load(name)
        return None if entry is None or 0 < entry.deadline <= self.now else entry

    def _load(self, name: bytes) -> Entry | None:
        """The key of this name from the catalog, known from now on."""
        raw = self.reader.get("keys", place_of(name))
        if raw is None:
            return None
        entry = Entry.decode(raw)
        if len(name) + len(entry.value) <= KNOWN_BYTES and len(self.known) < ENTRIES_KNOWN:
            self.known[name] = entry
        return entry

    def view(self, name: bytes, kind: Kind) -> Entry | None:
        """The key of this name, used, not to be changed. Raises `WrongType`."""
        # Written with an eye on speed, as is `find`: no call that can be saved.
        entry = self.known.get(name) or self._load(name)
        if entry is None or 0 < entry.deadline <= self.now:
            return None
        if entry.kind is not kind:
            raise WrongType
        if self.uses is not None:
            self.uses[place_of(name)] = self.now // 1000
        return entry

    def get(self, name: bytes, kind: Kind) -> Entry | None:
        """The key of this name, used; a writer may change it. Raises `WrongType`."""
        return self.view(name, kind)

    def note(self, entry: Entry) -> None:
        """The key was used."""
        if self.uses is not None:
            self.uses[entry.place] = self.now // 1000

    def view_page(self, page: int, length: int) -> memoryview:
        """The large string in a page. Raises `PageGone`, `PageCorrupt`, `NoHandles`."""
        return self.engine.maps.rows(page, 0, 0, 0, length)

    def records(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Places and stored forms of keys from a place on, in the order of their places."""
        return self.reader.scan("keys", start=start)

    def count(self) -> int:
        """How many keys there are, those not yet swept included."""
        return self.reader.entries("keys")

    def lists(self, entry: Entry) -> bool:
        """Whether a listing holds the key."""
        return not self.is_over(entry) and self.listing.holds(entry.name)

    def is_over(self, entry: Entry) -> bool:
        """Whether the key's deadline has passed."""
        return 0 < entry.deadline <= self.now


class KeyWriter(KeyReader):
    """Keys as the write transaction sees and changes them.

    Entries of few bytes that were saved are stored together at the end: of a key that is set many times in a
    transaction only the last one is. Until then they are known, so that nothing in this transaction can tell.

    Args:
        writer: The transaction.
        now: The time, milliseconds since the epoch.
        engine: The store.
        uses: As for a `KeyReader`.

    Attributes:
        made: Large strings that this transaction has written.
        named: Large strings that it has made the value of a key, written here or before.
    """

    __slots__ = ("_unstored", "generation", "made", "named", "seconds", "writer")

    def __init__(
        self,
        writer: Writer,
        now: int,
        engine: Engine,
        uses: dict[bytes, int] | None = None,
        known: dict[bytes, Entry] | None = None,
    ) -> None:
        super().__init__(writer, now, engine, uses, known=known)
        self.writer = writer
        self.generation = writer.generation
        self.seconds = now // 1000
        self.made: list[LargeWrite] = []
        self.named: list[LargeWrite] = []
        self._unstored: dict[bytes, Entry] = {}

    def view_page(self, page: int, length: int) -> memoryview:
        """The large string in a page, which this transaction itself may have made."""
        for write in self.named:
            if write.page == page:
                return memoryview(write.read_back())
        return super().view_page(page, length)

    def find(self, name: bytes) -> Entry | None:
        """The key of this name, of any type, which may be changed; one that has ended is removed."""
        entry = self.known.get(name)
        if entry is not None:
            entry = entry.copy()
        else:
            raw = self.reader.get("keys", place_of(name))
            if raw is None:
                return None
            entry = Entry.decode(raw)
        if self.is_over(entry):
            self.remove(entry)
            self.writer.totals.keys_expired += 1
            return None
        return entry

    def get(self, name: bytes, kind: Kind) -> Entry | None:
        """The key of this name, used, which may be changed. Raises `WrongType`."""
        entry = self.find(name)
        if entry is None:
            return None
        if entry.kind is not kind:
            raise WrongType
        self.note(entry)
        return entry

    def open(self, name: bytes, kind: Kind, encoding: Encoding) -> Entry:
        """The key of this name, or a new one, which is there once it is saved. Raises `WrongType`."""
        return self.get(name, kind) or Entry(name, kind, self.writer.new_serial(), encoding)

    def charge(self, entry: Entry, growth: int) -> None:
        """Account for a change of a key's contents by `growth` bytes, before it is made.

        Raises:
            OutOfBudget: There is no room for it. The transaction has to be given up.
        """
        if not entry.cost:
            growth += entry_cost(entry.name)
        if not growth:
            return
        if growth > 0 and (limit := self.engine.options.max_bytes) is not None:
            reserved = self.engine.reserved - sum(write.reserved for write in self.named)
            if self.writer.totals.bytes + growth + reserved > limit:
                self.forget()
                self.engine.make_room(self.writer, entry.place, growth + reserved)
        tenant = accounts.tenant_of(entry.name)
        self.engine.make_tenant_room(self.writer, entry.place, growth, tenant)
        entry.cost += growth
        account(self.writer, growth, tenant)

    def save(self, entry: Entry) -> None:
        """Take over a key that was changed."""
        entry.version = self.generation
        entry.used = self.seconds
        self.put(entry)

    def put(self, entry: Entry) -> None:
        """Take over a key as it is: nothing may change it from now on."""
        name = entry.name
        if len(name) + len(entry.value) > KNOWN_BYTES:
            self._drop(name)
            self.writer.put("keys", place_of(name), entry.encode())
            return
        if len(self.known) >= ENTRIES_KNOWN:
            self.forget()
        self.known[name] = self._unstored[name] = entry
        self.writer.changes += 1

    def store(self) -> None:
        """Store what was saved: for who looks at the catalog beside `find`, and before the end."""
        for name, entry in self._unstored.items():
            self.writer.put("keys", place_of(name), entry.encode())
        self._unstored.clear()

    def forget(self) -> None:
        """Store what was saved, and know nothing any more: for who changes the catalog beside this."""
        self.store()
        self.known.clear()

    def records(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Places and stored forms of keys from a place on, in the order of their places."""
        self.store()
        return super().records(start)

    def count(self) -> int:
        """How many keys there are, those not yet swept included."""
        self.store()
        return super().count()

    def set_deadline(self, entry: Entry, deadline: int) -> None:
        """Let a key end at a time in milliseconds, 0 for never. The caller saves it."""
        place = entry.place
        if entry.deadline:
            self.writer.delete("deadlines", deadline_key(entry.deadline, place))
        if deadline:
            self.writer.put("deadlines", deadline_key(deadline, place), b"")
        entry.deadline = deadline

    def remove(self, entry: Entry) -> None:
        """Remove a key and its contents."""
        self._drop(entry.name)
        remove(self.writer, entry)

    def detach(self, entry: Entry) -> None:
        """Take a key from its place; its contents stay, for another name."""
        self._drop(entry.name)
        detach(self.writer, entry)

    def _drop(self, name: bytes) -> None:
        self.known.pop(name, None)
        self._unstored.pop(name, None)

    def attach(self, entry: Entry, name: bytes) -> None:
        """Put a detached key in another place, with its deadline."""
        contents = contents_cost(entry, name)
        account(self.writer, -entry.cost, accounts.tenant_of(entry.name))
        entry.name, entry.cost = name, 0
        self.charge(entry, contents)
        deadline, entry.deadline = entry.deadline, 0
        self.set_deadline(entry, deadline)
        if large.is_large(entry):
            large.move(self.writer, entry)
        self.save(entry)


def remove(writer: Writer, entry: Entry) -> None:
    """Remove a key and its contents."""
    detach(writer, entry)
    if large.is_large(entry):
        large.release(writer, entry.key)
    elif entry.kind is Kind.STRING:
        if entry.count > SHORT_VALUE:
            writer.delete("values", entry.key)
    elif entry.count <= REMOVED_AT_ONCE:
        for table in CONTENTS:
            delete_some(writer, table, entry.key, REMOVED_AT_ONCE)
    else:
        writer.put("leftovers", entry.key, b"")
    account(writer, -entry.cost, accounts.tenant_of(entry.name))


def detach(writer: Writer, entry: Entry) -> None:
    """Take a key from its place; its contents stay."""
    place = entry.place
    if entry.deadline:
        writer.delete("deadlines", deadline_key(entry.deadline, place))
    writer.delete("keys", place)


def account(writer: Writer, growth: int, tenant: bytes) -> None:
    """Plain keys of a tenant take more, or less, of the budget."""
    writer.changes += 1
    accounts.add(writer, tenant, growth, keys=True)
    writer.totals.bytes += growth
    writer.totals.key_bytes += growth


def drop_values(writer: Writer, pages: Container[int]) -> None:
    """Remove the keys whose value is in one of these pages: they are gone."""
    for place in large.places_of(writer, pages):
        raw = writer.get("keys", place)
        if raw is not None:
            remove(writer, Entry.decode(raw))

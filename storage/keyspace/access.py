"""Plain keys within one transaction of the catalog: found, charged, stored, removed.

Everything else of this package is functions over a `KeyReader` or `KeyWriter`. A key whose deadline has
passed is not there, for either: the writer removes it on sight, `sweep` removes the rest.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from .. import accounts
from ..accounts import EVERYTHING, Listing
from ..catalog import Reader, Writer
from . import large
from .cursors import delete_some
from .entry import Encoding, Entry, Kind, deadline_key, entry_cost, place_of, view_of
from .errors import WrongType

if TYPE_CHECKING:
    from ..engine import Engine
    from .large_write import LargeWrite

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
    """

    __slots__ = ("engine", "listing", "now", "reader", "uses")

    def __init__(
        self,
        reader: Reader,
        now: int,
        engine: Engine,
        uses: dict[bytes, int] | None = None,
        listing: Listing = EVERYTHING,
    ) -> None:
        self.reader = reader
        self.now = now
        self.engine = engine
        self.uses = uses
        self.listing = listing

    @property
    def changes(self) -> int:
        """Moves with every change that this transaction makes."""
        return 0

    def find(self, name: bytes) -> Entry | None:
        """The key of this name, of any type, not to be changed; no use of it is noted."""
        raw = self.reader.get("keys", place_of(name))
        if raw is None:
            return None
        entry = view_of(raw)
        return None if 0 < entry.deadline <= self.now else entry

    def get(self, name: bytes, kind: Kind) -> Entry | None:
        """The key of this name, used. Raises `WrongType`."""
        entry = self.find(name)
        if entry is None:
            return None
        if entry.kind is not kind:
            raise WrongType
        if self.uses is not None:
            self.uses[place_of(name)] = self.now // 1000
        return entry

    def note(self, entry: Entry) -> None:
        """The key was used."""
        if self.uses is not None:
            self.uses[entry.place] = self.now // 1000

    def view_page(self, page: int, length: int) -> memoryview:
        """The large string in a page. Raises `PageGone`, `PageCorrupt`, `NoHandles`."""
        return self.engine.maps.rows(page, 0, 0, 0, length)

    def lists(self, entry: Entry) -> bool:
        """Whether a listing holds the key."""
        return not self.is_over(entry) and self.listing.holds(entry.name)

    def is_over(self, entry: Entry) -> bool:
        """Whether the key's deadline has passed."""
        return 0 < entry.deadline <= self.now


class KeyWriter(KeyReader):
    """Keys as the write transaction sees and changes them.

    Args:
        writer: The transaction.
        now: The time, milliseconds since the epoch.
        engine: The store.
        uses: As for a `KeyReader`.

    Attributes:
        made: Large strings that this transaction has written.
        named: Large strings that it has made the value of a key, written here or before.
    """

    __slots__ = ("made", "named", "writer")

    def __init__(
        self, writer: Writer, now: int, engine: Engine, uses: dict[bytes, int] | None = None
    ) -> None:
        super().__init__(writer, now, engine, uses)
        self.writer = writer
        self.made: list[LargeWrite] = []
        self.named: list[LargeWrite] = []

    @property
    def changes(self) -> int:
        """Moves with every change that this transaction makes."""
        return self.writer.changes + len(self.made)

    def view_page(self, page: int, length: int) -> memoryview:
        """The large string in a page, which this transaction itself may have made."""
        for write in self.named:
            if write.page == page:
                return memoryview(write.read_back())
        return super().view_page(page, length)

    def find(self, name: bytes) -> Entry | None:
        """The key of this name, of any type, which may be changed; one that has ended is removed."""
        raw = self.reader.get("keys", place_of(name))
        if raw is None:
            return None
        entry = Entry.decode(raw)
        if self.is_over(entry):
            self.remove(entry)
            self.writer.totals.keys_expired += 1
            return None
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
        if growth > 0 and self.engine.options.max_bytes is not None:
            reserved = self.engine.reserved - sum(write.reserved for write in self.named)
            self.engine.make_room(self.writer, entry.place, growth + reserved)
        tenant = accounts.tenant_of(entry.name)
        self.engine.make_tenant_room(self.writer, entry.place, growth, tenant)
        entry.cost += growth
        account(self.writer, growth, tenant)

    def save(self, entry: Entry) -> None:
        """Store a key that was changed."""
        entry.version = self.writer.generation
        entry.used = self.now // 1000
        self.writer.put("keys", entry.place, entry.encode())

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
        remove(self.writer, entry)

    def detach(self, entry: Entry) -> None:
        """Take a key from its place; its contents stay, for another name."""
        detach(self.writer, entry)

    def attach(self, entry: Entry, name: bytes) -> None:
        """Put a detached key in another place, with its deadline."""
        contents = entry.cost - entry_cost(entry.name)
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

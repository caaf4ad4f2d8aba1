"""Plain keys within one transaction of the catalog: found, charged, stored, removed.

Everything else of this package is functions over a `KeyReader` or `KeyWriter`. A key whose deadline has
passed is not there, for either: the writer removes it on sight, `sweep` removes the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from ..catalog import Reader, Writer
from .cursors import delete_some
from .entry import Encoding, Entry, Kind, deadline_key, entry_cost, place_of
from .errors import WrongType

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
        uses: Where uses are noted, place -> seconds; None: they are not.
        value_bytes: Greatest length of a string.
    """

    __slots__ = ("now", "reader", "uses", "value_bytes")

    def __init__(
        self, reader: Reader, now: int, value_bytes: int, uses: dict[bytes, int] | None = None
    ) -> None:
        self.reader = reader
        self.now = now
        self.uses = uses
        self.value_bytes = value_bytes

    def find(self, name: bytes) -> Entry | None:
        """The key of this name, of any type; no use of it is noted."""
        raw = self.reader.get("keys", place_of(name))
        if raw is None:
            return None
        entry = Entry.decode(raw)
        return None if self.is_over(entry) else entry

    def get(self, name: bytes, kind: Kind) -> Entry | None:
        """The key of this name, used. Raises `WrongType`."""
        entry = self.find(name)
        if entry is None:
            return None
        if entry.kind is not kind:
            raise WrongType
        self.note(entry)
        return entry

    def note(self, entry: Entry) -> None:
        """The key was used."""
        if self.uses is not None:
            self.uses[place_of(entry.name)] = self.now // 1000

    def is_over(self, entry: Entry) -> bool:
        """Whether the key's deadline has passed."""
        return 0 < entry.deadline <= self.now


class KeyWriter(KeyReader):
    """Keys as the write transaction sees and changes them.

    Args:
        writer: The transaction.
        now: The time, milliseconds since the epoch.
        value_bytes: Greatest length of a string.
        make_room: Makes room for so many bytes, keeping the key at a place; raises `OutOfBudget`.
    """

    __slots__ = ("_make_room", "writer")

    def __init__(
        self, writer: Writer, now: int, value_bytes: int, make_room: Callable[[Writer, int, bytes], None]
    ) -> None:
        super().__init__(writer, now, value_bytes)
        self.writer = writer
        self._make_room = make_room

    def find(self, name: bytes) -> Entry | None:
        """The key of this name, of any type; one that has ended is removed."""
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
        if growth > 0:
            self._make_room(self.writer, growth, place_of(entry.name))
        entry.cost += growth
        account(self.writer, growth)

    def save(self, entry: Entry) -> None:
        """Store a key that was changed."""
        entry.version = self.writer.generation
        entry.used = self.now // 1000
        self.writer.put("keys", place_of(entry.name), entry.encode())

    def set_deadline(self, entry: Entry, deadline: int) -> None:
        """Let a key end at a time in milliseconds, 0 for never. The caller saves it."""
        place = place_of(entry.name)
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
        growth = entry_cost(name) - entry_cost(entry.name)
        entry.name = name
        self.charge(entry, growth)
        deadline, entry.deadline = entry.deadline, 0
        self.set_deadline(entry, deadline)
        self.save(entry)


def remove(writer: Writer, entry: Entry) -> None:
    """Remove a key and its contents."""
    detach(writer, entry)
    if entry.kind is Kind.STRING:
        writer.delete("values", entry.key)
    elif entry.count <= REMOVED_AT_ONCE:
        for table in CONTENTS:
            delete_some(writer, table, entry.key, REMOVED_AT_ONCE)
    else:
        writer.put("leftovers", entry.key, b"")
    account(writer, -entry.cost)


def detach(writer: Writer, entry: Entry) -> None:
    """Take a key from its place; its contents stay."""
    place = place_of(entry.name)
    if entry.deadline:
        writer.delete("deadlines", deadline_key(entry.deadline, place))
    writer.delete("keys", place)


def account(writer: Writer, growth: int) -> None:
    """Plain keys take more, or less, of the budget."""
    writer.totals.bytes += growth
    writer.totals.key_bytes += growth

"""Filling page rows: reserve them, write them a window at a time, publish them in one catalog transaction.

Nothing of a write is visible before its commit, and everything of it is after. A process that dies in
between leaves bytes in page rows that no record names, or a page file that no record names.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import xxhash

from . import refs
from .accounts import tenant_of
from .catalog import Writer
from .digest import Piece, encode_piece, piece_rows
from .engine import Engine
from .errors import Stale, WriteClosed
from .files import set_aside, sync_directory, sync_file
from .open_pages import OpenPage, Tail
from .options import Durability
from .page import region_key
from .records import PageRecord
from .units import open_unit, refresh

SET_ASIDE_FROM = 256 << 10
SET_ASIDE_BYTES = 4 << 20
"""Blocks are taken for so much at once before it is written. Taking them costs 10 µs, and ext4 then writes a
MiB in 105 to 130 µs where it took 175 to 190; XFS and btrfs are hardly faster or slower. tmpfs takes as much
longer for them as it is faster afterwards: hence not for all at once."""


class Pending(ABC):
    """Something on its way into the store: filled, then published. As a context manager it aborts otherwise.

    Attributes:
        count: Rows that are to be filled.
        nbytes: Bytes of all segments together.
    """

    moves = True
    """Whether the rows are new to readers, so that the unit's generation moves."""

    count: int
    nbytes: int
    _engine: Engine
    _unit: bytes
    _open = True

    @property
    @abstractmethod
    def pages(self) -> tuple[OpenPage, ...]:
        """The pages it writes to."""

    @abstractmethod
    def next_segment(self) -> memoryview | None:
        """The next writable buffer of packed bytes, in row order; None when every row has one.

        A segment is whole rows, at most 1 MiB of them. Asking for the next one writes the one before into
        the page, so that one must be filled by then and not touched after. Any thread, one at a time.

        Raises:
            NoSpace: The file system takes no more; the write can only be aborted.
            WriteClosed: After `commit` or `abort`.
        """

    @abstractmethod
    def seal(self) -> None:
        """Have every byte in the page and let the window go: what is left is to publish the rows or to abort.

        Raises:
            NoSpace: The file system takes no more; the write can only be aborted.
            WriteClosed: The write is closed, or not all rows were filled.
        """

    @abstractmethod
    def to_disk(self) -> None:
        """Bring the rows to the disk if that is promised; the commit then need not. Any thread."""

    def commit(self) -> int:
        """Publish the rows; the generation this makes.

        Segments never asked for are an error: a write publishes all its rows or none.

        Raises:
            UnknownSession: The session was dropped meanwhile.
            Stale: It was replaced meanwhile, or its page was freed under the write.
            Gap: It was cut meanwhile, below the start of the write.
            Quarantined: It was quarantined meanwhile.
            OutOfBudget: Other processes took the room meanwhile.
            NoSpace: The file system takes no more.
            WriteClosed: The write is closed, or not all rows were filled.
        """
        return commit(self._engine, [self])[0]

    def abort(self) -> None:
        """Give everything back. Does nothing after `commit` or `abort`."""
        if self._open:
            self._undo()
            self._close()

    @abstractmethod
    def keep_tails(self) -> None:
        """Let the next rows in its regions go on with the last digest pieces."""

    @abstractmethod
    def _finish(self) -> None:
        """Have every byte in the page, and on the disk if that is promised."""

    @abstractmethod
    def _publish(self, writer: Writer) -> int:
        """Make the rows part of the unit; the new generation. The unit is summed up afterwards."""

    @abstractmethod
    def _account(self, writer: Writer) -> None:
        """Enter the bytes into the budget, and their digests into the catalog."""

    @abstractmethod
    def _published(self) -> None:
        """The transaction is committed."""

    @abstractmethod
    def _undo(self) -> None:
        """Give page rows back."""

    @abstractmethod
    def _close(self) -> None:
        """It is over: let go of what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class PageWrite(Pending):
    """Rows on their way into one region of a page.

    Args:
        engine: The store.
        unit: The unit written to.
        name: The session or namespace written to, for errors.
        page: The open page.
        layer: The layer.
        side: K or V.
        count: Number of rows.
        tenant: For whom; None: the name says it.
    """

    def __init__(
        self,
        engine: Engine,
        unit: bytes,
        name: bytes,
        page: OpenPage,
        layer: int,
        side: int,
        count: int,
        tenant: bytes | None = None,
    ) -> None:
        self._engine = engine
        self._tenant = tenant_of(name) if tenant is None else tenant
        self._unit = unit
        self._name = name
        self._page = page
        self._row_bytes = page.layout.row_bytes(layer, side)
        self.count = count
        self.nbytes = count * self._row_bytes
        self._region = region_key(layer, side)
        self._page_row, self._charge, self._reserved = page.reserve(layer, side, count)
        self._base = page.layout.offset(layer, side)
        self._sealed = False
        self._synced = False
        self._aside = sys.maxsize if self._charge < SET_ASIDE_FROM else self._offset(self._page_row)
        """How far in the file blocks are taken; the rest comes as it is written."""
        self._done = 0
        self._filling = 0
        self._window = engine.windows.take()
        self._pieces: list[Piece] = []
        self._tail = self._first_tail()
        engine.begin_writing(unit, self._reserved, self._tenant)

    @property
    def pages(self) -> tuple[OpenPage, ...]:
        """As `Pending`: its page."""
        return (self._page,)

    def next_segment(self) -> memoryview | None:
        """As `Pending`: the next buffer."""
        if not self._open:
            raise WriteClosed
        self._flush()
        rows = min(self.count - self._done, self._room())
        if not rows:
            return None
        self._filling = rows
        return memoryview(self._window)[: rows * self._row_bytes]

    def rewrite(self, change: Callable[[int, memoryview], None]) -> None:
        """Change rows that were filled already, in place and before they are published.

        Args:
            change: Called with the first row (of the write, from 0) and the writable bytes of whole
                rows, for one segment after the other; what it raises leaves a write that can only be aborted.

        Raises:
            NoSpace: The file system takes no more; the write can only be aborted.
            WriteClosed: The write is closed, or not all rows were filled.
        """
        if self._sealed:
            raise WriteClosed
        self._flush_all()
        self._synced = False
        self._done = 0
        self._pieces.clear()
        self._tail = self._first_tail()
        while rows := min(self.count - self._done, self._room()):
            data = memoryview(self._window)[: rows * self._row_bytes]
            self._page.read(data, self._offset(self._page_row + self._done))
            change(self._done, data)
            self._filling = rows
            self._flush()

    def seal(self) -> None:
        """As `Pending`: have every byte in the page."""
        self._flush_all()
        if not self._sealed:
            self._sealed = True
            self._engine.windows.give_back(self._window)

    def to_disk(self) -> None:
        """As `Pending`: bring the rows to the disk."""
        self._flush_all()
        self._sync_page()

    def _undo(self) -> None:
        self._page.unreserve(self._region, self._page_row, self.count)

    def keep_tails(self) -> None:
        """As `Pending`: of its region."""
        self._page.tails[self._region] = self._tail

    @abstractmethod
    def _name_rows(self, writer: Writer) -> int:
        """Make the rows part of the unit; the new generation. The unit is summed up afterwards."""

    def _finish(self) -> None:
        self.seal()
        self._sync_page()

    @abstractmethod
    def _check(self, writer: Writer) -> None:
        """Raises when what was to be written to is not there any more."""

    def _publish(self, writer: Writer) -> int:
        self._check(writer)
        if self._name not in writer.held:
            self._engine.check_quarantine(writer, self._unit)
        self._account(writer)
        return self._name_rows(writer)

    def _account(self, writer: Writer) -> None:
        page = self._page
        record = writer.page(page.number)
        first = 0 if record is not None else page.base
        if first and page.published and not os.fstat(page.fd).st_nlink:
            raise Stale(self._name)
        self._charge_page(writer, record, first + self._charge)
        if self._engine.options.durability is not Durability.ALWAYS:
            writer.mark_unsynced(page.number)
        for piece in self._pieces:
            writer.put("digests", *encode_piece(page.number, self._region, piece))

    def _charge_page(self, writer: Writer, record: PageRecord | None, needed: int) -> None:
        """Take so many bytes of the budget, and of the tenant's quota, for the page with this record.

        Raises:
            OutOfBudget: There is no room for them.
        """
        self._engine.make_tenant_room(writer, self._unit, needed, self._tenant)
        self._engine.make_room(writer, self._unit, needed)
        refs.charge(writer, self._page.number, record, needed, self._tenant)

    def _published(self) -> None:
        self._page.published = True
        self._page.doomed = False
        self.keep_tails()
        self._close()
        self._engine.usage.note(self._unit, self._engine.clock())

    def _sync_page(self) -> None:
        """Under `always` a page, and its name, reach the disk before the catalog names it."""
        if self._engine.options.durability is Durability.ALWAYS and not self._synced:
            sync_file(self._page.fd)
            if not self._page.published:
                sync_directory(self._engine.pages.directory)
            self._synced = True

    def _first_tail(self) -> Tail:
        """The piece to go on with: the region's last one when these rows follow it and it is not full."""
        tail = self._page.tails.get(self._region)
        if tail is not None and tail.end == self._page_row and tail.rows < piece_rows(self._row_bytes):
            return Tail(tail.start, tail.rows, tail.hasher.copy())
        return Tail(self._page_row, 0, xxhash.xxh3_64())

    def _room(self) -> int:
        """Rows that the piece can still take; begins the next one when it is full."""
        full = piece_rows(self._row_bytes)
        if self._tail.rows >= full:
            self._tail = Tail(self._page_row + self._done, 0, xxhash.xxh3_64())
        return full - self._tail.rows

    def _offset(self, page_row: int) -> int:
        """Where a row is in the file."""
        return self._base + page_row * self._row_bytes

    def _set_aside(self) -> None:
        """Take blocks for the next rows: at least for a segment, never for more than all."""
        end = min(self._aside + SET_ASIDE_BYTES, self._offset(self._page_row + self.count))
        set_aside(self._page.fd, self._aside, end - self._aside)
        self._aside = end

    def _flush_all(self) -> None:
        if not self._open:
            raise WriteClosed
        self._flush()
        if self._done != self.count:
            raise WriteClosed

    def _flush(self) -> None:
        """Write the window into the page and digest it."""
        rows = self._filling
        if not rows:
            return
        data = memoryview(self._window)[: rows * self._row_bytes]
        offset = self._offset(self._page_row + self._done)
        if offset + data.nbytes > self._aside:
            self._set_aside()
        self._page.write(data, offset)
        tail = self._tail
        tail.hasher.update(data)
        tail.rows += rows
        self._done += rows
        self._filling = 0
        self._pieces.append((tail.start, tail.rows, tail.hasher.intdigest()))

    def _close(self) -> None:
        self._open = False
        if not self._sealed:
            self._engine.windows.give_back(self._window)
        self._engine.end_writing(self._unit, self._reserved, self._tenant)
        self._engine.pages.done(self._page)


def commit(engine: Engine, writes: Sequence[Pending]) -> list[int]:
    """See `Store.commit`."""
    units = {write._unit: write.moves for write in writes}
    last: Writer | None = None

    def publish(writer: Writer) -> list[int]:
        nonlocal last
        last, writer.held = writer, engine.held.of(writer.id - 1)
        generations = [write._publish(writer) for write in writes]
        for unit, moves in units.items():
            refresh(writer, open_unit(writer, unit, engine.clock()), moved=moves)
        return generations

    try:
        for write in writes:
            write._finish()
        generations = engine.catalog.write(publish, reuse=True)
    except BaseException:
        for write in writes:
            write.abort()
        raise
    assert last is not None
    if last.held:
        engine.held.moved(last.id, last.take_held())
    for write in writes:
        write._published()
    return generations

"""Pages open for writing in this process: where free page rows are, and how bytes get there.

A page is written only by the process that made it; for all others, and after a restart, it is sealed. A
page's number is its writer's number (u32) above a bit for rows not coded yet and a counter (31 bits), so that
no two processes ever make the same page, and an unnamed file tells whose it is. Published page rows are never
written again.
"""

from __future__ import annotations

import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import xxhash

from .errors import DirectoryError, NoHandles, NoSpace, PageCorrupt
from .extents import TAIL, is_tail
from .files import FULL, NO_HANDLES
from .page import PageLayout, align, page_path, region_key
from .spares import Freed, Spare, Spares

_Place = tuple[bytes, int, bool]
"""Unit, side, and whether rows are not coded yet."""


class Tail:
    """The last digest piece of a region, which the next append may extend."""

    __slots__ = ("hasher", "rows", "start")

    def __init__(self, start: int, rows: int, hasher: xxhash.xxh3_64) -> None:
        self.start = start
        self.rows = rows
        self.hasher = hasher

    @property
    def end(self) -> int:
        """The page row after the piece."""
        return self.start + self.rows


class OpenPage:
    """A page this process may still write to.

    Attributes:
        number: The page's number.
        layout: Where its regions lie.
        base: Bytes it takes before any row is written: its header, or what a spare file has already.
        published: Whether the catalog has ever named it.
        doomed: Whether the catalog named it and does no more.
        pending: Writes under way in it.
        current: For how many sides it is the page to append to.
        tails: The last digest piece of each region.
    """

    __slots__ = (
        "_blocks",
        "_fill",
        "_length",
        "base",
        "current",
        "doomed",
        "fd",
        "layout",
        "number",
        "pending",
        "published",
        "tails",
    )

    def __init__(self, number: int, layout: PageLayout, fd: int, spare: Spare | None = None) -> None:
        self.number = number
        self.layout = layout
        self.fd = fd
        self.base = layout.header_bytes if spare is None else spare.bytes
        self._blocks = {} if spare is None else spare.fill
        self.published = False
        self.doomed = False
        self.pending = 0
        self.current = 0
        self.tails: dict[int, Tail] = {}
        self._fill: dict[int, int] = {}
        self._length = 0 if spare is None else os.fstat(fd).st_size

    def free_rows(self, layer: int, side: int) -> int:
        """Rows that can still be reserved in a region."""
        if not self.layout.has(layer, side):
            return 0
        return self.layout.capacity - self._fill.get(region_key(layer, side), 0)

    def reserve(self, layer: int, side: int, count: int) -> tuple[int, int, int]:
        """Take the next `count` rows of a region, and grow the file over it.

        Returns:
            The first of them, the bytes of disk that they take, and what `cost` said of them.
        """
        region = region_key(layer, side)
        row = self._fill.get(region, 0)
        self.extend(self.layout.file_bytes(layer))
        charge = self._charge(region, self.layout.row_bytes(layer, side), row, count)
        cost = charge if self.published or self.pending else charge + self.base
        self._fill[region] = row + count
        self.pending += 1
        return row, charge, cost

    def unreserve(self, region: int, row: int, count: int) -> None:
        """Give rows back that were never published, when none were taken after them."""
        if self._fill.get(region) == row + count:
            self._fill[region] = row

    def cost(self, layer: int, side: int, count: int) -> int:
        """Bytes of disk that the next `count` rows of a region take, with `base` for the first of a page."""
        region = region_key(layer, side)
        charge = self._charge(region, self.layout.row_bytes(layer, side), self._fill.get(region, 0), count)
        return charge if self.published or self.pending else charge + self.base

    def _charge(self, region: int, row_bytes: int, row: int, count: int) -> int:
        """Bytes of disk that rows of a region take: the blocks that begin in them and are not there yet."""
        end = row + count
        if there := self._blocks.get(region, 0):
            row, end = max(row, there), max(end, there)
        return align(end * row_bytes) - align(row * row_bytes)

    def extend(self, length: int) -> None:
        """Make the file at least this long; holes take no space."""
        if length > self._length:
            try:
                os.ftruncate(self.fd, length)
            except OSError as error:
                if error.errno in FULL:
                    raise NoSpace("a page") from error
                raise
            self._length = length

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data`. Raises `NoSpace` when the file system takes no more. Any thread."""
        try:
            while data:
                written = os.pwrite(self.fd, data, offset)
                data = data[written:]
                offset += written
        except OSError as error:
            if error.errno in FULL:
                raise NoSpace("a page") from error
            raise

    def read(self, data: memoryview, offset: int) -> None:
        """Fill `data` with bytes this process has written. Any thread."""
        while data:
            count = os.preadv(self.fd, [data], offset)
            if not count:
                raise PageCorrupt(self.number, "shorter than what was written to it")
            data = data[count:]
            offset += count


class OpenPages:
    """The open pages of this process, the last used kept, found by unit and side.

    Args:
        directory: Where page files are; also an attribute.
        writer: This process' writer number.
        limit: Pages kept open.
        remove: Removes a page file.
    """

    def __init__(self, directory: Path, writer: int, limit: int, remove: Callable[[str], None]) -> None:
        self.directory = directory
        self._next = writer << 32
        self._limit = limit
        self._remove = remove
        self._current: OrderedDict[_Place, OpenPage] = OrderedDict()
        self._pages: dict[int, OpenPage] = {}
        self._spares = Spares(self._rename, lambda number: remove(page_path(directory, number)))

    def current(self, unit: bytes, side: int, *, tail: bool = False) -> OpenPage | None:
        """The page that rows of this side are appended to, coded or not yet, if one is open."""
        place = unit, side, tail
        page = self._current.get(place)
        if page is not None:
            self._current.move_to_end(place)
        return page

    def create(self, unit: bytes, layout: PageLayout) -> OpenPage:
        """Make a page file with its header, and make it current for its sides.

        Raises:
            NoSpace: The file system takes no more.
            NoHandles: The process may open no more files.
            DirectoryError: The file cannot be made.
        """
        page = self._from_spare(layout) or self._new_file(layout)
        self._pages[page.number] = page
        for side in layout.sides:
            self._retire((unit, side, layout.tail))
            self._current[unit, side, layout.tail] = page
            page.current += 1
        while len(self._current) > self._limit:
            self._retire(next(iter(self._current)))
        return page

    def retire(self, unit: bytes) -> None:
        """Append no more to the pages of a unit."""
        for key in [key for key in self._current if key[0] == unit]:
            self._retire(key)

    def __contains__(self, number: int) -> bool:
        """Whether the page is open."""
        return number in self._pages

    def done(self, page: OpenPage) -> None:
        """A write in the page has ended: close it if nothing will write to it again."""
        page.pending -= 1
        self._close_if_idle(page)

    def release(self, freed: Freed, *, reuse: bool) -> None:
        """The catalog no longer names a page: its file goes, or is kept to be written again."""
        self.forget(freed.number)
        if freed.number in self._pages:
            # A write in it is under way: it goes when that ends, unless that names it again.
            return
        path = page_path(self.directory, freed.number)
        if not (reuse and self._spares.offer(path, freed)):
            self._remove(path)

    def forget(self, number: int) -> None:
        """Append no more to a page, since the catalog does not name it."""
        page = self._pages.get(number)
        if page is None:
            return
        page.doomed = True
        if page.current:
            for key in [key for key, current in self._current.items() if current is page]:
                del self._current[key]
            page.current = 0
        if not page.pending:
            self._close(page)

    def tick(self) -> None:
        """Let go of spare files that nobody wanted."""
        self._spares.tick()

    def close(self) -> None:
        """Close every file. Pages that were never published are removed."""
        self._current.clear()
        for page in list(self._pages.values()):
            page.pending = page.current = 0
            self._close_if_idle(page)
        self._spares.close()

    def discard(self, page: OpenPage) -> None:
        """A page was made, but no write to it came about."""
        self._close_if_idle(page)

    def _from_spare(self, layout: PageLayout) -> OpenPage | None:
        spare = self._spares.take(layout)
        return None if spare is None else OpenPage(spare.number, layout, spare.fd, spare)

    def _new_file(self, layout: PageLayout) -> OpenPage:
        number = self._new_number(tail=layout.tail)
        path = page_path(self.directory, number)
        page = OpenPage(number, layout, self._open(path))
        # Held as long as the file is open: nobody may take it for a spare. See spares.py.
        fcntl.flock(page.fd, fcntl.LOCK_SH)
        try:
            page.write(memoryview(layout.encode(number)), 0)
        except BaseException:
            os.close(page.fd)
            os.unlink(path)
            raise
        return page

    def _new_number(self, *, tail: bool) -> int:
        number = self._next
        self._next += 1
        return number | TAIL if tail else number

    def _rename(self, path: str) -> int:
        number = self._new_number(tail=is_tail(int(os.path.basename(path), 16)))
        os.rename(path, page_path(self.directory, number))
        return number

    def _open(self, path: str) -> int:
        while True:
            try:
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno in FULL:
                    raise NoSpace("a page") from error
                if error.errno not in NO_HANDLES:
                    raise DirectoryError(str(self.directory), error.strerror or str(error)) from error
                if not self._current:
                    raise NoHandles from error
                self._retire(next(iter(self._current)))

    def _retire(self, key: _Place) -> None:
        page = self._current.pop(key, None)
        if page is not None:
            page.current -= 1
            self._close_if_idle(page)

    def _close_if_idle(self, page: OpenPage) -> None:
        if page.pending or page.current or page.number not in self._pages:
            return
        self._close(page)
        if page.doomed or not page.published:
            self._remove(page_path(self.directory, page.number))

    def _close(self, page: OpenPage) -> None:
        del self._pages[page.number]
        os.close(page.fd)

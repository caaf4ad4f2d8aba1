"""Page files mapped for reading: found, checked once, kept while they are worth it.

Maps are read-only. A view keeps its map alive, and with it the bytes, also after the file is gone: that is
POSIX.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash

from .digest import Piece
from .errors import NoHandles, PageCorrupt, PageGone
from .files import NO_HANDLES
from .page import BLOCK, BadHeader, PageLayout, page_path, parse_header, region_key
from .reaper import Reaper

Pieces = Callable[[int, int, int, int], list[Piece]]
"""(page, region, start, end) → the digest pieces over those rows."""


class PageMap:
    """One mapped page and what of it has been verified."""

    __slots__ = ("layout", "number", "verified", "view")

    def __init__(self, number: int, layout: PageLayout, view: memoryview) -> None:
        self.number = number
        self.layout = layout
        self.view = view
        self.verified: dict[int, list[tuple[int, int]]] = {}

    def is_verified(self, region: int, start: int, end: int) -> bool:
        """Whether every row of [start, end) of the region has been checked."""
        return any(low <= start and end <= high for low, high in self.verified.get(region, ()))

    def mark_verified(self, region: int, start: int, end: int) -> None:
        """Remember that the rows [start, end) were checked."""
        merged: list[tuple[int, int]] = []
        for low, high in self.verified.get(region, ()):
            if high < start or end < low:
                merged.append((low, high))
            else:
                start, end = min(start, low), max(end, high)
        merged.append((start, end))
        self.verified[region] = merged


class PageMaps:
    """The maps of this process, the least recently used dropped first.

    Args:
        directory: Where page files are.
        limit: Maps kept.
        pieces: Reads the digest pieces over a range of rows from the catalog.
        reaper: Unmaps large maps.
        leave: All called when views must go that anybody keeps for later: a map is let go of, or what was
            verified of it is forgotten.
    """

    def __init__(
        self, directory: Path, limit: int, pieces: Pieces, reaper: Reaper, leave: Sequence[Callable[[], None]]
    ) -> None:
        self._leave = leave
        self._reaper = reaper
        self._directory = directory
        self._limit = limit
        self._pieces = pieces
        self._maps: OrderedDict[int, PageMap] = OrderedDict()

    def rows(self, page: int, layer: int, side: int, row: int, count: int) -> memoryview:
        """The packed bytes of rows of a region, checked against their digests the first time.

        Raises:
            PageGone: The file is not there.
            PageCorrupt: The file is not this page, too short, or its bytes fail their digest.
            NoHandles: The process has no file handles left.
        """
        found, offset, end = self.locate(page, layer, side, row, count)
        region = region_key(layer, side)
        if not found.is_verified(region, row, row + count):
            row_bytes = found.layout.row_bytes(layer, side)
            self._verify(found, region, row, row + count, offset - row * row_bytes, row_bytes)
        return found.view[offset:end]

    def check(self, page: int) -> None:
        """Map a page, which checks its header. Raises as `rows`."""
        self._get(page)

    def locate(self, page: int, layer: int, side: int, row: int, count: int) -> tuple[PageMap, int, int]:
        """The map of a page, and where in it rows of a region begin and end. Raises as `rows`."""
        found = self._get(page)
        layout = found.layout
        if not layout.has(layer, side):
            raise PageCorrupt(page, f"no region for layer {layer}, side {side}")
        row_bytes = layout.row_bytes(layer, side)
        offset = layout.offset(layer, side) + row * row_bytes
        end = offset + count * row_bytes
        if row + count > layout.capacity:
            raise PageCorrupt(page, f"rows {row}..{row + count} are beyond its capacity")
        if end > len(found.view):
            found = self._reopen(found, end)
        return found, offset, end

    def _forget(self) -> None:
        for forget in self._leave:
            forget()

    def forget_verified(self, page: int) -> None:
        """Forget what was verified of a page, so that the next reads check it again."""
        self._forget()
        found = self._maps.get(page)
        if found is not None:
            found.verified.clear()

    def drop(self, page: int) -> None:
        """Let go of a page; views of it stay valid."""
        found = self._maps.pop(page, None)
        if found is not None:
            self._forget()
            self._reaper.drop(found.view)

    def numbers(self) -> list[int]:
        """The pages mapped now."""
        return list(self._maps)

    def close(self) -> None:
        """Let go of every page."""
        self._forget()
        self._maps.clear()

    def _get(self, page: int) -> PageMap:
        found = self._maps.get(page)
        if found is not None:
            self._maps.move_to_end(page)
            return found
        found = self._open(page)
        self._maps[page] = found
        while len(self._maps) > self._limit:
            self.drop(next(iter(self._maps)))
        return found

    def _reopen(self, old: PageMap, end: int) -> PageMap:
        """The file has grown since it was mapped, or it was never long enough."""
        found = self._open(old.number)
        if end > len(found.view):
            raise PageCorrupt(old.number, f"{len(found.view)} bytes long, rows reach to {end}")
        found.verified = old.verified
        self._maps[old.number] = found
        return found

    def _open(self, page: int) -> PageMap:
        view = self._map_file(page)
        try:
            number, layout = parse_header(view)
        except BadHeader as error:
            raise PageCorrupt(page, str(error)) from error
        if number != page:
            raise PageCorrupt(page, f"holds page {number:016x}")
        if len(view) % BLOCK:
            raise PageCorrupt(page, f"{len(view)} bytes long, not whole blocks")
        return PageMap(page, layout, view)

    def _map_file(self, page: int) -> memoryview:
        path = page_path(self._directory, page)
        while True:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    # The map keeps the handle, and with it the lock: see spares.py.
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
                finally:
                    os.close(fd)
            except (FileNotFoundError, BlockingIOError):
                raise PageGone(page) from None
            except ValueError as error:
                raise PageCorrupt(page, "an empty file") from error
            except OSError as error:
                if error.errno not in NO_HANDLES:
                    raise PageCorrupt(page, error.strerror or str(error)) from error
                if not self._maps:
                    raise NoHandles from error
                # Dropped here and now: its handle is needed.
                self._maps.popitem(last=False)
                self._forget()

    def _verify(self, found: PageMap, region: int, start: int, end: int, base: int, row_bytes: int) -> None:
        position = start
        for row, rows, digest in self._pieces(found.number, region, start, end):
            low, high = base + row * row_bytes, base + (row + rows) * row_bytes
            if row > position:
                break
            if high > len(found.view):
                raise PageCorrupt(found.number, f"{len(found.view)} bytes long, rows reach to {high}")
            if not found.is_verified(region, row, row + rows):
                if xxhash.xxh3_64_intdigest(found.view[low:high]) != digest:
                    raise PageCorrupt(found.number, f"rows {row}..{row + rows} fail their digest")
                found.mark_verified(region, row, row + rows)
            position = row + rows
        if position < end:
            raise PageCorrupt(found.number, f"no digest for rows {position}..{end}")

"""Extent lists: which page rows make up the rows [0, n) of a layer.

An extent is (page, page_row, count). A list covers its rows in order and without gaps, holds no empty
extent, and no two neighbors that could be one: page rows that follow one another in one page are one
extent. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable

Extent = tuple[int, int, int]
Extents = tuple[Extent, ...]

TAIL = 1 << 31
"""Bit of the number of a page whose rows are not coded yet: those after a layer's last closed group."""


def is_tail(page: int) -> bool:
    """Whether a page holds rows that are not coded yet."""
    return bool(page & TAIL)


def rows_of(extents: Extents) -> int:
    """Number of rows covered."""
    if len(extents) == 1:
        return extents[0][2]
    return sum(extent[2] for extent in extents)


def slice_rows(extents: Extents, start: int, end: int) -> Extents:
    """The extents of rows [start, end), which must lie within the list."""
    found: list[Extent] = []
    position = 0
    for page, page_row, count in extents:
        low, high = max(start, position), min(end, position + count)
        if low < high:
            found.append((page, page_row + low - position, high - low))
        position += count
        if position >= end:
            break
    return tuple(found)


def splice(extents: Extents, start: int, run: Extent) -> Extents:
    """Put `run` over rows [start, start + count), which may reach past the end but not start beyond it."""
    if len(extents) == 1:
        page, page_row, count = extents[0]
        if start == count and page == run[0] and page_row + count == run[1]:
            return ((page, page_row, count + run[2]),)
    total = rows_of(extents)
    end = start + run[2]
    if not start and end >= total:
        return (run,)
    tail = slice_rows(extents, end, total) if end < total else ()
    return joined((*slice_rows(extents, 0, start), run, *tail))


def cut(extents: Extents, rows: int) -> Extents:
    """The first `rows` rows; the list itself when it is no longer than that."""
    return extents if rows_of(extents) <= rows else slice_rows(extents, 0, rows)


def joined(extents: Iterable[Extent]) -> Extents:
    """One list of extents that follow each other; neighbors that are one run become one."""
    merged: list[Extent] = []
    for extent in extents:
        if merged:
            page, page_row, count = merged[-1]
            if page == extent[0] and page_row + count == extent[1]:
                merged[-1] = (page, page_row, count + extent[2])
                continue
        merged.append(extent)
    return tuple(merged)

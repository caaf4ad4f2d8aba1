"""Digests: xxh3-64 of each piece of a region, kept in the catalog.

A piece is a run of rows of one region that was written in one go or appended piecewise by its page's
writer, and takes at most `WINDOW_BYTES`. Pieces of a region do not overlap and cover every published row.
Key: page u64, region u32, first row u32, big-endian, so that the pieces of a page, and of a region, are
neighbors; value: rows u32, digest u64, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from .buffers import WINDOW_BYTES
from .catalog import Catalog, Reader

KEY = struct.Struct(">QII")
_VALUE = struct.Struct("<IQ")

Piece = tuple[int, int, int]
"""First row, rows, digest."""


def piece_rows(row_bytes: int) -> int:
    """Rows of a full piece."""
    return max(1, WINDOW_BYTES // row_bytes)


def encode_piece(page: int, region: int, piece: Piece) -> tuple[bytes, bytes]:
    """Key and value of a piece."""
    row, rows, digest = piece
    return KEY.pack(page, region, row), _VALUE.pack(rows, digest)


def pieces_over(reader: Reader, page: int, region: int, start: int, end: int) -> Iterator[Piece]:
    """The pieces that hold rows of [start, end), in order."""
    prefix = KEY.pack(page, region, 0)[:12]
    first = _floor(reader, page, region, start)
    for key, value in reader.scan("digests", start=KEY.pack(page, region, first), prefix=prefix):
        row = KEY.unpack(key)[2]
        if row >= end:
            return
        rows, digest = _VALUE.unpack(value)
        if row + rows > start:
            yield row, rows, digest


def pieces_of(catalog: Catalog) -> Callable[[int, int, int, int], list[Piece]]:
    """Reads `pieces_over` rows of a page in a snapshot of its own."""

    def pieces(page: int, region: int, start: int, end: int) -> list[Piece]:
        with catalog.snapshot() as reader:
            return list(pieces_over(reader, page, region, start, end))

    return pieces


def filled_rows(reader: Reader, page: int) -> dict[int, int]:
    """How far each region of a page was written."""
    filled: dict[int, int] = {}
    for key, value in reader.scan("digests", prefix=page.to_bytes(8, "big")):
        _, region, row = KEY.unpack(key)
        filled[region] = row + _VALUE.unpack(value)[0]
    return filled


def written_rows(reader: Reader, page: int) -> dict[int, int]:
    """How many rows of each region of a page were written and published at some time."""
    written: dict[int, int] = {}
    for key, value in reader.scan("digests", prefix=page.to_bytes(8, "big")):
        region = KEY.unpack(key)[1]
        written[region] = written.get(region, 0) + _VALUE.unpack(value)[0]
    return written


def _floor(reader: Reader, page: int, region: int, row: int) -> int:
    """First row of the piece that begins at or before `row`, or `row`."""
    key = reader.at_or_before("digests", KEY.pack(page, region, row))
    if key is None:
        return row
    found: tuple[int, int, int] = KEY.unpack(key)
    return found[2] if found[:2] == (page, region) else row

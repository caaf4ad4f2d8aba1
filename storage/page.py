"""The page file: its layout, and its header as bytes. The contract is docs/page-format.md.

A page holds, for up to two sides (K = 0, V = 1) and each layer, one region of `capacity` rows. Regions
start at multiples of 4 KiB and lie in the order k0 v0 k1 v1 …; a page of kind STATE holds one opaque run of
bytes instead.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path

import xxhash

from .extents import is_tail
from .schema import Schema

MAGIC = b"PIONPAGE"
VERSION = 1
BLOCK = 4096
"""Regions start at multiples of this, and files are whole multiples of it."""

K_SIDE, V_SIDE = 0, 1

_FIXED = struct.Struct("<8sIIQQBBH")
_SIDE = struct.Struct("<BI")
_SEAL = struct.Struct("<Q")


class PageKind(IntEnum):
    """What a page holds."""

    ROWS = 0
    STATE = 1


class BadHeader(ValueError):
    """The bytes are no page header of a version we read."""


def align(length: int) -> int:
    """Round up to whole blocks."""
    return (length + BLOCK - 1) // BLOCK * BLOCK


def page_path(directory: Path, page: int) -> str:
    """The file of a page, as a string: pages come and go too often for path objects."""
    return f"{directory}/{page:016x}"


def region_key(layer: int, side: int) -> int:
    """The number of a region within any page."""
    return layer * 2 + side


@dataclass(frozen=True)
class PageLayout:
    """Where the regions of a page lie.

    Attributes:
        kind: Rows, or one opaque state.
        capacity: Rows a region can hold; for a state its length in bytes.
        sides: Schema of each side present; empty for a state. Two sides are both uniform, or list equally
            many layers.
        tail: Whether the rows are those after the closed groups; then `sides` say how they are until coded.
    """

    kind: PageKind
    capacity: int
    sides: Mapping[int, Schema]
    tail: bool = False

    @cached_property
    def header_bytes(self) -> int:
        """Length of the header, whole blocks."""
        sides = sum(_SIDE.size + len(schema.encode()) for schema in self.sides.values())
        return align(_FIXED.size + sides + _SEAL.size)

    def row_bytes(self, layer: int, side: int) -> int:
        """Bytes of one row of a region; the rows of a state are its bytes."""
        return 1 if self.kind is PageKind.STATE else self.sides[side].row_bytes(layer)

    @cached_property
    def _layers(self) -> int | None:
        return next(iter(self.sides.values())).num_layers if self.sides else None

    @cached_property
    def _offsets(self) -> dict[int, int]:
        """Offset of each region of the listed layers, or of layer 0 when the layers are open."""
        offsets: dict[int, int] = {}
        position = self.header_bytes
        for layer in range(self._layers or 1):
            for side in sorted(self.sides):
                offsets[region_key(layer, side)] = position
                position += align(self.capacity * self.sides[side].row_bytes(layer))
        offsets[-1] = position
        return offsets

    def offset(self, layer: int, side: int) -> int:
        """Where the region of a layer and side starts. Raises `KeyError` for a region it does not have."""
        if self.kind is PageKind.STATE:
            return self.header_bytes
        if self._layers is None:
            stride = self._offsets[-1] - self.header_bytes
            return self._offsets[side] + layer * stride
        return self._offsets[region_key(layer, side)]

    def has(self, layer: int, side: int) -> bool:
        """Whether the page has a region for this layer and side; a state is layer 0, side 0."""
        if self.kind is PageKind.STATE:
            return layer == side == 0
        return side in self.sides and (self._layers is None or 0 <= layer < self._layers)

    def file_bytes(self, layer: int) -> int:
        """Length a file must have so that every region up to `layer` lies within it.

        Where the layers are open it grows in powers of two, so that a reader seldom has to map it anew.
        """
        if self.kind is PageKind.STATE:
            return self.header_bytes + align(self.capacity)
        if self._layers is not None:
            return self._offsets[-1]
        stride = self._offsets[-1] - self.header_bytes
        layers = 1 << max(3, layer.bit_length())
        return self.header_bytes + layers * stride

    def encode(self, page: int) -> bytes:
        """The header of page number `page`."""
        parts = [
            _FIXED.pack(MAGIC, VERSION, self.header_bytes, page, self.capacity, self.kind, len(self.sides), 0)
        ]
        for side, schema in sorted(self.sides.items()):
            encoded = schema.encode()
            parts += [_SIDE.pack(side, len(encoded)), encoded]
        body = b"".join(parts).ljust(self.header_bytes - _SEAL.size, b"\0")
        return body + _SEAL.pack(xxhash.xxh3_64_intdigest(body))


def parse_header(data: bytes | memoryview) -> tuple[int, PageLayout]:
    """The page number and layout written in the first bytes of a page file.

    Args:
        data: The start of the file; at least the header, more does no harm.

    Raises:
        BadHeader: Wrong magic, unknown version, damaged bytes, or fields that contradict one another.
    """
    data = memoryview(data)
    if len(data) < BLOCK:
        raise BadHeader("shorter than a header")
    magic, version, header_bytes, page, capacity, kind, sides, reserved = _FIXED.unpack_from(data)
    if magic != MAGIC:
        raise BadHeader("no page file")
    if version != VERSION:
        raise BadHeader(f"page version {version}, this build reads {VERSION}")
    if header_bytes % BLOCK or not BLOCK <= header_bytes <= len(data):
        raise BadHeader("damaged header length")
    body, seal = data[: header_bytes - _SEAL.size], data[header_bytes - _SEAL.size : header_bytes]
    if xxhash.xxh3_64_intdigest(body) != _SEAL.unpack(seal)[0]:
        raise BadHeader("damaged header")
    if kind not in (PageKind.ROWS, PageKind.STATE) or reserved or not capacity:
        raise BadHeader("unknown page kind")
    schemas = _parse_sides(body[_FIXED.size :], sides)
    if bool(schemas) != (kind == PageKind.ROWS) or len({s.num_layers for s in schemas.values()}) > 1:
        raise BadHeader("sides do not fit the page kind")
    layout = PageLayout(PageKind(kind), capacity, schemas, is_tail(page))
    if layout.header_bytes != header_bytes:
        raise BadHeader("damaged header length")
    return page, layout


def _parse_sides(data: memoryview, count: int) -> dict[int, Schema]:
    schemas: dict[int, Schema] = {}
    position = 0
    for _ in range(count):
        if position + _SIDE.size > len(data):
            raise BadHeader("damaged side table")
        side, length = _SIDE.unpack_from(data, position)
        position += _SIDE.size
        try:
            schemas[side] = Schema.decode(bytes(data[position : position + length]))
        except (ValueError, LookupError) as error:
            raise BadHeader(f"unreadable schema: {error}") from error
        position += length
    if len(schemas) != count or not set(schemas) <= {K_SIDE, V_SIDE}:
        raise BadHeader("damaged side table")
    return schemas

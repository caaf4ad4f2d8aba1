"""The records of the catalog, each followed by its xxh3-64. docs/catalog.md lists every field.

Decoded session records are shared through a cache and must not be changed; namespace records are decoded anew
for each writer and may be.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Self

import msgpack
import xxhash

from .errors import CatalogCorrupt, OtherVersion
from .extents import Extents, rows_of
from .schema import Schema

Raw = bytes
"""A stored form. The records below have a field named `bytes`."""

SEAL_BYTES = 8

NO_TOKENS = -1
"""`NamespaceRecord.tokens` of a namespace whose sides hold rows but do not agree."""


@dataclass(slots=True)
class SessionRecord:
    """A session: its schema and where its rows are.

    Attributes:
        sid: Its name.
        slot: Serial number of this incarnation; never used again.
        unit: The namespace or single unit it belongs to.
        side: K or V within the unit.
        schema: Formats and dims of its layers.
        generation: Moves with every change of its rows.
        layers: Extent list of each layer.
        pages: How many extents name each page.
        rows: Rows of each layer; not stored, follows from `layers`.
        live_bytes: Bytes of the rows that can be read; not stored either.
        packed: The stored form of each layer's extents, once it was needed: a write changes one of many.
    """

    sid: bytes
    slot: int
    unit: bytes
    side: int
    schema: Schema
    generation: int
    layers: tuple[Extents, ...]
    pages: Mapping[int, int]
    rows: tuple[int, ...]
    live_bytes: int
    packed: tuple[bytes, ...] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def new(cls, sid: bytes, slot: int, unit: bytes, side: int, schema: Schema, generation: int) -> Self:
        """A session without rows."""
        return cls(sid, slot, unit, side, schema, generation, (), {}, (), 0)

    def with_layers(self, layers: Sequence[Extents], generation: int) -> SessionRecord:
        """The session with other extents in every layer; layers that are not listed hold no rows."""
        record = SessionRecord.new(self.sid, self.slot, self.unit, self.side, self.schema, generation)
        for layer, extents in enumerate(layers):
            if extents:
                record = record.with_layer(layer, extents, generation)
        return record

    def rows_in(self, layer: int) -> int:
        """Rows of one layer, 0 for a layer never stored."""
        return self.rows[layer] if layer < len(self.rows) else 0

    def extents_of(self, layer: int) -> Extents:
        """Extents of one layer, none for a layer never stored."""
        return self.layers[layer] if layer < len(self.layers) else ()

    def with_layer(self, layer: int, extents: Extents, generation: int) -> SessionRecord:
        """The session with other extents in one layer, at a cost that does not depend on the other layers."""
        rows, before = rows_of(extents), self.extents_of(layer)
        grown = self.schema.bytes_of(layer, extents)
        if before:
            grown -= self.schema.bytes_of(layer, before)
        missing = max(0, layer - len(self.layers))
        pages = dict(self.pages)
        for page, _, _ in extents:
            pages[page] = pages.get(page, 0) + 1
        for page, _, _ in before:
            pages[page] -= 1
            if not pages[page]:
                del pages[page]
        packed = self.packed
        if packed is not None:
            packed = (*packed[:layer], *(_NO_EXTENTS,) * missing, _pack(extents), *packed[layer + 1 :])
        return SessionRecord(
            self.sid,
            self.slot,
            self.unit,
            self.side,
            self.schema,
            generation,
            (*self.layers[:layer], *((),) * missing, extents, *self.layers[layer + 1 :]),
            pages,
            (*self.rows[:layer], *(0,) * missing, rows, *self.rows[layer + 1 :]),
            self.live_bytes + grown,
            packed,
        )

    def encode(self) -> bytes:
        """The stored form."""
        if self.packed is None:
            self.packed = tuple(map(_pack, self.layers))
        # One array of eight, of which the layers are put together from what each of them is by itself.
        head = _pack((self.sid, self.slot, self.unit, self.side, self.schema.encode(), self.generation))
        count, pages = _pack_array_header(len(self.packed)), _pack(tuple(self.pages.items()))
        return seal(b"".join((_ARRAY_OF_EIGHT, head[1:], count, *self.packed, pages)))

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """The record of a stored form."""
        sid, slot, unit, side, encoded, generation, layers, pages = msgpack.unpackb(
            unseal(raw), use_list=False
        )
        schema = Schema.decode(encoded)
        rows = tuple(map(rows_of, layers))
        live = sum(schema.bytes_of(layer, extents) for layer, extents in enumerate(layers) if extents)
        return cls(sid, slot, unit, side, schema, generation, layers, dict(pages), rows, live)


_packer = msgpack.Packer()
"""`msgpack.packb` would make a packer, and its buffer of 256 KiB, for every record."""
_pack: Callable[[object], bytes] = _packer.pack
_pack_array_header: Callable[[int], bytes] = _packer.pack_array_header
_ARRAY_OF_EIGHT = _pack_array_header(8)
_NO_EXTENTS = _pack(())


def seal(packed: bytes) -> bytes:
    """A record with its checksum."""
    return packed + xxhash.xxh3_64_digest(packed)


def unseal(raw: bytes) -> bytes:
    """A record without its checksum. LMDB has none: a flipped bit in an extent would be other rows.

    Raises:
        CatalogCorrupt: The record fails it.
    """
    packed = raw[:-SEAL_BYTES]
    if xxhash.xxh3_64_digest(packed) != raw[-SEAL_BYTES:]:
        raise CatalogCorrupt("a record fails its checksum")
    return packed


@dataclass(slots=True)
class NamespaceRecord:
    """A unit of visibility and eviction, as it was at one moment.

    Attributes:
        unit: Kind byte and name.
        uid: Serial number of this incarnation; keys its snapshots, states, blocks and manifest.
        created: When it was made, seconds.
        used: When it was last used, seconds.
        generation: The greatest generation of its sessions and states.
        tokens: Rows that every stored layer of both sides holds; 0 when there are none, -1 when the sides
            disagree.
        layers: How many layers of a side hold rows.
        states: Number of state blobs.
        bytes: Bytes of rows and states that can be read.
        prefill_us: Measured time its rows took to compute, 0 when unknown.
        hits: Reads credited to it.
        priority: Its place in the eviction queue.
        pins: How many pins hold it.
        expires: When it ends, seconds; 0 for never.
        owner: The worker that last changed what can be read of it.
    """

    unit: bytes
    uid: int
    created: float
    used: float
    generation: int = 0
    tokens: int = 0
    layers: int = 0
    states: int = 0
    bytes: int = 0
    prefill_us: int = 0
    hits: int = 0
    priority: float = 0.0
    pins: int = 0
    expires: float = 0.0
    owner: int = 0

    @property
    def namespace(self) -> Raw:
        """Its name."""
        return self.unit[1:]

    @property
    def is_hit(self) -> bool:
        """Whether a lookup may answer with it, expiry and quarantine aside."""
        return self.tokens > 0 or (self.tokens == 0 and self.states > 0)

    def has_expired(self, now: float) -> bool:
        """Whether its time to live is over."""
        return 0 < self.expires <= now

    def encode(self) -> Raw:
        """The stored form."""
        return seal(_NAMESPACE.pack(*_namespace_numbers(self)) + self.unit)

    @classmethod
    def decode(cls, raw: Raw) -> Self:
        """The record of a stored form."""
        unseal(raw)
        return cls(raw[_NAMESPACE.size : -SEAL_BYTES], *_NAMESPACE.unpack_from(raw))


_NAMESPACE = struct.Struct("<QddQqIIQQQdIdI")
_namespace_numbers = attrgetter(*(field.name for field in fields(NamespaceRecord) if field.name != "unit"))


@dataclass(slots=True)
class PageRecord:
    """A page file.

    Attributes:
        refs: How many sessions and states name it.
        bytes: Disk it takes.
        lent: Whether clients were told where it is, and may have it mapped.
    """

    refs: int
    bytes: int
    lent: bool = False

    def encode(self) -> Raw:
        """The stored form."""
        return seal(_PAGE.pack(self.refs, self.bytes, self.lent))

    @classmethod
    def decode(cls, raw: Raw) -> Self:
        """The record of a stored form."""
        return cls(*_PAGE.unpack(unseal(raw)))


_PAGE = struct.Struct("<QQ?")


@dataclass(slots=True)
class StateRecord:
    """A state blob: the page that holds nothing else, its length, and the generation that stored it."""

    page: int
    length: int
    generation: int

    def encode(self) -> Raw:
        """The stored form."""
        return seal(_STATE.pack(self.page, self.length, self.generation))

    @classmethod
    def decode(cls, raw: Raw) -> Self:
        """The record of a stored form."""
        return cls(*_STATE.unpack(unseal(raw)))


_STATE = struct.Struct("<QQQ")


CATALOG_VERSION = 3
"""Moves when a stored form changes, so that no build reads what another one wrote as something else."""


@dataclass(slots=True)
class Counters:
    """The one record of store-wide numbers.

    Attributes:
        version: Version of the catalog's contents.
        bytes: Bytes of all pages and plain keys.
        rows: Rows of all sessions, overwritten ones not counted.
        evictions: Namespaces evicted.
        inflation: Priority of the last evicted namespace: what ages the others.
        next_serial: Next slot or uid.
        next_snapshot: Next snapshot number.
        next_writer: Next writer number: the upper half of a page number.
        freed: Moves whenever pages are freed.
        quarantined: Namespaces quarantined.
        generation_base: Added to transaction ids to make generations, so that none repeats after a roll-back.
        key_bytes: Bytes of plain keys.
        keys_expired: Plain keys that have ended.
        keys_evicted: Plain keys removed before their deadline to make room.
    """

    version: int = CATALOG_VERSION
    bytes: int = 0
    rows: int = 0
    evictions: int = 0
    inflation: float = 0.0
    next_serial: int = 1
    next_snapshot: int = 1
    next_writer: int = 1
    freed: int = 0
    quarantined: int = 0
    generation_base: int = 0
    key_bytes: int = 0
    keys_expired: int = 0
    keys_evicted: int = 0

    def copy(self) -> Self:
        """The same numbers, to be changed."""
        return type(self)(*_counts(self))

    def encode(self) -> Raw:
        """The stored form."""
        return seal(_pack(_counts(self)))

    @classmethod
    def decode(cls, raw: Raw) -> Self:
        """The record of a stored form. Raises `OtherVersion`."""
        numbers = msgpack.unpackb(unseal(raw))
        if numbers[0] != CATALOG_VERSION:
            raise OtherVersion(numbers[0], CATALOG_VERSION)
        return cls(*numbers)


_counts = attrgetter(*(field.name for field in fields(Counters)))

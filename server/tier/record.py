"""What the tier keeps for a prefix: a record that says what it is, and its bytes in pieces.

The rows are a sequence of *segments*, each of which holds rows [start, end) of every layer that has any, in
the order k0 v0 k1 v1 …, and is cut into pieces of at most `PIECE_BYTES`. A prefix that grew gets one segment
more; the pieces before it stay as they are. States follow in a sequence of pieces of their own. The record
names each piece with its length and xxh3-128, and is sealed by an xxh3-64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import msgpack
import numpy as np
import xxhash
from pionkv.storage import Image, Schema, StoredRuns

PIECE_BYTES = (4 << 20) - 64
"""The largest value that is written. With its header it fits 4 MiB: the next size of jemalloc's is 5 MiB."""
VERSION = 1
SEGMENTS = 16
"""A prefix of more segments is written anew as one."""
_SEAL = struct.Struct("<Q")
_TOKEN_IDS = 1
"""Block size of a table whose hashes are token ids; they are kept in four bytes each."""


class BadRecord(ValueError):
    """The bytes are no record of this name that this build reads."""


class Piece(NamedTuple):
    """One value: its id, its length in bytes and the xxh3-128 of its bytes."""

    id: bytes
    length: int
    digest: bytes


class GroupedLayer(NamedTuple):
    """How a layer and side that codes groups of rows is stored; see `StoredRuns`."""

    layer: int
    side: int
    closed: tuple[tuple[int, int], ...]
    tail: int

    @property
    def runs(self) -> StoredRuns:
        """As the store takes it."""
        return StoredRuns(self.closed, self.tail)


class Segment(NamedTuple):
    """Rows [start, end) of every layer."""

    start: int
    end: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A prefix as the tier keeps it.

    Attributes:
        name: Its namespace.
        tokens: Rows of each layer that has any.
        layers: Those layers.
        schemas: Encoded schemas of the K and the V side; None without sessions.
        segments: The rows.
        states: Number and length of each state.
        state_pieces: The states, one after the other.
        blocks: Tokens per block, hashes and model.
        manifest: As it was set.
        prefill_us: Measured time that the rows took to compute, microseconds; 0 when unknown.
        expires: When it ends, milliseconds since 1970; 0 for never.
        origin: The server that wrote it.
        groups: How the layers that code groups are stored. With one of them there is but one segment.
    """

    name: bytes
    tokens: int
    layers: tuple[int, ...]
    schemas: tuple[bytes, bytes] | None
    segments: tuple[Segment, ...]
    states: tuple[tuple[int, int], ...]
    state_pieces: tuple[Piece, ...]
    blocks: tuple[int, bytes, bytes] | None
    manifest: bytes | None
    prefill_us: int
    expires: int
    origin: str
    groups: tuple[GroupedLayer, ...] = ()

    def pieces(self) -> Iterator[Piece]:
        """Every piece, in the order in which they are read."""
        for segment in self.segments:
            yield from segment.pieces
        yield from self.state_pieces

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.length for piece in self.pieces())

    @property
    def content(self) -> bytes:
        """Names the rows and states, whatever else is said about them."""
        groups = (self.groups,) if self.groups else ()
        hasher = xxhash.xxh3_128(
            msgpack.packb((self.tokens, self.layers, self.schemas, self.states, *groups))
        )
        for segment in self.segments:
            hasher.update(struct.pack("<QQ", segment.start, segment.end))
        for piece in self.pieces():
            hasher.update(piece.digest)
        return hasher.digest()

    def same(self, other: Record) -> bool:
        """Whether two records say the same, whoever wrote them."""
        return replace(self, origin="") == replace(other, origin="")

    def decoded_schemas(self) -> tuple[Schema, Schema] | None:
        """The schemas. Raises `BadRecord` for formats that this build does not know."""
        if self.schemas is None:
            return None
        try:
            return Schema.decode(self.schemas[0]), Schema.decode(self.schemas[1])
        except (ValueError, LookupError) as error:
            raise BadRecord(f"a schema that this build does not read ({error})") from error

    def token_ids(self) -> np.ndarray[tuple[int], np.dtype[np.uint32]] | None:
        """The token ids, if its table of blocks lists them."""
        if self.blocks is None or self.blocks[0] != _TOKEN_IDS:
            return None
        values = np.frombuffer(self.blocks[1], "<u8")
        return None if not len(values) or int(values.max()) >> 32 else values.astype(np.uint32)

    def encode(self) -> bytes:
        """The stored form."""
        fields = asdict(self)
        if not self.groups:
            # Builds that know of no groups read it, too.
            del fields["groups"]
        ids = self.token_ids()
        if ids is not None and self.blocks is not None:
            fields["blocks"] = (0, ids.astype("<u4").tobytes(), self.blocks[2])
        packed: bytes = msgpack.packb({"format": VERSION, **fields})
        return packed + _SEAL.pack(xxhash.xxh3_64_intdigest(packed))


def decode(raw: bytes, name: bytes) -> Record:
    """The record of a stored form. Raises `BadRecord`."""
    packed = raw[: -_SEAL.size]
    if len(raw) <= _SEAL.size or _SEAL.unpack(raw[-_SEAL.size :])[0] != xxhash.xxh3_64_intdigest(packed):
        raise BadRecord("it fails its checksum")
    try:
        fields = msgpack.unpackb(packed, use_list=False)
        version = fields.pop("format")
        if version != VERSION:
            raise BadRecord(f"format {version}, this build reads {VERSION}")
        fields["segments"] = tuple(
            Segment(start, end, tuple(Piece(*piece) for piece in pieces))
            for start, end, pieces in fields["segments"]
        )
        fields["groups"] = tuple(GroupedLayer(*each) for each in fields.get("groups", ()))
        fields["state_pieces"] = tuple(Piece(*piece) for piece in fields["state_pieces"])
        if fields["blocks"] is not None and fields["blocks"][0] == 0:
            ids = np.frombuffer(fields["blocks"][1], "<u4")
            fields["blocks"] = (_TOKEN_IDS, ids.astype("<u8").tobytes(), fields["blocks"][2])
        record = Record(**fields)
    except BadRecord:
        raise
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise BadRecord(f"it cannot be read ({error})") from error
    if record.name != name:
        raise BadRecord(f"it is of another prefix, {record.name!r}")
    return record


class Run(NamedTuple):
    """Rows [start, end) of one layer and side."""

    layer: int
    side: int
    start: int
    end: int
    row_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of the run."""
        return (self.end - self.start) * self.row_bytes


def runs_of(schemas: tuple[Schema, Schema], layers: tuple[int, ...], start: int, end: int) -> Iterator[Run]:
    """The rows of a segment in their order."""
    for layer in layers:
        for side, schema in enumerate(schemas):
            yield Run(layer, side, start, end, schema.row_bytes(layer))


def described(image: Image, origin: str) -> Record:
    """The record of a prefix without any pieces yet."""
    found = image.record
    schemas = image.schemas
    return Record(
        name=found.namespace,
        tokens=found.tokens,
        layers=image.layers,
        schemas=None if schemas is None else (schemas[0].encode(), schemas[1].encode()),
        segments=(),
        states=image.states,
        state_pieces=(),
        blocks=image.blocks,
        manifest=image.manifest,
        prefill_us=found.prefill_us,
        expires=round(found.expires * 1000),
        origin=origin,
    )

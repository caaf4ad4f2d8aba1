"""The schema of a session: which format and dim the rows of each layer have.

A uniform schema gives every layer, however many there will be, one `LayerSpec`; a per-layer schema lists
them. The encoded form is part of the page and catalog formats: kind u8 (0 uniform, 1 per layer), then runs
of equal layers as (format tag u8, dim u32, rope u32, head_dim u32, layers u16), little-endian; a uniform
schema is one run of 0 layers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import groupby

from pionkv.kernels.formats import LayerSpec, format_by_name, format_by_tag

from .errors import LayerLimit
from .extents import Extents, is_tail, rows_of

_KIND = struct.Struct("<B")
_RUN = struct.Struct("<BIIIH")
_UNIFORM, _PER_LAYER = 0, 1

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193


class Schema:
    """The (format, dim) of each layer of a session. Immutable; equal schemas compare and hash equal."""

    def __init__(self, specs: Sequence[LayerSpec], *, uniform: bool) -> None:
        self._specs = tuple(specs)
        self._uniform = uniform
        if not self._specs:
            raise ValueError("a schema needs at least one layer")
        for spec in dict.fromkeys(self._specs):
            spec.validate()
        self._row_bytes = tuple(spec.row_bytes for spec in self._specs)
        self._encoded = self._encode()

    @classmethod
    def uniform(cls, spec: LayerSpec) -> Schema:
        """One spec for every layer. Raises `FormatError` when the format does not take the dim."""
        return cls((spec,), uniform=True)

    @classmethod
    def per_layer(cls, specs: Sequence[LayerSpec]) -> Schema:
        """One spec a layer. Raises `FormatError` for a bad spec, `ValueError` for an empty list."""
        return cls(specs, uniform=False)

    @property
    def is_uniform(self) -> bool:
        """Whether every layer has the same spec and their number is open."""
        return self._uniform

    @property
    def num_layers(self) -> int | None:
        """The number of layers, or None when it is open."""
        return None if self._uniform else len(self._specs)

    def layer(self, index: int) -> LayerSpec:
        """The spec of one layer. Raises `LayerLimit` outside a per-layer schema."""
        if self._uniform:
            return self._specs[0]
        if not 0 <= index < len(self._specs):
            raise LayerLimit(index, len(self._specs))
        return self._specs[index]

    def row_bytes(self, index: int) -> int:
        """Bytes of one row of a layer. Raises `LayerLimit` outside a per-layer schema."""
        if self._uniform:
            return self._row_bytes[0]
        if not 0 <= index < len(self._row_bytes):
            raise LayerLimit(index, len(self._row_bytes))
        return self._row_bytes[index]

    @cached_property
    def wire(self) -> Schema:
        """How rows are until they are coded: the schema itself, unless layers code groups of rows."""
        if not any(spec.details.grouped for spec in self._specs):
            return self
        return Schema([spec.wire for spec in self._specs], uniform=self._uniform)

    def bytes_of(self, index: int, extents: Extents) -> int:
        """Bytes of the rows of a layer."""
        row_bytes, spec = self.row_bytes(index), self.layer(index)
        if not spec.details.grouped:
            return rows_of(extents) * row_bytes
        wire = spec.wire.row_bytes
        return sum(count * (wire if is_tail(page) else row_bytes) for page, _, count in extents)

    @property
    def digest(self) -> int:
        """FNV-1a/32 over dim (u32), format tag (u8) and rope (u32) of each listed layer, little-endian.

        A layer whose format has a head adds its size (u32): those formats are not in the original, whose
        digests stay as they are.
        """
        value = _FNV_OFFSET
        for spec in self._specs:
            tag = format_by_name(spec.format).tag
            head = struct.pack("<I", spec.head_dim) if spec.head_dim else b""
            for byte in struct.pack("<IBI", spec.dim, tag, spec.rope) + head:
                value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
        return value

    def differs(self, other: Schema) -> tuple[str, str, str] | None:
        """The first field in which `other` differs, as (field, ours, theirs); None when equal."""
        if self._encoded == other._encoded:
            return None
        if self.num_layers != other.num_layers:
            return "layers", _count(self.num_layers), _count(other.num_layers)
        for index, (ours, theirs) in enumerate(zip(self._specs, other._specs, strict=True)):
            where = "" if self._uniform else f"layer {index} "
            for field in ("format", "dim", "rope", "head_dim"):
                stored, asked = getattr(ours, field), getattr(theirs, field)
                if stored != asked:
                    return where + field, str(stored), str(asked)
        return None

    def encode(self) -> bytes:
        """The stored form; see the module's own text."""
        return self._encoded

    @staticmethod
    @lru_cache(maxsize=4096)
    def decode(encoded: bytes) -> Schema:
        """The schema of a stored form. Raises `ValueError` when it is not one."""
        kind = encoded[0] if encoded else -1
        body = len(encoded) - _KIND.size
        if kind not in (_UNIFORM, _PER_LAYER) or body <= 0 or body % _RUN.size:
            raise ValueError("not an encoded schema")
        specs: list[LayerSpec] = []
        for tag, dim, rope, head_dim, layers in _RUN.iter_unpack(encoded[_KIND.size :]):
            specs += [LayerSpec(format_by_tag(tag).name, dim, rope, head_dim)] * max(layers, 1)
        return Schema(specs, uniform=kind == _UNIFORM)

    def _encode(self) -> bytes:
        parts = [_KIND.pack(_UNIFORM if self._uniform else _PER_LAYER)]
        for spec, run in groupby(self._specs):
            layers = 0 if self._uniform else sum(1 for _ in run)
            tag = format_by_name(spec.format).tag
            parts.append(_RUN.pack(tag, spec.dim, spec.rope, spec.head_dim, layers))
        return b"".join(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self._encoded == other._encoded

    def __hash__(self) -> int:
        return hash(self._encoded)

    def __repr__(self) -> str:
        kind = "uniform" if self._uniform else f"{len(self._specs)} layers"
        return f"Schema({kind}, {self._specs[0].format}/{self._specs[0].dim})"


def _count(layers: int | None) -> str:
    return "any number" if layers is None else str(layers)

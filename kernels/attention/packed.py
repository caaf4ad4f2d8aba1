"""The rows of one layer as they are stored, on their way to an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..codec import unpack
from ..formats import Element, LayerSpec
from ..layout import Heads
from .forms import AttentionError


@dataclass(frozen=True, slots=True)
class PackedSide:
    """Packed rows of one side.

    Attributes:
        spec: Their format; the dim is heads x head dim.
        parts: Their bytes in row order, whole rows in each.
    """

    spec: LayerSpec
    parts: Sequence[memoryview]

    @property
    def rows(self) -> int:
        """How many."""
        return sum(part.nbytes for part in self.parts) // self.spec.row_bytes

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, memoryview]]:
        """Rows [first, last) as (the row a piece begins with, its bytes)."""
        size, position = self.spec.row_bytes, 0
        for part in self.parts:
            count = part.nbytes // size
            low, high = max(first - position, 0), min(last - position, count)
            if low < high:
                yield position + low, part[low * size : high * size]
            position += count

    def unpack(self, first: int, last: int, heads: int, element: Element, out: NDArray[np.generic]) -> None:
        """Decode rows [first, last) into `out`, `[heads, last - first, head dim]`, contiguous."""
        head_dim, count = self.spec.dim // heads, last - first
        flat = out.reshape(-1)
        layout = Heads(heads, count * head_dim, head_dim)
        for row, piece in self.pieces(first, last):
            rows = piece.nbytes // self.spec.row_bytes
            unpack(self.spec, piece, rows, element, flat[(row - first) * head_dim :], layout=layout)


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """Keys and values of one layer.

    Attributes:
        k: The keys.
        v: The values.
        heads: Key/value heads.
        rows: Rows of both sides; what a side has beyond them is left out.
    """

    k: PackedSide
    v: PackedSide
    heads: int
    rows: int

    @classmethod
    def of(
        cls,
        k: tuple[LayerSpec, Sequence[memoryview]],
        v: tuple[LayerSpec, Sequence[memoryview]],
        head_dim: int,
    ) -> PackedLayer:
        """A layer of two sides with heads of `head_dim` elements.

        Raises:
            AttentionError: The sides do not have the same dim, or it is no multiple of the head dim, or
                there are no rows.
        """
        sides = PackedSide(*k), PackedSide(*v)
        dims = [side.spec.dim for side in sides]
        rows = min(side.rows for side in sides)
        if dims[0] != dims[1] or dims[0] % head_dim:
            raise AttentionError(f"rows of {dims[0]} and {dims[1]} elements do not have heads of {head_dim}")
        if not rows:
            raise AttentionError("there are no rows")
        return cls(*sides, dims[0] // head_dim, rows)

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.k.spec.dim // self.heads

"""The rows of one layer as they are stored, on their way to an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..formats import Element, LayerSpec
from ..layout import Heads
from .forms import AttentionError


class Run(Protocol):
    """Packed rows that lie together; those of a layer may differ in how they are stored."""

    @property
    def spec(self) -> LayerSpec:
        """How they are stored."""

    @property
    def data(self) -> memoryview:
        """Their bytes; where rows are coded together those of whole groups."""

    @property
    def count(self) -> int:
        """How many."""

    def cut(self, start: int, end: int) -> Run:
        """Rows [start, end) of these."""

    def unpack(self, element: Element, out: memoryview, layout: Heads | None = None) -> None:
        """Decode them. `out` and `layout` are as for `kernels.unpack`."""


@dataclass(frozen=True, slots=True)
class PackedSide:
    """Packed rows of one side.

    Attributes:
        spec: Their format; the dim is heads x head dim.
        runs: Where they are, in row order.
    """

    spec: LayerSpec
    runs: Sequence[Run]

    @property
    def rows(self) -> int:
        """How many."""
        return sum(run.count for run in self.runs)

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, Run]]:
        """Rows [first, last) as (the row that a piece begins with, the piece)."""
        position = 0
        for run in self.runs:
            low, high = max(first - position, 0), min(last - position, run.count)
            if low < high:
                yield position + low, run.cut(low, high)
            position += run.count

    def unpack(self, first: int, last: int, heads: int, element: Element, out: NDArray[np.generic]) -> None:
        """Decode rows [first, last) into `out`, `[heads, last - first, head dim]`, contiguous."""
        head_dim, count = self.spec.dim // heads, last - first
        flat = memoryview(out.reshape(-1)).cast("B")
        layout = Heads(heads, count * head_dim, head_dim)
        for row, piece in self.pieces(first, last):
            piece.unpack(element, flat[(row - first) * head_dim * element.itemsize :], layout)


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
        k: tuple[LayerSpec, Sequence[Run]],
        v: tuple[LayerSpec, Sequence[Run]],
        head_dim: int,
    ) -> PackedLayer:
        """A layer of two sides, (format, runs) each, with heads of `head_dim` elements.

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

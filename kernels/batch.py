"""One call's rows, what is checked before a backend codes them, and the errors for what it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from .errors import NonFinite, Overflow, ShortBuffer
from .layout import Heads
from .oracle.numeric import widen

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from .formats import Element

    Bytes: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that are coded by one call.

    Attributes:
        rows: How many.
        dim: Elements in a row.
        element: Their type.
        layout: Where they lie in the caller's buffer.
    """

    rows: int
    dim: int
    element: Element
    layout: Heads

    def pack(
        self,
        coder: Callable[[Batch, Bytes, Bytes], int],
        limit: float,
        source: Buffer,
        out: Buffer,
        size: int,
    ) -> None:
        """Check the buffers and code the rows.

        Args:
            coder: Takes the batch, its elements and the output; returns -1, or the flat index
                `row * dim + position` of the first element it refuses. Not called for 0 rows.
            limit: Largest magnitude that it accepts.
            source: Elements.
            out: Writable, for the packed rows.
            size: Bytes of these.

        Raises:
            NonFinite: A NaN or infinity was refused.
            Overflow: A finite value was refused.
            FormatError: The layout does not fit.
            ShortBuffer: A buffer is too small.
        """
        elements, packed = self._elements(source, "source"), _bytes(out, size, "out")
        refused = coder(self, elements, packed) if self.rows else -1
        if refused >= 0:
            raise self._refusal(elements, refused, limit)

    def unpack(
        self, coder: Callable[[Batch, Bytes, Bytes], None], packed: Buffer, size: int, out: Buffer
    ) -> None:
        """Check the buffers and decode the rows.

        Args:
            coder: Takes the batch, the packed rows and the place for the elements. Not called for 0 rows.
            packed: Packed rows.
            size: Bytes of these.
            out: Writable, for the elements.

        Raises:
            FormatError: The layout does not fit.
            ShortBuffer: A buffer is too small.
        """
        stored, elements = _bytes(packed, size, "packed"), self._elements(out, "out")
        if self.rows:
            coder(self, stored, elements)

    def _elements(self, buffer: Buffer, name: str) -> Bytes:
        return _bytes(buffer, self.layout.extent(self.rows, self.dim) * self.element.itemsize, name)

    def _refusal(self, elements: Bytes, index: int, limit: float) -> NonFinite | Overflow:
        row, position = divmod(index, self.dim)
        head, inner = divmod(position, self.dim // self.layout.heads)
        size = self.element.itemsize
        offset = (head * self.layout.head_stride + row * self.layout.row_stride + inner) * size
        value = float(widen(elements[offset : offset + size], self.element)[0])
        if math.isfinite(value):
            return Overflow(row, position, value, limit)
        return NonFinite(row, position, value)


def batch_of(rows: int, dim: int, element: Element, layout: Heads | None) -> Batch:
    """A batch whose rows are row-major if no layout is given."""
    return Batch(rows, dim, element, layout or Heads(1, 0, dim))


def _bytes(buffer: Buffer, needed: int, name: str) -> Bytes:
    view = memoryview(buffer)
    if view.nbytes < needed:
        raise ShortBuffer(f"{name} holds {view.nbytes} bytes, {needed} are needed")
    return np.frombuffer(view, np.uint8)

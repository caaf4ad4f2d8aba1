"""Where the elements of rows lie in a caller's buffer."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import FormatError


@dataclass(frozen=True, slots=True)
class Heads:
    """Head-major K/V: heads outermost, as an mlx cache keeps them.

    Element (row n, head h, position d) lies `h * head_stride + n * row_stride + d` elements into the buffer,
    and becomes element `h * (dim / heads) + d` of row n. An mlx array `[1, H, T, D]` of which N rows are in
    use is `Heads(H, T * D, D)`; row-major rows are `Heads(1, 0, dim)`.

    Attributes:
        heads: Number of heads.
        head_stride: Elements from one head to the next.
        row_stride: Elements from one row to the next within a head.
    """

    heads: int
    head_stride: int
    row_stride: int

    def extent(self, rows: int, dim: int) -> int:
        """Elements a buffer must hold for these rows.

        Raises:
            FormatError: The dim is no multiple of the heads, or a stride makes elements overlap.
        """
        if self.heads < 1 or dim % self.heads:
            raise FormatError(f"dim {dim} is not a multiple of {self.heads} heads")
        width = dim // self.heads
        if self.row_stride < width or self.head_stride < 0:
            raise FormatError(f"strides {self.head_stride}, {self.row_stride} overlap for a head of {width}")
        if rows == 0:
            return 0
        return (self.heads - 1) * self.head_stride + (rows - 1) * self.row_stride + width

"""fp32, fp16, bf16: conversions."""

from __future__ import annotations

import numpy as np

from .llvm import kernel
from .rows import first_overflow, load_row, store_row


@kernel
def pack(
    source: int,
    element: int,
    heads: int,
    head_stride: int,
    row_stride: int,
    rows: int,
    dim: int,
    limit_bits: int,
    stored: int,
    out: int,
) -> int:
    """`stored` is the format's element type."""
    scratch = np.empty(dim, np.float32)
    for row in range(rows):
        load_row(source, element, heads, head_stride, row_stride, row, scratch)
        refused = first_overflow(scratch, limit_bits)
        if refused >= 0:
            return row * dim + refused
        store_row(out, stored, 1, 0, dim, row, scratch)
    return -1


@kernel
def unpack(
    packed: int,
    element: int,
    heads: int,
    head_stride: int,
    row_stride: int,
    rows: int,
    dim: int,
    stored: int,
    out: int,
) -> None:
    """`stored` is the format's element type."""
    scratch = np.empty(dim, np.float32)
    for row in range(rows):
        load_row(packed, stored, 1, 0, dim, row, scratch)
        store_row(out, element, heads, head_stride, row_stride, row, scratch)

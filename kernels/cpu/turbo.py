"""turbo4, as `oracle.turbo` defines it."""

from __future__ import annotations

import numpy as np

from .llvm import (
    kernel,
    larger,
    load_f16,
    load_u8,
    nearest,
    round_to_f16,
    smaller,
    store_f16,
    store_f32,
    store_u8,
    to_float,
    to_int,
)
from .rows import flush_row, largest_magnitude, load_row, store_row, sum_of_squares

_ZERO, _ONE = np.float32(0), np.float32(1)
_LOWEST, _HIGHEST, _OFFSET = np.float32(-8), np.float32(7), np.float32(8)
_BLOCK = 18


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
    _: int,
    out: int,
) -> int:
    """Code rows."""
    scratch = np.empty(dim, np.float32)
    codes = np.empty(32, np.int32)
    blocks = dim // 32
    for row in range(rows):
        load_row(source, element, heads, head_stride, row_stride, row, scratch)
        refused = flush_row(scratch, limit_bits)
        if refused >= 0:
            return row * dim + refused
        header = row * (4 + blocks * _BLOCK)
        for block in range(blocks):
            start, at = block * 32, header + 4 + block * _BLOCK
            scale = round_to_f16(largest_magnitude(scratch, start, 32) / _HIGHEST)
            inverse = _ONE / scale if scale > _ZERO else _ZERO
            store_f16(out, at, scale)
            for i in range(32):
                step = smaller(larger(nearest(scratch[start + i] * inverse), _LOWEST), _HIGHEST)
                codes[i] = to_int(step + _OFFSET)
                scratch[start + i] = step * scale
            for i in range(16):
                store_u8(out, at + 2 + i, codes[i] | codes[i + 16] << 4)
        store_f32(out, header, sum_of_squares(scratch))
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
    _: int,
    out: int,
) -> None:
    """Decode rows."""
    scratch = np.empty(dim, np.float32)
    blocks = dim // 32
    for row in range(rows):
        for block in range(blocks):
            start, at = block * 32, row * (4 + blocks * _BLOCK) + 4 + block * _BLOCK
            scale = load_f16(packed, at)
            for i in range(16):
                pair = load_u8(packed, at + 2 + i)
                scratch[start + i] = (to_float(pair & 15) - _OFFSET) * scale
                scratch[start + 16 + i] = (to_float(pair >> 4) - _OFFSET) * scale
        store_row(out, element, heads, head_stride, row_stride, row, scratch)

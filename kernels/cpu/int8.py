"""int8, as `oracle.int8` defines it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .llvm import kernel, larger, load_f32, load_i8, nearest, smaller, store_f32, store_u8, to_float, to_int
from .rows import flush_row, load_row, store_row

if TYPE_CHECKING:
    from .rows import Elements, Work

_SMALLEST_SCALE = np.float32(2.0**-100)
_STEPS = np.float32(254)
_HALF = np.float32(127)


@kernel
def pack(source: Elements, work: Work, out: int) -> int:
    """Code rows."""
    rows, dim, _bits, _group, _variant, limit_bits = work
    scratch = np.empty(dim, np.float32)
    for row in range(rows):
        load_row(source, row, scratch)
        refused = flush_row(scratch, limit_bits)
        if refused >= 0:
            return row * dim + refused
        low = high = scratch[0]
        for i in range(dim):
            low = smaller(low, scratch[i])
            high = larger(high, scratch[i])
        scale = (high - low) / _STEPS
        if scale < _SMALLEST_SCALE:
            scale = np.float32(1)
        at = row * (dim + 8)
        store_f32(out, at, scale)
        store_f32(out, at + 4, low)
        for i in range(dim):
            store_u8(out, at + 8 + i, to_int(nearest((scratch[i] - low) / scale) - _HALF))
    return -1


@kernel
def unpack(packed: int, work: Work, out: Elements) -> None:
    """Decode rows."""
    rows, dim, _bits, _group, _variant, _limit_bits = work
    scratch = np.empty(dim, np.float32)
    for row in range(rows):
        at = row * (dim + 8)
        scale = load_f32(packed, at)
        low = load_f32(packed, at + 4)
        for i in range(dim):
            scratch[i] = (to_float(load_i8(packed, at + 8 + i)) + _HALF) * scale + low
        store_row(out, row, scratch)

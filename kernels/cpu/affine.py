"""mlx4g32, as `oracle.affine` defines it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .llvm import (
    absolute,
    inlined,
    kernel,
    larger,
    load_f16,
    load_u8,
    nearest,
    round_to_f16,
    saturate_f16,
    smaller,
    store_f16,
    store_u8,
    to_float,
    to_int,
)
from .rows import flush_row, load_row, store_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GROUP = 32
_SMALLEST_SCALE = np.float32(1e-7)
_STEPS = np.float32(15)
_ZERO = np.float32(0)
_FP16_MAX = np.float32(65504)


@inlined
def choose(scratch: NDArray[np.float32], start: int) -> tuple[np.float32, np.float32]:
    """Scale and bias of one group by mx.quantize's rule."""
    low = high = scratch[start]
    for i in range(_GROUP):
        low = smaller(low, scratch[start + i])
        high = larger(high, scratch[start + i])
    scale = larger((high - low) / _STEPS, _SMALLEST_SCALE)
    end = low
    if absolute(low) <= absolute(high):
        scale = -scale
        end = high
    count = nearest(end / scale)
    if count == _ZERO:
        return scale, _ZERO
    return end / count, end


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
    codes = np.empty(dim, np.uint8)
    groups = dim // _GROUP
    words, params = dim // 2, 2 * groups
    for row in range(rows):
        load_row(source, element, heads, head_stride, row_stride, row, scratch)
        refused = flush_row(scratch, limit_bits)
        if refused >= 0:
            return row * dim + refused
        at = row * (words + 2 * params)
        for group in range(groups):
            start = group * _GROUP
            scale, bias = choose(scratch, start)
            store_f16(out, at + words + 2 * group, scale)
            store_f16(out, at + words + params + 2 * group, bias)
            for i in range(_GROUP):
                code = nearest((scratch[start + i] - bias) / scale)
                codes[start + i] = to_int(smaller(larger(code, _ZERO), _STEPS))
        for i in range(words):
            store_u8(out, at + i, codes[2 * i] | codes[2 * i + 1] << 4)
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
    groups = dim // _GROUP
    words, params = dim // 2, 2 * groups
    for row in range(rows):
        at = row * (words + 2 * params)
        for i in range(words):
            pair = load_u8(packed, at + i)
            scratch[2 * i] = to_float(pair & 15)
            scratch[2 * i + 1] = to_float(pair >> 4)
        for group in range(groups):
            start = group * _GROUP
            scale = load_f16(packed, at + words + 2 * group)
            bias = load_f16(packed, at + words + params + 2 * group)
            for i in range(_GROUP):
                product = scratch[start + i] * scale
                rounded = round_to_f16(product)
                if absolute(rounded) > _FP16_MAX:
                    rounded = product
                scratch[start + i] = round_to_f16(saturate_f16(rounded + bias))
        store_row(out, element, heads, head_stride, row_stride, row, scratch)

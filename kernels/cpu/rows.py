"""Rows of elements in a caller's buffer, one row at a time through a float32 scratch row that stays in cache.

The element type and the layout are looked at once per row: each format needs one kernel per direction.
Arguments travel as plain tuples of integers, which numba dispatches on three times faster than on named
ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from .llvm import (
    flush,
    from_bits,
    inlined,
    load_bf16,
    load_f16,
    load_f32,
    magnitude_bits,
    saturate_bf16,
    saturate_f16,
    store_bf16,
    store_f16,
    store_f32,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Row = NDArray[np.float32]

Elements: TypeAlias = tuple[int, int, int, int, int]
"""Where elements lie: address, element type, heads, head stride, row stride."""

Work: TypeAlias = tuple[int, int, int, int, int, int]
"""What to do: rows, dim, bits of a code, elements of a group, the format's variant, limit as float32 bits."""

F32, F16, BF16 = 0, 1, 2


@inlined
def load_row(source: Elements, row: int, scratch: Row) -> None:
    """Widen one row into `scratch`."""
    address, element, heads, head_stride, row_stride = source
    width = len(scratch) // heads
    for head in range(heads):
        start = head * head_stride + row * row_stride
        to = head * width
        if element == F32:
            for i in range(width):
                scratch[to + i] = load_f32(address, 4 * (start + i))
        elif element == F16:
            for i in range(width):
                scratch[to + i] = load_f16(address, 2 * (start + i))
        else:
            for i in range(width):
                scratch[to + i] = load_bf16(address, 2 * (start + i))


@inlined
def store_row(out: Elements, row: int, scratch: Row) -> None:
    """Write `scratch` as one row; finite values beyond the element type saturate."""
    address, element, heads, head_stride, row_stride = out
    width = len(scratch) // heads
    for head in range(heads):
        start = head * head_stride + row * row_stride
        at = head * width
        if element == F32:
            for i in range(width):
                store_f32(address, 4 * (start + i), scratch[at + i])
        elif element == F16:
            for i in range(width):
                store_f16(address, 2 * (start + i), saturate_f16(scratch[at + i]))
        else:
            for i in range(width):
                store_bf16(address, 2 * (start + i), saturate_bf16(scratch[at + i]))


@inlined
def flush_row(scratch: Row, limit_bits: int) -> int:
    """Turn zeros and subnormals into +0; return the first element beyond the limit (NaN too), or -1."""
    worst = 0
    for i in range(len(scratch)):
        worst = max(worst, magnitude_bits(scratch[i]))
        scratch[i] = flush(scratch[i])
    if worst > limit_bits:
        for i in range(len(scratch)):
            if magnitude_bits(scratch[i]) > limit_bits:
                return i
    return -1


@inlined
def first_overflow(scratch: Row, limit_bits: int) -> int:
    """The first finite element beyond the limit, or -1."""
    worst = 0
    for i in range(len(scratch)):
        worst = max(worst, magnitude_bits(scratch[i]))
    if worst > limit_bits:
        for i in range(len(scratch)):
            if limit_bits < magnitude_bits(scratch[i]) < 0x7F800000:
                return i
    return -1


@inlined
def largest_magnitude(scratch: Row, start: int, count: int) -> float:
    """Of `count` elements from `start` on; by their bits, because a maximum of integers vectorizes."""
    largest = 0
    for i in range(count):
        largest = max(largest, magnitude_bits(scratch[start + i]))
    return from_bits(largest)

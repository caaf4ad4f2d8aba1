"""turbo4, turbo3, turbo2: rotated blocks of 32, Lloyd-Max levels, an fp16 scale per block.

Row: float32 unit (a power of two), then for each 32 elements an fp16 scale and the codes, lowest bits first.
A block is worth `unit / 32 * scale * hadamard(levels)`. The rotation spreads an outlier over its block; the
unit frees the fp16 scale from the row's magnitude.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..bits import pack_codes, unpack_codes
from ..codebooks import TURBO, TURBO_RATIO_UNIT, TURBO_UNIT
from .hadamard import hadamard
from .numeric import F32, bits_of, flush, fp16_to_fp32, fp32_to_fp16, row_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..formats import LayerSpec

SMALLEST_UNIT: Final = F32(2.0**-80)
"""Rows that stay below it become zeros: no decoded value may reach float32's subnormals."""

SMALLEST_END: Final = F32(2.0**-24)
"""Blocks whose largest coefficient, in units, stays below it become zeros: fp16's smallest step."""


def unit_of(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The power of two at or below the largest magnitude of each row; 0 below `SMALLEST_UNIT`."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    return (bits_of(np.where(largest < SMALLEST_UNIT, F32(0), largest)) & np.uint32(0x7F800000)).view(
        np.float32
    )


def pack(spec: LayerSpec, x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rotate, divide each block by its end (the coefficient of largest magnitude), take the nearest levels.

    A code is the number of midpoints between levels that rint(coefficient * (1 / end) * 2**14) exceeds,
    midpoints in the same unit. The stored scale is the least-squares one for the chosen levels:
    sum(coefficient * level) / sum(level * level), both in the order of `row_sum`.
    """
    rows, bits = len(x), spec.details.bits
    levels = np.array(TURBO[bits], np.float32) / F32(TURBO_UNIT)
    x = flush(x)
    unit = unit_of(x)
    inverse = np.where(unit > 0, F32(1) / np.where(unit > 0, unit, F32(1)), F32(0))
    turned = hadamard((x * inverse).reshape(-1, 32))
    high, low = turned.max(axis=1, keepdims=True), turned.min(axis=1, keepdims=True)
    end = np.where(high >= -low, high, low)
    empty = np.abs(end) < SMALLEST_END
    ratio = np.rint(turned * (F32(1) / np.where(empty, F32(1), end)) * F32(TURBO_RATIO_UNIT))
    midpoints = (levels[1:] + levels[:-1]) * F32(TURBO_RATIO_UNIT / 2)
    codes = (ratio[..., None] > midpoints).sum(axis=2).astype(np.uint8)
    codes = np.where(empty, np.uint8(TURBO[bits].index(0)), codes)
    chosen = levels[codes]
    norm = np.where(empty[:, 0], F32(1), row_sum(chosen * chosen))
    scale = fp32_to_fp16(np.where(empty[:, 0], F32(0), row_sum(turned * chosen) / norm))
    blocks = np.hstack([scale[:, None].view(np.uint8), pack_codes(codes, bits)])
    return np.hstack([unit.view(np.uint8), blocks.reshape(rows, -1)])


def unpack(spec: LayerSpec, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """hadamard(levels) * scale * 2**-5 * unit; every product is exact."""
    rows, bits = len(packed), spec.details.bits
    unit = np.ascontiguousarray(packed[:, :4]).view(np.float32)
    blocks = packed[:, 4:].reshape(rows, spec.dim // 32, -1)
    scale = fp16_to_fp32(np.ascontiguousarray(blocks[..., :2]).view(np.float16))
    levels = np.array(TURBO[bits], np.float32) / F32(TURBO_UNIT)
    values = hadamard(levels[unpack_codes(blocks[..., 2:], bits, 32)]) * scale * F32(2.0**-5)
    return values.reshape(rows, -1) * unit

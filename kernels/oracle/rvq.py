"""rvq1, rvq2: two quantizers one after the other on a rotated head, and one bfloat16 gain.

Row: for each head the codes of stage 1, the codes of stage 2 (both lowest bits first), the bfloat16 gain.
bfloat16, because an fp16 norm overflows where a key's norm passes 65504.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..bits import pack_codes, unpack_codes
from ..codebooks import RVQ, RVQ_UNIT, SIGNS
from ..formats import Element
from .hadamard import hadamard
from .numeric import F32, flush, fp32_to_bf16, row_sum, widen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..formats import LayerSpec

SMALLEST_SQUARE: Final = F32(2.0**-100)
"""Heads whose sum of squares stays below it become zeros: no square that matters may be a subnormal."""

FLIPS: Final = np.array([-1 if word >> i & 1 else 1 for word in SIGNS for i in range(32)], np.float32)
"""Sign of an element of a head, by its number modulo 256."""


def _flips(head_dim: int) -> NDArray[np.float32]:
    return np.resize(FLIPS, head_dim)


def _levels(stage: tuple[int, ...]) -> NDArray[np.float32]:
    return np.array(stage, np.float32) / F32(RVQ_UNIT)


def _nearest(x: NDArray[np.float32], levels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Code: how many midpoints between levels the value exceeds."""
    midpoints = (levels[1:] + levels[:-1]) * F32(0.5)
    codes: NDArray[np.uint8] = (x[..., None] > midpoints).sum(axis=-1).astype(np.uint8)
    return codes


def pack(spec: LayerSpec, x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Flip signs, rotate, divide by the head's norm; take the nearest level, then the nearest to the rest.

    gain = norm * (sum(z * chosen) / sum(chosen * chosen)) with norm = sqrt(sum(x * x)), z the divided
    elements and chosen the sum of both levels: the least-squares gain. Sums are in the order of `row_sum`.
    """
    bits = spec.details.bits // 2
    first, second = (_levels(stage) for stage in RVQ[bits])
    heads = flush(x).reshape(-1, spec.head_dim)
    square = row_sum(heads * heads)[:, None]
    empty = square < SMALLEST_SQUARE
    norm = np.sqrt(np.where(empty, F32(1), square))
    z = hadamard(heads * _flips(spec.head_dim)) * np.where(empty, F32(0), F32(1) / norm)
    code1 = _nearest(z, first)
    code2 = _nearest(z - first[code1], second)
    chosen = first[code1] + second[code2]
    fit = row_sum(z * chosen) / np.where(empty[:, 0], F32(1), row_sum(chosen * chosen))
    gain = np.where(empty, F32(0), norm * fit[:, None])
    parts = [pack_codes(code1, bits), pack_codes(code2, bits), fp32_to_bf16(gain).view(np.uint8)]
    return np.hstack(parts).reshape(len(x), -1)


def unpack(spec: LayerSpec, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """hadamard(chosen) / head_dim * gain, signs flipped back; only the product with the gain rounds."""
    bits, head_dim = spec.details.bits // 2, spec.head_dim
    heads = packed.reshape(len(packed) * spec.dim // head_dim, -1)
    size = head_dim * bits // 8
    streams = (heads[:, :size], heads[:, size : 2 * size])
    parts = [
        _levels(stage)[unpack_codes(stream, bits, head_dim)]
        for stage, stream in zip(RVQ[bits], streams, strict=True)
    ]
    gain = widen(heads[:, 2 * size :], Element.BF16)
    values = hadamard(parts[0] + parts[1]) * F32(1 / head_dim) * gain
    return (values * _flips(head_dim)).reshape(len(packed), -1)

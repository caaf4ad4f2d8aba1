"""turbo4: 4-bit codes with an fp16 scale for every 32 elements.

Row: float32 sum of squares of the decoded values, then for each 32 an fp16 scale and 16 bytes; byte i holds
the code of element i in its low half and that of element i + 16 in its high half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .numeric import F32, flush, fp16_to_fp32, fp32_to_fp16, row_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..formats import LayerSpec


def pack(spec: LayerSpec, x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Codes rint(x * (1 / scale)) clamped to -8..7, scale = fp16(max |x| / 7) as stored."""
    rows = len(x)
    blocks = flush(x).reshape(rows, -1, 32)
    stored = fp32_to_fp16(np.abs(blocks).max(axis=2, keepdims=True) / F32(7))
    scale = fp16_to_fp32(stored)
    inverse = np.where(scale > 0, F32(1) / np.where(scale > 0, scale, F32(1)), F32(0))
    steps = np.clip(np.rint(blocks * inverse), F32(-8), F32(7))
    codes = (steps.astype(np.int32) + 8).astype(np.uint8)
    packed = np.concatenate([stored.view(np.uint8), codes[..., :16] | codes[..., 16:] << 4], axis=2)
    values = (steps * scale).reshape(rows, -1)
    return np.hstack([row_sum(values * values)[:, None].view(np.uint8), packed.reshape(rows, -1)])


def unpack(spec: LayerSpec, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(code - 8) * scale."""
    rows = len(packed)
    blocks = packed[:, 4:].reshape(rows, -1, 18)
    scale = fp16_to_fp32(np.ascontiguousarray(blocks[..., :2]).view(np.float16))
    codes = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=2)
    return ((codes.astype(np.float32) - F32(8)) * scale).reshape(rows, -1)

"""qserve4: 4-bit codes with an fp16 scale and an fp16 offset for each head of a token.

Row: dim / 2 bytes of codes (lowest bits first), then the fp16 scales of all heads, then the fp16 offsets of
all heads. The offset is a floating number of steps and is not clamped to the codes (QServe's KV4, Y. Lin et
al., 2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..bits import pack_codes, unpack_codes
from ..formats import FP16_MAX
from .numeric import F32, flush, fp16_to_fp32, fp32_to_fp16

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..formats import LayerSpec

STEPS: Final = F32(15)


def pack(spec: LayerSpec, x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Scale = fp16((max - min) / 15), offset = fp16(-min / scale), code = rint(x / scale + offset) in 0..15.

    A head whose scale rounds to 0, or whose offset fp16 cannot hold, counts as constant: scale = fp16(min),
    offset = -1 and codes 0, so that it decodes to fp16(min).
    """
    rows = len(x)
    heads = flush(x).reshape(rows, -1, spec.head_dim)
    low, high = heads.min(axis=2, keepdims=True), heads.max(axis=2, keepdims=True)
    scale = fp16_to_fp32(fp32_to_fp16((high - low) / STEPS))
    offset = (F32(0) - low) / np.where(scale > 0, scale, F32(1))
    constant = (scale == 0) | (np.abs(offset) > F32(FP16_MAX))
    scale = np.where(constant, fp16_to_fp32(fp32_to_fp16(low)), scale)
    offset = np.where(constant, F32(-1), fp16_to_fp32(fp32_to_fp16(np.where(constant, F32(0), offset))))
    steps = heads / np.where(constant, F32(1), scale) + offset
    codes = np.where(constant, F32(0), np.clip(np.rint(steps), F32(0), STEPS)).astype(np.uint8)
    params = [fp32_to_fp16(p.reshape(rows, -1)).view(np.uint8) for p in (scale, offset)]
    return np.hstack([pack_codes(codes.reshape(rows, -1), 4), *params])


def unpack(spec: LayerSpec, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(code - offset) * scale."""
    rows, size = len(packed), spec.dim // 2
    codes = unpack_codes(packed[:, :size], 4, spec.dim).astype(np.float32).reshape(rows, -1, spec.head_dim)
    params = fp16_to_fp32(np.ascontiguousarray(packed[:, size:]).view(np.float16)).reshape(rows, 2, -1, 1)
    return ((codes - params[:, 1]) * params[:, 0]).reshape(rows, -1)

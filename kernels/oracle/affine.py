"""The layouts of mlx's QuantizedKVCache, so that packed rows attach to one without repacking.

Row: uint32 words of codes, the first element in the lowest bits (little-endian: the same as bytes, the first
element in the lowest bits), then the fp16 scales of all groups, then the fp16 biases of all groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..bits import pack_codes, packed_bytes, unpack_codes
from ..formats import FP16_MAX, Affine
from .numeric import F32, flush, fp16_to_fp32, fp32_to_fp16, saturate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..formats import LayerSpec

SMALLEST_SCALE: Final = F32(1e-7)
"""mx.quantize's floor of a scale (mlx 0.32, CPU)."""


def choose(groups: NDArray[np.float32], steps: float) -> tuple[NDArray[np.float32], ...]:
    """Codes (as float32), scale and bias of mx.quantize on the CPU.

    scale = max((max - min) / steps, 1e-7), negated when the maximum is not smaller in magnitude than the
    minimum; the end of larger magnitude becomes the bias and is exact: scale = end / rint(end / scale). Codes
    are chosen with the float32 scale and bias, before these are rounded to fp16.
    """
    low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
    scale = np.maximum((high - low) / F32(steps), SMALLEST_SCALE)
    low_is_end = np.abs(low) > np.abs(high)
    scale = np.where(low_is_end, scale, -scale)
    end = np.where(low_is_end, low, high)
    count = np.rint(end / scale)
    exact = count != 0
    scale = np.where(exact, end / np.where(exact, count, F32(1)), scale)
    bias = np.where(exact, end, F32(0))
    return np.clip(np.rint((groups - bias) / scale), F32(0), F32(steps)), scale, bias


def choose_for_stored(groups: NDArray[np.float32], steps: float) -> tuple[NDArray[np.float32], ...]:
    """Codes chosen for the scale and bias as they will be read: the original server's rule.

    scale = fp16((max - min) / steps), bias = fp16(min), code = trunc((x - bias) * (1 / scale) + 0.5) within
    0..steps. Where the scale rounds to 0 (a constant group) the codes are 0.
    """
    low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
    scale = fp16_to_fp32(fp32_to_fp16((high - low) / F32(steps)))
    bias = fp16_to_fp32(fp32_to_fp16(low))
    inverse = np.where(scale > 0, F32(1) / np.where(scale > 0, scale, F32(1)), F32(0))
    return np.trunc(np.clip((groups - bias) * inverse + F32(0.5), F32(0), F32(steps))), scale, bias


def pack(spec: LayerSpec, x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Codes, scales, biases, by the rule of the format."""
    rows, bits = len(x), spec.details.bits
    rule = choose_for_stored if spec.details.variant == Affine.ROUND_TRIP else choose
    codes, scale, bias = rule(flush(x).reshape(rows, -1, spec.group), 2**bits - 1)
    params = [fp32_to_fp16(p.reshape(rows, -1)).view(np.uint8) for p in (scale, bias)]
    return np.hstack([pack_codes(codes.reshape(rows, -1).astype(np.uint8), bits), *params])


def unpack(spec: LayerSpec, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """fp16(fp16(code * scale) + bias), the steps of mx.dequantize on fp16 scales.

    Where mx's product or sum overflows, ours goes on: a product beyond fp16 is kept in float32, and the sum
    saturates at 65504.
    """
    rows, bits = len(packed), spec.details.bits
    size = packed_bytes(spec.dim, bits)
    codes = unpack_codes(packed[:, :size], bits, spec.dim).astype(np.float32).reshape(rows, -1, spec.group)
    params = fp16_to_fp32(np.ascontiguousarray(packed[:, size:]).view(np.float16)).reshape(rows, 2, -1, 1)
    scale, bias = params[:, 0], params[:, 1]
    product = codes * scale
    rounded = fp16_to_fp32(fp32_to_fp16(product))
    total = np.where(np.isinf(rounded), product, rounded) + bias
    return fp16_to_fp32(fp32_to_fp16(saturate(total, F32(FP16_MAX)))).reshape(rows, -1)

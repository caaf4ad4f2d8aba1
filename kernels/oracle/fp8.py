"""fp8, fp8_e5m2: 8-bit floats with an fp16 scale for every 32 elements.

Row: float32 sum of squares of the decoded values, then for each 32 an fp16 scale and 32 code bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from .numeric import F32, bits_of, flush, fp16_to_fp32, fp32_to_fp16, row_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..formats import LayerSpec

    Row = NDArray[np.float32]

E4M3: Final = (4, 3)
E5M2: Final = (5, 2)
KINDS: Final = {3: E4M3, 2: E5M2}
"""By mantissa bits."""

_LARGEST: Final = {E4M3: F32(448), E5M2: F32(57344)}

TARGET: Final = {E4M3: F32(240), E5M2: F32(224)}
"""What the largest magnitude of a block is scaled to: E4M3 as in the original server, E5M2 the nearest value
that its mantissa holds."""


def encode(x: NDArray[np.float32], kind: tuple[int, int]) -> NDArray[np.uint8]:
    """OFP8 codes of finite values, nearest-even, saturating at the largest finite code."""
    exponent_bits, mantissa_bits = kind
    bias = (1 << (exponent_bits - 1)) - 1
    shift = np.uint32(23 - mantissa_bits)
    x = np.clip(x, -_LARGEST[kind], _LARGEST[kind])
    bits = bits_of(x)
    magnitude = bits & 0x7FFFFFFF
    normal = magnitude + ((np.uint32(1) << (shift - np.uint32(1))) - np.uint32(1)) + (magnitude >> shift & 1)
    normal = (normal >> shift) - np.uint32((127 - bias) << mantissa_bits)
    steps = np.rint(np.abs(x) * F32(2.0 ** (bias - 1 + mantissa_bits))).astype(np.uint32)
    smallest_normal = F32(2.0 ** (1 - bias)).view(np.uint32)
    codes: NDArray[np.uint32] = np.where(magnitude < smallest_normal, steps, normal) | bits >> 24 & 0x80
    return codes.astype(np.uint8)


def decode(codes: NDArray[np.uint8], kind: tuple[int, int]) -> NDArray[np.float32]:
    """Exact values of OFP8 codes; NaN (and E5M2's infinities) as the standard has them."""
    exponent_bits, mantissa_bits = kind
    bias = (1 << (exponent_bits - 1)) - 1
    code = codes.astype(np.uint32)
    magnitude, sign = code & 0x7F, (code & 0x80) << 24
    normal = (magnitude << (23 - mantissa_bits)) + ((127 - bias) << 23)
    subnormal = bits_of(magnitude.astype(np.float32) * F32(2.0 ** (1 - bias - mantissa_bits)))
    bits = np.where(magnitude < (1 << mantissa_bits), subnormal, normal)
    if kind == E4M3:
        bits = np.where(magnitude == 0x7F, 0x7FC00000, bits)
    else:
        bits = np.where(magnitude > 0x7C, 0x7FC00000, np.where(magnitude == 0x7C, 0x7F800000, bits))
    word: NDArray[np.uint32] = (bits | sign).astype(np.uint32)
    return word.view(np.float32)


def pack_blocks(x: Row, kind: tuple[int, int]) -> tuple[NDArray[np.uint8], Row]:
    """Blocks of 34 bytes, and the values they decode to.

    The scale is fp16(max |x| / target), and the codes aim at the scale as stored: x * (1 / scale). A stored
    scale of 0 (max |x| up to target * 2**-25) makes a block of zeros.
    """
    rows, dim = x.shape
    blocks = flush(x).reshape(rows, -1, 32)
    stored = fp32_to_fp16(np.abs(blocks).max(axis=2, keepdims=True) / TARGET[kind])
    scale = fp16_to_fp32(stored)
    inverse = np.where(scale > 0, F32(1) / np.where(scale > 0, scale, F32(1)), F32(0))
    codes = encode(blocks * inverse, kind)
    values = decode(codes, kind) * scale
    packed = np.concatenate([stored.view(np.uint8), codes], axis=2)
    return packed.reshape(rows, -1), values.reshape(rows, dim)


def unpack_blocks(packed: NDArray[np.uint8], kind: tuple[int, int]) -> NDArray[np.float32]:
    """Code value * scale."""
    blocks = packed.reshape(len(packed), -1, 34)
    scale = fp16_to_fp32(np.ascontiguousarray(blocks[..., :2]).view(np.float16))
    return (decode(blocks[..., 2:], kind) * scale).reshape(len(packed), -1)


def pack(spec: LayerSpec, x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Header and blocks."""
    blocks, values = pack_blocks(x, KINDS[spec.details.variant])
    header = row_sum(values * values)[:, None]
    return np.hstack([header.view(np.uint8), blocks])


def unpack(spec: LayerSpec, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The blocks; the header is not needed."""
    return unpack_blocks(packed[:, 4:], KINDS[spec.details.variant])

"""Number conversions and sums that every backend has to reproduce bit for bit.

All arithmetic is float32 (IEEE, nearest-even, no fused multiply-add). NaN keeps its sign and the top of its
payload and becomes quiet, whatever numpy's own conversion does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..formats import BF16_MAX, FP16_MAX, Element

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..batch import Batch

F32: Final = np.float32
_ABS: Final = np.uint32(0x7FFFFFFF)
_INF: Final = np.uint32(0x7F800000)
_QUIET: Final = np.uint32(0x00400000)
_SMALLEST_NORMAL: Final = np.uint32(0x00800000)


def bits_of(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The float32 bit patterns."""
    return np.ascontiguousarray(x).view(np.uint32)


def widen(raw: NDArray[np.uint8], element: Element) -> NDArray[np.float32]:
    """Elements as float32; exact.

    Args:
        raw: Bytes of the elements; the last axis is contiguous.
        element: Their type.
    """
    raw = np.ascontiguousarray(raw)
    if element is Element.F32:
        return raw.view(np.float32)
    if element is Element.BF16:
        return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return fp16_to_fp32(raw.view(np.float16))


def narrow(x: NDArray[np.float32], element: Element) -> NDArray[np.uint8]:
    """Elements of `element` type, nearest-even; a finite value beyond the largest becomes the largest."""
    if element is Element.F32:
        return np.ascontiguousarray(x).view(np.uint8)
    limit = F32(FP16_MAX if element is Element.F16 else BF16_MAX)
    x = saturate(x, limit)
    return (fp32_to_fp16(x) if element is Element.F16 else fp32_to_bf16(x)).view(np.uint8)


def saturate(x: NDArray[np.float32], limit: np.float32) -> NDArray[np.float32]:
    """Finite values within +-limit; NaN and infinities stay."""
    return np.where(np.isfinite(x), np.clip(x, -limit, limit), x)


def fp16_to_fp32(x: NDArray[np.float16]) -> NDArray[np.float32]:
    """Exact; NaN becomes quiet."""
    wide = x.astype(np.float32).view(np.uint32)
    word = x.view(np.uint16).astype(np.uint32)
    nan = (word & 0x8000) << 16 | _INF | _QUIET | (word & 0x03FF) << 13
    return np.where((word & 0x7FFF) > 0x7C00, nan, wide).astype(np.uint32).view(np.float32)


def fp32_to_fp16(x: NDArray[np.float32]) -> NDArray[np.float16]:
    """Nearest-even, subnormals kept, beyond 65519.99 infinite; NaN becomes quiet."""
    bits = bits_of(x)
    with np.errstate(over="ignore", invalid="ignore"):
        word = x.astype(np.float16).view(np.uint16)
    nan = (bits >> 16 & 0x8000 | 0x7E00 | bits >> 13 & 0x03FF).astype(np.uint16)
    return np.where((bits & _ABS) > _INF, nan, word).view(np.float16)


def fp32_to_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper 16 bits, nearest-even; NaN becomes quiet."""
    bits = bits_of(x)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
    return np.where((bits & _ABS) > _INF, bits >> 16 | 0x40, rounded).astype(np.uint16)


def flush(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Zeros and float32 subnormals become +0, so that no code depends on a backend's treatment of either."""
    return np.where((bits_of(x) & _ABS) < _SMALLEST_NORMAL, F32(0), x)


def first_beyond(x: NDArray[np.float32], limit: float, *, non_finite: bool) -> int:
    """Flat index of the first element beyond `limit` in magnitude, else -1.

    Args:
        x: The elements.
        limit: Largest magnitude accepted.
        non_finite: Whether NaN and infinities count too.
    """
    magnitude = bits_of(x).ravel() & _ABS
    bad = magnitude > F32(limit).view(np.uint32)
    if not non_finite:
        bad &= magnitude < _INF
    return int(bad.argmax()) if bad.any() else -1


def row_sum(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums over the last axis in the order every backend keeps.

    An octet of 8 as ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)); the four octets of 32 as (0 + 1) + (2 + 3);
    the 32s from left to right.

    Args:
        x: `(rows, dim)`, dim a multiple of 32.
    """
    octets = x.reshape(len(x), -1, 4, 8)
    halves = octets[..., :4] + octets[..., 4:]
    pairs = halves[..., :2] + halves[..., 2:]
    ones = pairs[..., 0] + pairs[..., 1]
    thirty_twos = (ones[..., 0] + ones[..., 1]) + (ones[..., 2] + ones[..., 3])
    result: NDArray[np.float32] = thirty_twos[:, 0]
    for i in range(1, thirty_twos.shape[1]):
        result = result + thirty_twos[:, i]
    return result


def elements_of(buffer: NDArray[np.uint8], batch: Batch) -> NDArray[np.uint8]:
    """A view `(rows, heads, bytes of a head)` of a batch's elements."""
    layout, size = batch.layout, batch.element.itemsize
    shape = (batch.rows, layout.heads, batch.dim // layout.heads * size)
    strides = (layout.row_stride * size, layout.head_stride * size, 1)
    view: NDArray[np.uint8] = np.lib.stride_tricks.as_strided(buffer, shape, strides)
    return view


def read(buffer: NDArray[np.uint8], batch: Batch) -> NDArray[np.float32]:
    """A batch's elements as float32 `(rows, dim)`."""
    return widen(elements_of(buffer, batch), batch.element).reshape(batch.rows, batch.dim)


def write(x: NDArray[np.float32], buffer: NDArray[np.uint8], batch: Batch) -> None:
    """Store float32 `(rows, dim)` as a batch's elements."""
    target = elements_of(buffer, batch)
    target[...] = narrow(x, batch.element).reshape(target.shape)

"""int8: 254 steps between a row's minimum and maximum.

Row: float32 scale, float32 minimum, dim signed codes in -127..127.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from .numeric import F32, flush

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..formats import LayerSpec

SMALLEST_SCALE: Final = F32(2.0**-100)
"""Below it a row counts as constant: no difference of elements may reach float32's subnormals."""


def pack(spec: LayerSpec, x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Codes rint((x - minimum) / scale) - 127; scale = (maximum - minimum) / 254, 1 for a constant row."""
    x = flush(x)
    low = x.min(axis=1, keepdims=True)
    scale = (x.max(axis=1, keepdims=True) - low) / F32(254)
    scale = np.where(scale < SMALLEST_SCALE, F32(1), scale)
    codes = np.rint((x - low) / scale).astype(np.int32) - 127
    return np.hstack([scale.view(np.uint8), low.view(np.uint8), codes.astype(np.int8).view(np.uint8)])


def unpack(spec: LayerSpec, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(code + 127) * scale + minimum, two roundings."""
    scale = np.ascontiguousarray(packed[:, 0:4]).view(np.float32)
    low = np.ascontiguousarray(packed[:, 4:8]).view(np.float32)
    steps = packed[:, 8:].view(np.int8).astype(np.float32) + F32(127)
    return steps * scale + low

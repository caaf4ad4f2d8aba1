"""bf16_rope_fp8_body: the elements that carry the rotary position as bfloat16, the others as fp8 blocks.

Row: `rope` bfloat16 words, then blocks of 34 bytes as in `fp8`; no header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..formats import Element
from .fp8 import E4M3, pack_blocks, unpack_blocks
from .numeric import fp32_to_bf16, widen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..formats import LayerSpec


def pack(spec: LayerSpec, x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Bfloat16 nearest-even, then fp8 blocks."""
    head = fp32_to_bf16(x[:, : spec.rope]).view(np.uint8)
    return np.hstack([head, pack_blocks(x[:, spec.rope :], E4M3)[0]])


def unpack(spec: LayerSpec, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Both parts side by side."""
    size = 2 * spec.rope
    return np.hstack([widen(packed[:, :size], Element.BF16), unpack_blocks(packed[:, size:], E4M3)])

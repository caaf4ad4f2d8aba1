"""What is checked before a backend runs, and the errors for what it refuses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .errors import NonFinite, Overflow, ShortBuffer
from .oracle.numeric import widen

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from .formats import Element
    from .layout import Heads


def byte_view(buffer: Buffer, needed: int, name: str) -> NDArray[np.uint8]:
    """The buffer as bytes.

    Raises:
        ShortBuffer: It holds fewer than `needed` bytes.
    """
    view = memoryview(buffer)
    if view.nbytes < needed:
        raise ShortBuffer(f"{name} holds {view.nbytes} bytes, {needed} are needed")
    return np.frombuffer(view, np.uint8)


def refusal(
    dim: int, limit: float, elements: NDArray[np.uint8], element: Element, layout: Heads, index: int
) -> NonFinite | Overflow:
    """The error for the element that a backend refused, by its flat index `row * dim + position`."""
    row, position = divmod(index, dim)
    head, inner = divmod(position, dim // layout.heads)
    offset = (head * layout.head_stride + row * layout.row_stride + inner) * element.itemsize
    value = float(widen(elements[offset : offset + element.itemsize], element)[0])
    return Overflow(row, position, value, limit) if math.isfinite(value) else NonFinite(row, position, value)

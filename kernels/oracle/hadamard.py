"""The Hadamard transform by butterflies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def hadamard(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Unnormalized transform of the last axis, of n = a power of two; twice gives n times the input.

    Strides 1, 2, 4, ... in that order: elements a and b a stride apart become a + b and a - b.
    """
    n = x.shape[-1]
    stride = 1
    while stride < n:
        pairs = x.reshape(*x.shape[:-1], n // (2 * stride), 2, stride)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([a + b, a - b], axis=-2).reshape(x.shape)
        stride *= 2
    return x

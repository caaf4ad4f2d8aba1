"""fp32, fp16, bf16: a conversion and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .numeric import narrow, widen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..formats import LayerSpec


def pack(spec: LayerSpec, x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rows in the format's element type."""
    element = spec.verbatim_element
    assert element is not None
    return narrow(x, element)


def unpack(spec: LayerSpec, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Rows as float32."""
    element = spec.verbatim_element
    assert element is not None
    return widen(packed, element)

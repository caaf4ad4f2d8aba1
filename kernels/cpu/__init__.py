"""The fast CPU backend: numba kernels that release the GIL and are kept compiled on disk.

One kernel per format and direction serves every element type and layout. Bytes equal the oracle's.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..formats import Element, LayerSpec
    from ..layout import Heads

# A family is imported when a format of it is first used, which loads its two kernels.
_FAMILIES: Final = {
    "fp32": "plain",
    "fp16": "plain",
    "bf16": "plain",
    "int8": "int8",
    "fp8": "fp8",
    "turbo4": "turbo",
    "turbo3": "turbo",
    "turbo2": "turbo",
    "mlx4g32": "affine",
}


def pack(
    spec: LayerSpec,
    source: NDArray[np.uint8],
    element: Element,
    rows: int,
    layout: Heads,
    out: NDArray[np.uint8],
) -> int:
    """Code rows; return -1, or the flat index of the first refused element."""
    limit_bits = int(np.float32(spec.details.limit).view(np.int32))
    refused: int = _family(spec).pack(
        _address(source),
        int(element),
        layout.heads,
        layout.head_stride,
        layout.row_stride,
        rows,
        spec.dim,
        limit_bits,
        _detail(spec),
        _address(out),
    )
    return refused


def unpack(
    spec: LayerSpec,
    packed: NDArray[np.uint8],
    rows: int,
    element: Element,
    layout: Heads,
    out: NDArray[np.uint8],
) -> None:
    """Decode rows."""
    _family(spec).unpack(
        _address(packed),
        int(element),
        layout.heads,
        layout.head_stride,
        layout.row_stride,
        rows,
        spec.dim,
        _detail(spec),
        _address(out),
    )


def _family(spec: LayerSpec) -> ModuleType:
    return importlib.import_module(f".{_FAMILIES[spec.format]}", __package__)


def _detail(spec: LayerSpec) -> int:
    """The one number a family needs beside the dim."""
    return spec.details.bits if spec.verbatim_element is None else int(spec.verbatim_element)


def _address(buffer: NDArray[np.uint8]) -> int:
    # An address, not an array: numba would compile a second kernel for read-only buffers.
    address: int = buffer.__array_interface__["data"][0]
    return address

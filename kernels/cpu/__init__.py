"""The fast CPU backend: numba kernels that release the GIL and are kept compiled on disk.

One kernel per family of formats and direction serves every element type and layout. Bytes equal the oracle's.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..batch import Batch
    from ..formats import LayerSpec
    from .rows import Elements, Work


def pack(spec: LayerSpec, batch: Batch, source: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    """Code rows; return -1, or the flat index of the first refused element."""
    refused: int = _family(spec).pack(elements_of(source, batch), _work(spec, batch.rows), address_of(out))
    return refused


def unpack(spec: LayerSpec, batch: Batch, packed: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Decode rows."""
    _family(spec).unpack(address_of(packed), _work(spec, batch.rows), elements_of(out, batch))


def _family(spec: LayerSpec) -> ModuleType:
    # Imported when a format of it is first used, which loads its two kernels.
    return importlib.import_module(f".{spec.details.family}", __package__)


def elements_of(buffer: NDArray[np.uint8], batch: Batch) -> Elements:
    """Where a batch's elements lie, for a kernel."""
    layout = batch.layout
    return address_of(buffer), int(batch.element), layout.heads, layout.head_stride, layout.row_stride


def _work(spec: LayerSpec, rows: int) -> Work:
    fmt = spec.details
    limit_bits = int(np.float32(fmt.limit).view(np.int32))
    return rows, spec.dim, fmt.bits, spec.group, spec.rope or int(fmt.variant), limit_bits


def address_of(buffer: NDArray[np.uint8]) -> int:
    """Address of the first byte."""
    # An address, not an array: numba would compile a second kernel for read-only buffers.
    address: int = buffer.__array_interface__["data"][0]
    return address

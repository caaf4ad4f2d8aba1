"""fp8 codes alone; scales of a tensor, a layer or each head come from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .fp8 import KINDS, decode, encode
from .numeric import F32, first_beyond, flush, read, write

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..batch import Batch
    from ..static_fp8 import StaticScales


def pack(scales: StaticScales, batch: Batch, source: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    """Code rows; return -1, or the flat index of the first refused element."""
    x = read(source, batch)
    refused = first_beyond(x, float(np.finfo(F32).max), non_finite=True)
    if refused < 0:
        with np.errstate(over="ignore"):
            aimed = flush(x) * (F32(1) / _by_element(scales, batch.dim))
        out[: x.size] = encode(aimed, KINDS[scales.mantissa_bits]).ravel()
    return refused


def unpack(scales: StaticScales, batch: Batch, packed: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Code value * scale."""
    codes = packed[: batch.rows * batch.dim].reshape(batch.rows, batch.dim)
    write(decode(codes, KINDS[scales.mantissa_bits]) * _by_element(scales, batch.dim), out, batch)


def _by_element(scales: StaticScales, dim: int) -> NDArray[np.float32]:
    return np.repeat(np.array(scales.values, F32), dim // len(scales.values))

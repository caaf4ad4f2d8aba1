"""The oracle: every format in plain numpy. It is the definition; other backends equal it bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from . import affine, fp8, int8, plain, qserve, rope, rvq, turbo
from .numeric import first_beyond, read, write

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..batch import Batch
    from ..formats import LayerSpec


class _Family(Protocol):
    def pack(self, spec: LayerSpec, x: NDArray[np.float32]) -> NDArray[np.uint8]: ...

    def unpack(self, spec: LayerSpec, packed: NDArray[np.uint8]) -> NDArray[np.float32]: ...


_FAMILIES: Final[dict[str, _Family]] = {
    "plain": plain,
    "int8": int8,
    "fp8": fp8,
    "rope": rope,
    "turbo": turbo,
    "affine": affine,
    "qserve": qserve,
    "rvq": rvq,
}


def pack(spec: LayerSpec, batch: Batch, source: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    """Code rows; return -1, or the flat index of the first refused element."""
    x = read(source, batch)
    refused = first_beyond(x, spec.details.limit, non_finite=spec.details.quantized)
    if refused < 0:
        out[: batch.rows * spec.row_bytes] = _FAMILIES[spec.details.family].pack(spec, x).ravel()
    return refused


def unpack(spec: LayerSpec, batch: Batch, packed: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Decode rows."""
    stored = packed[: batch.rows * spec.row_bytes].reshape(batch.rows, spec.row_bytes)
    write(_FAMILIES[spec.details.family].unpack(spec, stored), out, batch)

"""The oracle: every format in plain numpy. It is the definition; other backends equal it bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from . import affine, fp8, int8, plain, qserve, rope, rvq, turbo
from .numeric import first_beyond, narrow, strided, widen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..formats import Element, LayerSpec
    from ..layout import Heads


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


def pack(
    spec: LayerSpec,
    source: NDArray[np.uint8],
    element: Element,
    rows: int,
    layout: Heads,
    out: NDArray[np.uint8],
) -> int:
    """Code rows; return -1, or the flat index of the first refused element."""
    x = widen(strided(source, spec.dim, element, rows, layout), element).reshape(rows, spec.dim)
    refused = first_beyond(x, spec.details.limit, non_finite=spec.details.quantized)
    if refused < 0:
        out[: rows * spec.row_bytes] = _FAMILIES[spec.details.family].pack(spec, x).ravel()
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
    stored = packed[: rows * spec.row_bytes].reshape(rows, spec.row_bytes)
    x = _FAMILIES[spec.details.family].unpack(spec, stored)
    target = strided(out, spec.dim, element, rows, layout)
    target[...] = narrow(x, element).reshape(target.shape)

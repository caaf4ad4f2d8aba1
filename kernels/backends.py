"""The backends that can code rows, and which one is used by default."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, Protocol, cast

from .errors import KernelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .formats import Element, LayerSpec
    from .layout import Heads

DEFAULT: Final = "cpu"

# A backend's module is imported when it is first used: numba alone takes more than half a second.
_MODULES: Final = {"oracle": "pionkv.kernels.oracle", "cpu": "pionkv.kernels.cpu"}


class Backend(Protocol):
    """What a backend module offers. Sizes and specs were checked by the caller; `rows` is at least 1."""

    def pack(
        self,
        spec: LayerSpec,
        source: NDArray[np.uint8],
        element: Element,
        rows: int,
        layout: Heads,
        out: NDArray[np.uint8],
    ) -> int:
        """Code rows; return -1, or the flat index `row * dim + element` of the first refused value."""

    def unpack(
        self,
        spec: LayerSpec,
        packed: NDArray[np.uint8],
        rows: int,
        element: Element,
        layout: Heads,
        out: NDArray[np.uint8],
    ) -> None:
        """Decode rows."""


def get_backend(name: str | None = None) -> Backend:
    """The backend with this name, the default one for None.

    Raises:
        KernelError: There is no such backend.
    """
    return cast("Backend", importlib.import_module(backend_module(name)))


def backend_module(name: str | None = None) -> str:
    """The import name of a backend.

    Raises:
        KernelError: There is no such backend.
    """
    module = _MODULES.get(name or DEFAULT)
    if module is None:
        raise KernelError(f"unknown backend '{name}' (want {'|'.join(_MODULES)})")
    return module

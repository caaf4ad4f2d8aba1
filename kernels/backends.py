"""The backends that can code rows, and which one is used by default."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Final, Protocol, cast

from .errors import KernelError
from .report import TALLY

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np
    from numpy.typing import NDArray

    from .batch import Batch
    from .formats import LayerSpec

DEFAULT: Final = "cpu"

# A backend's module is imported when it is first used: numba alone takes more than half a second.
_MODULES: Final = {"oracle": "pionkv.kernels.oracle", "cpu": "pionkv.kernels.cpu"}


class Backend(Protocol):
    """What a backend module offers. Sizes and specs were checked by the caller; there is at least one row."""

    def pack(self, spec: LayerSpec, batch: Batch, source: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
        """Code rows; return -1, or the flat index `row * dim + position` of the first refused element."""

    def unpack(
        self, spec: LayerSpec, batch: Batch, packed: NDArray[np.uint8], out: NDArray[np.uint8]
    ) -> None:
        """Decode rows."""


def get_backend(name: str | None = None) -> Backend:
    """The backend with this name, the default one for None.

    Raises:
        KernelError: There is no such backend.
    """
    return cast("Backend", load_backend(backend_module(name)))


@functools.cache
def load_backend(module: str) -> ModuleType:
    """A backend's module, or a part of it, which from now on counts as one that was tried and serves."""
    backend = module.split(".")[2]
    TALLY.tried(backend)
    loaded = importlib.import_module(module)
    TALLY.serves(backend)
    return loaded


def backend_module(name: str | None = None) -> str:
    """The import name of a backend.

    Raises:
        KernelError: There is no such backend.
    """
    module = _MODULES.get(name or DEFAULT)
    if module is None:
        raise KernelError(f"unknown backend '{name}' (want {'|'.join(_MODULES)})")
    return module

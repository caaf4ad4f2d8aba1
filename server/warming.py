"""Loading compiled kernels beside the running server.

Loading a kernel from disk takes about a tenth of a second, and seconds the first time on a machine.
The event loop must not wait for that: rows of a format whose kernels are not loaded are coded by a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pionkv.kernels import LAYER_FORMATS, LayerSpec, warm_up
from pionkv.protocol import batch

from .compiled import compile_scan
from .logs import logger


class KernelLoader:
    """Loads, in a thread of its own, the loop that finds commands, and then one kernel of each family.

    Attributes:
        afterwards: Called by the thread when all are loaded.
    """

    def __init__(self) -> None:
        self.afterwards: Callable[[], None] = lambda: None
        self._loaded: set[str] = set()
        self.busy = False
        """Kernels are being loaded."""
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin."""
        self.busy = True
        threading.Thread(target=self._run, name="kernels", daemon=True).start()

    def stop(self) -> None:
        """Load no further ones."""
        self._stop.set()

    def has(self, spec: LayerSpec) -> bool:
        """Whether the kernels of a layer's format are loaded."""
        return spec.details.family in self._loaded

    def _run(self) -> None:
        try:
            batch.use(compile_scan())
        except Exception as error:
            logger().warning("commands are parsed by hand", error=str(error))
        for family, formats in _by_family().items():
            if self._stop.is_set():
                break
            warm_up(formats)
            self._loaded.add(family)
        self.afterwards()
        self.busy = False
        logger().debug("kernels loaded", families=sorted(self._loaded))


def _by_family() -> dict[str, list[str]]:
    """Formats that use every kernel of a family; where groups are coded, each side has its own."""
    kinds = {(known.family, known.tokens): known.name for known in LAYER_FORMATS.values()}
    families: dict[str, list[str]] = {}
    for (family, _), name in kinds.items():
        families.setdefault(family, []).append(name)
    return families

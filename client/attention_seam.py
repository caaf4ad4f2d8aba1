"""The place in mlx-lm where attention is computed: checked, replaced, and put back.

mlx-lm's models import `scaled_dot_product_attention` from `mlx_lm.models.base` by name. It is no public
interface: before anything is replaced all that is relied upon is looked at, and what moved is named.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import ModuleType
from typing import Any

from .errors import StoreError

MODULE, NAME = "mlx_lm.models.base", "scaled_dot_product_attention"
PARAMETERS = ("queries", "keys", "values", "cache", "scale", "mask", "sinks")

Attention = Callable[..., Any]


class SeamMoved(StoreError):
    """mlx-lm computes attention in a way that this package does not know; nothing was changed."""


_lock = threading.Lock()
_users = 0
_original: Attention | None = None


def check_seam() -> Attention:
    """mlx-lm's function.

    Raises:
        SeamMoved: It is not where it was, takes other arguments, or somebody else has replaced it.
    """
    import mlx_lm.models.base as base

    where = f"{MODULE}.{NAME} of mlx-lm {version('mlx-lm')}"
    found = vars(base).get(NAME)
    if found is None:
        raise SeamMoved(f"there is no {where}")
    if not inspect.isfunction(found):
        raise SeamMoved(f"{where} is a {type(found).__name__}, not a function")
    if found.__module__ != MODULE:
        raise SeamMoved(f"{where} has been replaced by {found.__module__}.{found.__qualname__}")
    parameters = tuple(inspect.signature(found).parameters)
    if parameters != PARAMETERS:
        raise SeamMoved(f"{where} takes {', '.join(parameters)}; known is {', '.join(PARAMETERS)}")
    return found


def is_replaced() -> bool:
    """Whether somebody has asked for that, and has not given it back."""
    return _users > 0


@contextmanager
def replaced(make: Callable[[Attention], Attention]) -> Iterator[None]:
    """Have every module that imported the function use another one; several may ask for it at a time.

    Args:
        make: Makes the other function, given mlx-lm's. The first who asks decides.

    Raises:
        SeamMoved: See `check_seam`.
    """
    global _users, _original
    with _lock:
        if not _users:
            _original = check_seam()
            _put(_original, make(_original))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                import mlx_lm.models.base as base

                assert _original is not None
                _put(vars(base)[NAME], _original)


def _put(old: Attention, new: Attention) -> None:
    for module in list(sys.modules.values()):
        # Not getattr: some modules import others when they are asked for a name.
        if isinstance(module, ModuleType) and vars(module).get(NAME) is old:
            setattr(module, NAME, new)

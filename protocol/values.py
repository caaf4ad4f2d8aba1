"""Reply types that Python has no type of its own for."""

from __future__ import annotations

from typing import NamedTuple


class Simple(str):
    """A status line such as `OK`: text without CR and LF."""

    __slots__ = ()


class Verbatim(NamedTuple):
    """A text for people."""

    text: bytes
    kind: str = "txt"
    """Three letters: `txt` or `mkd`."""

"""Rows of the wire on their way to memory that has each head's rows in one piece. Imports no framework."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

_WIDE_BYTES = 128
"""Bytes of one head in one row from which on they are moved as elements."""
_BLOCK_ROWS = 512
"""Rows that are cut into heads at a time."""


class Scratch(threading.local):
    """Memory for rows on their way, used again and again: touched pages are fast. Each thread has its own."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def take(self, length: int) -> memoryview:
        """So many writable bytes, valid until the next call."""
        if self._bytes.nbytes < length:
            self._bytes = np.empty(length, np.uint8)
        return self._bytes.data[:length]


def spread(rows: memoryview, row_bytes: int, first: int, target: np.ndarray[Any, Any]) -> None:
    """Cut rows into heads: ``target`` is ``(heads, rows, elements)``.

    Each row has the elements of all heads one after the other, from byte `first` on. numpy moves a head's
    elements of a row fastest as one item where they are few bytes, and as a run of elements where they are
    many; and all heads of some rows before the next rows, which are in the processor's cache then.
    """
    heads, count, width = target.shape
    head_bytes = width * target.itemsize
    item = target.dtype if head_bytes >= _WIDE_BYTES else np.dtype((np.void, head_bytes))
    places = target.view(item)
    strides = (row_bytes, head_bytes, item.itemsize)
    source = np.ndarray((count, heads, places.shape[2]), item, rows, offset=first, strides=strides)
    for start in range(0, count, _BLOCK_ROWS):
        some = slice(start, start + _BLOCK_ROWS)
        places[:, some] = source[some].swapaxes(0, 1)

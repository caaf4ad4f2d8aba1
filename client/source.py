"""What a publication sends: read out of caches as it is sent, or copied before, so that they may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from . import cache_states
from .layout import ELEMENTS
from .publish import SIDES
from .rows import packed_rows, rows_of
from .shape import Shape


class Live:
    """Caches that nobody writes to before the publication is over.

    Args:
        shape: What they look like.
        caches: The model's; they hold the tokens.
        tokens: How many tokens.
    """

    first = 0

    def __init__(self, shape: Shape, caches: Sequence[Any], tokens: int) -> None:
        self.shape = shape
        self.tokens = tokens
        self._caches = caches
        kept = [caches[index] for index in shape.layout.row_caches]
        self._sides = ([cache.keys for cache in kept], [cache.values for cache in kept])

    def width(self, side: int, layer: int) -> int:
        """As `Source`: bytes of a row."""
        if self.shape.attached:
            plan = self.shape.plan
            return (plan.keys, plan.values)[side][layer].row_bytes
        array = self._sides[side][layer]
        return int(array.nbytes // array.shape[2])

    def rows(self, side: int, layer: int, start: int, end: int) -> tuple[memoryview, str]:
        """As `Source`: some rows."""
        array = self._sides[side][layer]
        if isinstance(array, mx.array):
            return rows_of(array, start, end), ELEMENTS[array.dtype].name
        return packed_rows(array, start, end), "RAW"

    def state(self, index: int) -> memoryview:
        """As `Source`: a cache."""
        return memoryview(cache_states.dump(self._caches[index], self.tokens))

    def snapshot(self, first: int) -> Snapshot:
        """A copy of the rows from `first` on, and of the states."""
        return Snapshot(self, first)

    def row_bytes(self, first: int) -> int:
        """Bytes of the rows from `first` on."""
        layers = range(len(self.shape.layout.rows))
        return (self.tokens - first) * sum(self.width(side, layer) for side in SIDES for layer in layers)


class Snapshot:
    """A copy of the rows from `first` on, and of the states. Shares no memory with the caches.

    The copy is made here, by the thread that calls: nothing of mlx is left to be done by another.

    Attributes:
        nbytes: Bytes that it takes.
    """

    def __init__(self, live: Live, first: int) -> None:
        self.first = first
        layout = live.shape.layout
        layers = range(len(layout.rows))
        self._rows = tuple(
            [live.rows(side, layer, first, live.tokens) for layer in layers] if first < live.tokens else []
            for side in SIDES
        )
        self._widths = tuple([live.width(side, layer) for layer in layers] for side in SIDES)
        self._states = {index: live.state(index) for index in layout.state_caches}
        copied = [rows for side in self._rows for rows, _ in side]
        self.nbytes = sum(part.nbytes for part in (*copied, *self._states.values()))

    def width(self, side: int, layer: int) -> int:
        """As `Source`: bytes of a row."""
        return self._widths[side][layer]

    def rows(self, side: int, layer: int, start: int, end: int) -> tuple[memoryview, str]:
        """As `Source`: some rows."""
        rows, form = self._rows[side][layer]
        width = self._widths[side][layer]
        return rows[(start - self.first) * width : (end - self.first) * width], form

    def state(self, index: int) -> memoryview:
        """As `Source`: a cache."""
        return self._states[index]

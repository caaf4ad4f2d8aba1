"""The softmax over rows that come in pieces (Milakov and Gimelshein, Online normalizer calculation, 2018)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import mlx.core as mx

MASKED: Final = -1e30
"""Stands for minus infinity, whose difference with itself is no number."""
LEAST: Final = 1e-30
"""Keeps a sum over no rows from being zero."""


class Part(NamedTuple):
    """Attention over some of the rows: output `[H, M, D]` and log-sum-exp `[H, M, 1]`, float32."""

    out: mx.array
    lse: mx.array

    def merged(self, other: Part) -> Part:
        """Attention over the rows of both."""
        lse = mx.logaddexp(self.lse, other.lse)
        return Part(self.out * mx.exp(self.lse - lse) + other.out * mx.exp(other.lse - lse), lse)


class Running:
    """Attention over the rows so far.

    Args:
        heads: H.
        count: M.
        width: D.
    """

    def __init__(self, heads: int, count: int, width: int) -> None:
        self._top = mx.full((heads, count, 1), MASKED)
        self._total = mx.zeros((heads, count, 1))
        self._out = mx.zeros((heads, count, width))

    def add(
        self, scores: mx.array, mix: Callable[[mx.array], mx.array], seen: mx.array | None = None
    ) -> None:
        """More rows.

        Args:
            scores: Scaled scores `[H, M, rows]`.
            mix: From weights of this shape to the sums of the values that they weigh, `[H, M, D]`.
            seen: Which rows each query sees; by default all.
        """
        if seen is not None:
            scores = mx.where(seen, scores, MASKED)
        highest = mx.maximum(self._top, scores.max(axis=-1, keepdims=True))
        weights, shrink = mx.exp(scores - highest), mx.exp(self._top - highest)
        if seen is not None:
            weights = mx.where(seen, weights, 0.0)
        self._total = self._total * shrink + weights.sum(axis=-1, keepdims=True)
        self._out = self._out * shrink + mix(weights)
        self._top = highest
        mx.eval(self._out, self._total, self._top)

    @property
    def part(self) -> Part:
        """The attention; zeros, and a log-sum-exp that weighs nothing, where no row was seen."""
        total = mx.maximum(self._total, LEAST)
        return Part(self._out / total, self._top + mx.log(total))

"""The rows whose keys a query scores highest: exactly, or by an index over many of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import Element
from .forms import Floats
from .packed import PackedSide

INDEX_ROWS: Final = 100_000
"""From so many rows on an index is worth what it costs to build."""
CANDIDATES: Final = 256
"""Rows that the index looks at for an answer, at least."""
PIECE_ELEMENTS: Final = 1 << 20

Rows = NDArray[np.int64]


class KeyMatrix:
    """Decoded keys, float32 `[N, D]`; ranks by the inner product."""

    def __init__(self, side: PackedSide) -> None:
        self._keys = np.concatenate(list(_pieces(side)))

    @staticmethod
    def bytes_of(side: PackedSide) -> int:
        """Memory that the keys would take."""
        return side.rows * side.spec.dim * Element.F32.itemsize

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return self._keys.nbytes

    def best(self, query: Floats, most: int) -> Rows:
        """The rows that score highest, the best first; of equals the earlier one."""
        return best_of(self._keys @ query, most)


class KeyIndex:
    """An approximate index over keys (HNSW, by usearch).

    Raises:
        ImportError: usearch is not installed.
    """

    def __init__(self, side: PackedSide) -> None:
        from usearch.index import Index

        self._index: Any = Index(ndim=side.spec.dim, metric="ip", dtype="f32", expansion_search=CANDIDATES)
        first = 0
        for keys in _pieces(side):
            self._index.add(np.arange(first, first + len(keys), dtype=np.uint64), keys)
            first += len(keys)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return int(self._index.memory_usage)

    def best(self, query: Floats, most: int) -> Rows:
        """Rows that score high, the best first."""
        return self._index.search(query, most).keys.astype(np.int64)  # type: ignore[no-any-return]


def rank_streamed(side: PackedSide, query: Floats, most: int) -> Rows:
    """As `KeyMatrix.best`, with no more than a piece of the keys in memory."""
    return best_of(np.concatenate([keys @ query for keys in _pieces(side)]), most)


def best_of(scores: Floats, most: int) -> Rows:
    """The places of the highest scores, the highest first; of equals the earlier one."""
    scores = np.where(np.isnan(scores), -np.inf, scores)
    if most < len(scores):
        limit = np.partition(scores, len(scores) - most)[len(scores) - most]
        # All that reach the limit: which of several equals are taken must not depend on the partition.
        places = np.flatnonzero(scores >= limit)
    else:
        places = np.arange(len(scores))
    order = np.argsort(-scores[places], kind="stable")
    return places[order][:most].astype(np.int64)


def attend_best(q: Floats, k: Floats, v: Floats, most: int) -> Floats:
    """Attention of one query of each head over the `most` rows that score highest for it.

    Args:
        q: `[H, D]`.
        k: `[H, N, D]`.
        v: The same.
        most: Rows.

    Returns:
        `[H, D]`.
    """
    out = np.empty_like(q)
    for head, query in enumerate(q):
        scores = (k[head] @ query) * np.float32(q.shape[1] ** -0.5)
        rows = best_of(scores, most)
        weights = np.exp(scores[rows] - scores[rows[0]])
        out[head] = (weights / weights.sum()) @ v[head, rows]
    return out


def _pieces(side: PackedSide) -> Iterator[Floats]:
    dim, total = side.spec.dim, side.rows
    step = max(1, PIECE_ELEMENTS // dim)
    for first in range(0, total, step):
        keys = np.empty((min(step, total - first), dim), np.float32)
        side.unpack(first, first + len(keys), 1, Element.F32, keys)
        yield keys

"""What an attention engine offers, and the one that this machine has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .forms import Attended, HeadMap, Query, Selector
from .packed import PackedLayer


class ResidentRows(Protocol):
    """Rows of one layer that an engine has made ready; they stay so as long as they are referenced."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they keep."""


class Engine(Protocol):
    """Computes attention. Every call, from loading it on, belongs to one thread.

    Attributes:
        device: `cpu`, `metal` or `cuda`.
    """

    device: str

    def resident_bytes(self, layer: PackedLayer) -> int:
        """Bytes that `load` would keep for a layer."""

    def load(self, layer: PackedLayer) -> ResidentRows:
        """Make rows ready for many queries."""

    def stream(self, layer: PackedLayer) -> ResidentRows:
        """Rows that are decoded a piece at a time, anew in every pass: they keep no memory."""

    def attend(
        self, rows: ResidentRows, queries: Sequence[Query], head_map: HeadMap, window: int = 0
    ) -> list[Attended]:
        """Attention of several callers' queries in one pass over the rows.

        Args:
            rows: The stored rows.
            queries: Queries with heads as `head_map` has them.
            head_map: The key/value head of each query head.
            window: How many of the last stored rows are seen; 0 for all.

        Raises:
            AttentionError: A query does not fit the rows.
        """

    def attend_at(
        self,
        rows: ResidentRows,
        query: Query,
        head_map: HeadMap,
        indices: NDArray[np.int32],
        counts: NDArray[np.uint32],
        window: int = 0,
    ) -> Attended:
        """Attention of one query of each head over rows that it names.

        Args:
            rows: The stored rows.
            query: One query of each head.
            head_map: The key/value head of each query head.
            indices: `[H_q, K]`; the first `counts[h]` of each head count, and each row counts once.
            counts: `[H_q]`.
            window: How many of the last stored rows are seen as well.

        Raises:
            AttentionError: The query does not fit the rows, or an index or count is out of range.
        """

    def attend_blocks(
        self,
        rows: ResidentRows,
        query: Query,
        head_map: HeadMap,
        block: int,
        most: int,
        selector: Selector,
        window: int = 0,
    ) -> Attended:
        """Attention of one query of each head over the blocks of rows that rank highest for it.

        Args:
            rows: The stored rows.
            query: One query of each head.
            head_map: The key/value head of each query head.
            block: Rows of a block.
            most: Blocks for each query head.
            selector: How they are ranked.
            window: How many of the last stored rows are seen as well.

        Raises:
            AttentionError: The query does not fit the rows.
        """


def load_engine() -> Engine | None:
    """The engine of this machine; None without mlx. The calling thread is the one that may use it."""
    from ..blas import preload_blas

    preload_blas()
    try:
        import mlx.core  # noqa: F401
    except ImportError:
        return None
    from .mlx_engine import MlxEngine

    return MlxEngine()

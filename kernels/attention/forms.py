"""What is asked of an attention engine, and what it answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import KernelError

MAX_HEAD_DIM: Final = 512
"""Largest number of elements of a head."""
MAX_HEADS: Final = 256
"""Most heads of a layer: a head map has a byte for each."""

Floats: TypeAlias = NDArray[np.float32]
HeadMap: TypeAlias = tuple[int, ...]
"""The key/value head of each query head."""


class AttentionError(KernelError):
    """A query does not fit the rows; the text says what and how."""


class Selector(enum.IntEnum):
    """How blocks of rows are ranked for a query."""

    BLOCK_MEAN = 0
    """By the query's product with the mean of the block's keys."""
    QUEST = 1
    """By the largest product that any key between the block's least and greatest elements could have."""


@dataclass(frozen=True, slots=True)
class Suffix:
    """Rows that follow the stored ones and belong to the one who asks.

    Attributes:
        k: Keys, float32 `[H_kv, S, D]`.
        v: Values, the same shape.
    """

    k: Floats
    v: Floats

    @property
    def rows(self) -> int:
        """How many."""
        return int(self.k.shape[1])


@dataclass(frozen=True, slots=True)
class Query:
    """Queries of one caller.

    Attributes:
        q: float32 `[H_q, M, D]`.
        suffix: Its own rows. Query m stands at row `S - M + m` of them and sees none after that.
        lse: Whether the log-sum-exp is wanted.
    """

    q: Floats
    suffix: Suffix | None = None
    lse: bool = False

    @property
    def count(self) -> int:
        """Queries of each head."""
        return int(self.q.shape[1])


class Attended(NamedTuple):
    """What one query got.

    Attributes:
        out: float32 `[H_q, M, D]`.
        lse: float32 `[H_q, M]`, over all rows that were attended; None when it was not asked for.
    """

    out: Floats
    lse: Floats | None


def contiguous_map(query_heads: int, kv_heads: int) -> HeadMap:
    """The usual map of grouped queries: as many query heads in a row for each key/value head.

    Raises:
        AttentionError: The query heads are no multiple of the others.
    """
    if kv_heads < 1 or query_heads % kv_heads:
        raise AttentionError(f"{query_heads} query heads are no multiple of {kv_heads} key/value heads")
    share = query_heads // kv_heads
    return tuple(head // share for head in range(query_heads))

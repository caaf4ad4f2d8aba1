"""Attention in float64 numpy, a row at a time where that is clearer: what every engine is compared with."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .forms import HeadMap, Selector

Doubles: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


def softmax_part(scores: Doubles, v: Doubles, seen: Bools) -> tuple[Doubles, float]:
    """The output of one query over the rows that it sees, and the log-sum-exp; zeros and -inf over none.

    Args:
        scores: Scaled scores, `[N]`.
        v: Values, `[N, D]`.
        seen: Which rows count, `[N]`.
    """
    if not seen.any():
        return np.zeros(v.shape[1]), -np.inf
    kept = scores[seen]
    top = kept.max()
    weights = np.exp(kept - top)
    return weights @ v[seen] / weights.sum(), float(top + np.log(weights.sum()))


def within(rows: int, window: int) -> Bools:
    """The last `window` of the rows; all of them for 0 and less."""
    seen = np.ones(rows, dtype=np.bool_)
    if 0 < window < rows:
        seen[: rows - window] = False
    return seen


def attend(
    q: Doubles,
    k: Doubles,
    v: Doubles,
    head_map: HeadMap,
    seen: Bools | None = None,
    *,
    window: int = 0,
    suffix: tuple[Doubles, Doubles] | None = None,
) -> tuple[Doubles, Doubles]:
    """Output `[H_q, M, D]` and log-sum-exp `[H_q, M]`.

    Args:
        q: Queries, `[H_q, M, D]`.
        k: Keys, `[H_kv, N, D]`.
        v: Values, `[H_kv, N, D]`.
        head_map: The key/value head of each query head.
        seen: Which stored rows each query head sees, `[H_q, N]`; by default those in the window.
        window: How many of the last stored rows are seen; 0 for all.
        suffix: Keys and values after the stored ones, `[H_kv, S, D]`; query m sees those up to `S - M + m`.
    """
    out, lse = np.zeros(q.shape), np.zeros(q.shape[:2])
    count, rows, scale = q.shape[1], k.shape[1], q.shape[2] ** -0.5
    for head, source in enumerate(head_map):
        visible = within(rows, window) if seen is None else seen[head]
        keys, values = k[source], v[source]
        if suffix is not None:
            keys = np.concatenate([keys, suffix[0][source]])
            values = np.concatenate([values, suffix[1][source]])
        for m in range(count):
            own = np.arange(len(keys) - rows) <= len(keys) - rows - count + m
            mask = np.concatenate([visible, own])
            out[head, m], lse[head, m] = softmax_part(keys @ q[head, m] * scale, values, mask)
    return out, lse


def block_scores(q: Doubles, k: Doubles, head_map: HeadMap, block: int, selector: Selector) -> Doubles:
    """How each block of rows is ranked by each query head, `[H_q, blocks]`; the last block may be short.

    Args:
        q: One query of each head, `[H_q, D]`.
        k: Keys, `[H_kv, N, D]`.
        head_map: The key/value head of each query head.
        block: Rows of a block.
        selector: The rule. QUEST is that of Tang et al., Quest, 2024.
    """
    starts = range(0, k.shape[1], block)
    found = np.zeros((len(head_map), len(starts)))
    for head, source in enumerate(head_map):
        for place, start in enumerate(starts):
            rows = k[source, start : start + block]
            if selector is Selector.BLOCK_MEAN:
                found[head, place] = q[head] @ rows.mean(0)
            else:
                found[head, place] = np.maximum(q[head] * rows.min(0), q[head] * rows.max(0)).sum()
    return found


def seen_in_blocks(scores: Doubles, rows: int, block: int, most: int, window: int = 0) -> Bools:
    """The rows of the `most` blocks of highest rank, and those of the window, `[H_q, rows]`."""
    seen = np.zeros((len(scores), rows), dtype=np.bool_)
    for head, ranks in enumerate(scores):
        for place in np.argsort(-ranks, kind="stable")[:most]:
            seen[head, place * block : (place + 1) * block] = True
    if window > 0:
        seen |= within(rows, window)
    return seen


def seen_by_index(
    indices: NDArray[np.int32], counts: NDArray[np.uint32], rows: int, window: int = 0
) -> Bools:
    """The rows named, the first `counts[h]` of each head, and those of the window, `[H_q, rows]`."""
    seen = np.zeros((len(indices), rows), dtype=np.bool_)
    for head, count in enumerate(counts):
        seen[head, indices[head, :count]] = True
    if window > 0:
        seen |= within(rows, window)
    return seen

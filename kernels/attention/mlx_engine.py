"""The attention engine on mlx: Metal on Apple machines, CUDA on NVIDIA's, else the CPU.

`mx.fast.scaled_dot_product_attention` on a GPU where it fits: decoded rows, no log-sum-exp, nothing to merge.
Otherwise an online softmax over pieces of the rows, in float32 whatever the rows are kept in: memory stays
bounded and the log-sum-exp exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..formats import Element
from .forms import Attended, AttentionError, HeadMap, Query, Selector, Suffix
from .grouping import Grouping, group
from .mlx_rows import (
    DenseSide,
    MlxRows,
    Side,
    StreamedSide,
    as_rows,
    check,
    decode,
    layer_sides,
    load_quantized,
    packs_like_mlx,
    quantized_bytes,
    quantized_products_work,
)
from .online import Part, Running
from .packed import PackedLayer, PackedSide

SCORES: Final = 1 << 23
"""Scores that are held at a time: 32 MiB of float32."""
FUSED_SCORES: Final = 1 << 28
"""Scores that mlx's own attention may have: it holds them where it has no kernel for a shape."""
FEWEST_ROWS: Final = 256
"""Rows of a piece at least: with many queries it is these that are cut into pieces."""
PICKED: Final = 1 << 22
"""Elements of picked rows of one side that are held at a time."""
CACHE_BYTES: Final = 128 << 20
"""Freed memory that mlx keeps for its next arrays."""


class MlxEngine:
    """Computes attention with mlx's default device. Every call belongs to the thread that made it.

    Args:
        quantized: Whether rows in mlx's own packing stay packed; by default on a GPU whose quantised products
            work, as memory traffic is what costs there. On a CPU they are slower than those of decoded rows.
        fused: Whether mlx's own attention is used where it fits; by default on a GPU. On a CPU it reads
            shared heads once for each query head, which the passes here do not.
    """

    def __init__(self, *, quantized: bool | None = None, fused: bool | None = None) -> None:
        gpu = mx.default_device() == mx.Device(mx.gpu)
        self.device = "cpu" if not gpu else "metal" if mx.metal.is_available() else "cuda"
        self._quantized = gpu and quantized_products_work() if quantized is None else quantized
        self._fused = gpu if fused is None else fused
        mx.set_cache_limit(CACHE_BYTES)

    def resident_bytes(self, layer: PackedLayer) -> int:
        """See `Engine`."""
        return sum(self._side_bytes(layer, side) for side in layer_sides(layer))

    def load(self, layer: PackedLayer) -> MlxRows:
        """See `Engine`."""
        return self._rows(layer, *(self._load_side(layer, side) for side in layer_sides(layer)))

    def stream(self, layer: PackedLayer) -> MlxRows:
        """See `Engine`."""
        sides = (StreamedSide(side, layer.heads, self._element(side)) for side in layer_sides(layer))
        return self._rows(layer, *sides)

    def attend(
        self, rows: object, queries: Sequence[Query], head_map: HeadMap, window: int = 0
    ) -> list[Attended]:
        """See `Engine`."""
        held, grouping = as_rows(rows), group(head_map, as_rows(rows).heads)
        for query in queries:
            check(held, query.q)
        first = held.rows - window if 0 < window < held.rows else 0
        q = mx.array(np.concatenate([query.q for query in queries], axis=1))
        if self._fused and all(query.suffix is None and not query.lse for query in queries):
            fast = _fast(held, q, grouping, first)
            if fast is not None:
                return _split(queries, fast)
        parts = _passes(held, q, grouping, first, None)
        merged: list[Part] = []
        start = 0
        for query in queries:
            part = Part(*(each[:, start : start + query.count] for each in parts))
            merged.append(_with_suffix(part, query, grouping))
            start += query.count
        return [_answer(query, part) for query, part in zip(queries, merged, strict=True)]

    def attend_at(
        self,
        rows: object,
        query: Query,
        head_map: HeadMap,
        indices: NDArray[np.int32],
        counts: NDArray[np.uint32],
        window: int = 0,
    ) -> Attended:
        """See `Engine`."""
        held = as_rows(rows)
        if counts.size and int(counts.max()) > indices.shape[1]:
            raise AttentionError(f"a count of {int(counts.max())} rows, {indices.shape[1]} are given")
        chosen = [np.unique(indices[head, :count]) for head, count in enumerate(counts)]
        for named in chosen:
            if named.size and not 0 <= int(named[0]) <= int(named[-1]) < held.rows:
                worst = int(named[-1] if named[0] >= 0 else named[0])
                raise AttentionError(f"row {worst} is not within 0..{held.rows - 1}")
        return _attend_chosen(held, query, head_map, chosen, window)

    def attend_blocks(
        self,
        rows: object,
        query: Query,
        head_map: HeadMap,
        block: int,
        most: int,
        selector: Selector,
        window: int = 0,
    ) -> Attended:
        """See `Engine`."""
        held = as_rows(rows)
        check(held, query.q)
        block = min(block, held.rows)
        ranks = _block_scores(held, query.q[:, 0], head_map, block, selector)
        best = np.argsort(-ranks, axis=1, kind="stable")[:, :most]
        spread = np.sort(best, axis=1)[:, :, None] * block + np.arange(block)
        chosen = [found[found < held.rows] for found in spread.reshape(len(best), -1)]
        return _attend_chosen(held, query, head_map, chosen, window)

    def _rows(self, layer: PackedLayer, k: Side, v: Side) -> MlxRows:
        return MlxRows(k, v, layer.rows, layer.heads, layer.head_dim)

    def _element(self, side: PackedSide) -> Element:
        """What rows are decoded to: float32 on a CPU, which is slow with anything else."""
        stored = side.spec.verbatim_element
        if self.device == "cpu" or stored is Element.F32:
            return Element.F32
        return stored or Element.F16

    def _stays_packed(self, layer: PackedLayer, side: PackedSide) -> bool:
        return self._quantized and packs_like_mlx(side, layer.head_dim)

    def _side_bytes(self, layer: PackedLayer, side: PackedSide) -> int:
        if self._stays_packed(layer, side):
            return quantized_bytes(side, layer.rows)
        return layer.rows * side.spec.dim * self._element(side).itemsize

    def _load_side(self, layer: PackedLayer, side: PackedSide) -> Side:
        if self._stays_packed(layer, side):
            return load_quantized(side, layer.rows, layer.heads)
        return DenseSide(decode(side, 0, layer.rows, layer.heads, self._element(side)))


def _fast(rows: MlxRows, q: mx.array, grouping: Grouping, first: int) -> mx.array | None:
    """Mlx's own attention, when the rows are decoded and all scores may be held at once; else None."""
    fits = q.shape[0] * q.shape[1] * (rows.rows - first) <= FUSED_SCORES
    if not (fits and grouping.is_plain and isinstance(rows.k, DenseSide) and isinstance(rows.v, DenseSide)):
        return None
    k, v = (side.dense(first, rows.rows) for side in (rows.k, rows.v))
    if k.dtype != v.dtype:
        return None
    count = q.shape[1]
    # Callers come together in any number, and a GPU prepares for each shape that it meets: they are few so.
    padded = mx.pad(q, [(0, 0), (0, (1 << (count - 1).bit_length()) - count), (0, 0)])
    scale = rows.head_dim**-0.5
    out = mx.fast.scaled_dot_product_attention(padded[None].astype(k.dtype), k[None], v[None], scale=scale)
    return out[0, :, :count]


def _passes(rows: MlxRows, q: mx.array, grouping: Grouping, first: int, causal: int | None) -> Part:
    """Attention over rows [first, rows), so many queries at a time that their scores stay bounded.

    Args:
        rows: The rows.
        q: `[H_q, M, D]`.
        grouping: Which query heads go together.
        first: The first row that is seen.
        causal: Query m sees no row after `causal + m`; None: all see all.
    """
    count = q.shape[1]
    step = max(1, SCORES // (grouping.kv_heads * grouping.share * FEWEST_ROWS))
    parts = [
        _one_pass(rows, q[:, m : m + step], grouping, first, None if causal is None else causal + m)
        for m in range(0, count, step)
    ]
    return (
        parts[0] if len(parts) == 1 else Part(*(mx.concatenate(each, 1) for each in zip(*parts, strict=True)))
    )


def _one_pass(rows: MlxRows, q: mx.array, grouping: Grouping, first: int, causal: int | None) -> Part:
    count = q.shape[1]
    grouped = q if grouping.is_plain else q[mx.array(grouping.heads)]
    grouped = grouped.reshape(grouping.kv_heads, grouping.share * count, -1) * rows.head_dim**-0.5
    heads, places, width = grouped.shape
    running = Running(heads, places, width)
    step = min(rows.step, max(FEWEST_ROWS, SCORES // (heads * places)))
    for low in range(first, rows.rows, step):
        high = min(low + step, rows.rows)
        seen = None if causal is None else _visible(low, high, causal, count, grouping.share)
        running.add(rows.k.scores(grouped, low, high), partial(rows.v.mix, first=low, last=high), seen)
    return _ungrouped(running.part, grouping, count)


def _visible(low: int, high: int, causal: int, count: int, share: int) -> mx.array:
    """Which of rows [low, high) each query of a line sees, `[share * count, high - low]`."""
    last = mx.tile(mx.arange(count) + causal, (share,))
    return mx.arange(low, high)[None] <= last[:, None]


def _ungrouped(part: Part, grouping: Grouping, count: int) -> Part:
    """Back to query heads in their own order."""
    places = None if grouping.is_plain else mx.array(grouping.places)
    flat = (each.reshape(-1, count, each.shape[-1]) for each in part)
    return Part(*(each if places is None else each[places] for each in flat))


def _with_suffix(part: Part, query: Query, grouping: Grouping) -> Part:
    if query.suffix is None or not query.suffix.rows:
        return part
    rows = _suffix_rows(query.suffix, grouping)
    own = _passes(rows, mx.array(query.q), grouping, 0, query.suffix.rows - query.count)
    return part.merged(own)


def _suffix_rows(suffix: Suffix, grouping: Grouping) -> MlxRows:
    heads, count, head_dim = suffix.k.shape
    if heads != grouping.kv_heads or suffix.v.shape != suffix.k.shape:
        raise AttentionError(f"a suffix of {heads} heads does not fit {grouping.kv_heads} key/value heads")
    return MlxRows(DenseSide(mx.array(suffix.k)), DenseSide(mx.array(suffix.v)), count, heads, head_dim)


def _block_scores(
    rows: MlxRows, q: NDArray[np.float32], head_map: HeadMap, block: int, selector: Selector
) -> NDArray[np.float32]:
    """How each block ranks for each query head, `[H_q, blocks]`. See the oracle."""
    group(head_map, rows.heads)
    asked = mx.array(q)[:, None]
    heads = mx.array(head_map)
    stats = [stat[heads] for stat in rows.block_stats(block, selector)]
    if selector is Selector.BLOCK_MEAN:
        scores = (asked @ stats[0].swapaxes(-1, -2))[:, 0]
    else:
        # The greater product is that with the greatest element where the query is positive, else the least.
        least, greatest = (stat.swapaxes(-1, -2) for stat in stats)
        positive, negative = mx.maximum(asked, 0), mx.minimum(asked, 0)
        scores = (positive @ greatest + negative @ least)[:, 0]
    mx.eval(scores)
    return np.array(scores)


def _attend_chosen(
    rows: MlxRows, query: Query, head_map: HeadMap, chosen: Sequence[NDArray[np.integer]], window: int
) -> Attended:
    """Attention over the chosen rows of each query head, those of the window, and the suffix."""
    check(rows, query.q)
    if query.count != 1 or len(chosen) != len(head_map) or query.q.shape[0] != len(head_map):
        raise AttentionError(
            f"queries of shape {query.q.shape} are not one for each of {len(head_map)} heads"
        )
    first = max(rows.rows - window, 0) if window > 0 else rows.rows
    recent = np.arange(first, rows.rows)
    lists = [np.concatenate([found[found < first], recent]) for found in chosen]
    part = _over_lists(rows, mx.array(query.q), head_map, lists)
    return _answer(query, _with_suffix(part, query, group(head_map, rows.heads)))


def _over_lists(rows: MlxRows, q: mx.array, head_map: HeadMap, lists: Sequence[NDArray[np.integer]]) -> Part:
    counts = [len(found) for found in lists]
    longest = max(counts)
    table = np.zeros((len(lists), longest), np.int32)
    for head, found in enumerate(lists):
        table[head, : len(found)] = found
    ends, heads = mx.array(counts)[:, None, None], np.array(head_map, np.int32)
    running = Running(len(lists), 1, rows.head_dim)
    step = max(FEWEST_ROWS, PICKED // (len(lists) * rows.head_dim))
    for low in range(0, longest, step):
        piece = table[:, low : low + step]
        k, v = DenseSide(rows.k.pick(heads, piece)), DenseSide(rows.v.pick(heads, piece))
        width = piece.shape[1]
        seen = mx.arange(low, low + width)[None, None] < ends
        scores = k.scores(q * rows.head_dim**-0.5, 0, width)
        running.add(scores, partial(v.mix, first=0, last=width), seen)
    return running.part


def _split(queries: Sequence[Query], out: mx.array) -> list[Attended]:
    mx.eval(out)
    whole = np.array(out.astype(mx.float32))
    found, start = [], 0
    for query in queries:
        found.append(Attended(whole[:, start : start + query.count], None))
        start += query.count
    return found


def _answer(query: Query, part: Part) -> Attended:
    mx.eval(part.out, part.lse)
    return Attended(np.array(part.out), np.array(part.lse)[..., 0] if query.lse else None)

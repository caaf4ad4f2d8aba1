"""Keys and values to measure formats on: four kinds of input, and two kinds of error.

Three kinds are drawn, with heads of 64; the fourth is what SmolLM2-135M computes for a long prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
HEAD_DIM = 64


@dataclass(frozen=True)
class Sample:
    """One layer: rows of keys and values, and the queries that read them."""

    keys: Array
    """`(tokens, heads * HEAD_DIM)`."""
    values: Array
    queries: Array
    """`(query heads, count, HEAD_DIM)`; query heads are a multiple of heads."""


def drawn(kind: str, seed: int, tokens: int = 1024, heads: int = 3) -> Sample:
    """`gaussian`, `outliers` (one channel in 37 six times as large, and offsets) or `heavy tail` rows."""
    rng = np.random.default_rng(seed)
    shape = (tokens, heads * HEAD_DIM)

    def rows() -> Array:
        if kind == "heavy tail":
            return rng.standard_t(3, shape).astype(np.float32)
        x = rng.standard_normal(shape)
        if kind == "outliers":
            x[:, ::37] *= 6
            x += rng.standard_normal(shape[1])
        return x.astype(np.float32)

    queries = rng.standard_normal((heads, 64, HEAD_DIM)).astype(np.float32)
    return Sample(rows(), rows(), queries)


def of_model() -> list[Sample]:
    """Every layer of SmolLM2 after the demonstration's prompt; its last 64 queries."""
    from pionkv.kernels.blas import preload_blas

    preload_blas()
    import mlx.core as mx
    import mlx_lm.models.llama as llama
    from mlx_lm.models.cache import make_prompt_cache
    from pionkv.client.demo import conversation, smollm

    loaded = smollm.load()
    seen: list[Array] = []
    attention = llama.scaled_dot_product_attention

    def watched(queries: mx.array, *rest: object, **named: object) -> mx.array:
        seen.append(np.array(queries[0]))
        return attention(queries, *rest, **named)

    ids = conversation.prefix_ids(loaded.tokenizer)
    cache = make_prompt_cache(loaded.model)
    llama.scaled_dot_product_attention = watched
    try:
        for start in [*range(0, len(ids) - 64, 256), len(ids) - 64]:
            seen.clear()
            end = len(ids) if start == len(ids) - 64 else min(start + 256, len(ids) - 64)
            loaded.model(mx.array([ids[start:end]]), cache=cache)
            mx.eval([layer.state for layer in cache])
    finally:
        llama.scaled_dot_product_attention = attention
    sides = [(np.array(c.keys[0, :, : c.offset]), np.array(c.values[0, :, : c.offset])) for c in cache]
    return [Sample(_rows(k), _rows(v), q) for (k, v), q in zip(sides, seen, strict=True)]


def relative_error(restored: Array, exact: Array) -> float:
    """Root of the squared error's share of the squares."""
    return float(np.sqrt(((restored - exact) ** 2).sum() / (exact**2).sum()))


def attention_error(sample: Sample, keys: Array, values: Array) -> float:
    """Relative error of what attention gives when these rows stand for the sample's."""
    exact = _attend(sample.queries, sample.keys, sample.values)
    return relative_error(_attend(sample.queries, keys, values), exact)


def _attend(queries: Array, keys: Array, values: Array) -> Array:
    heads = keys.shape[1] // HEAD_DIM
    repeats = len(queries) // heads
    k, v = (np.repeat(x.reshape(len(x), heads, HEAD_DIM), repeats, axis=1) for x in (keys, values))
    scores = np.einsum("hqd,nhd->hqn", queries, k) / np.sqrt(np.float32(HEAD_DIM))
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.einsum("hqn,nhd->hqd", weights / weights.sum(axis=2, keepdims=True), v).astype(np.float32)


def _rows(heads: Array) -> Array:
    return np.ascontiguousarray(heads.transpose(1, 0, 2)).reshape(heads.shape[1], -1)

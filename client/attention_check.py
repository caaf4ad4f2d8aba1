"""Whether a model's attention can be split between a server and this process."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from .attended_cache import AttendedCache, Rows
from .attention_seam import Attention, replaced
from .errors import StoreError, UnsupportedModel

if TYPE_CHECKING:
    from .prompt_cache import PionPromptCache
    from .shape import Shape

TOKENS = 2
"""Tokens that a model is shown: with more than one it asks for masks."""


def hooked() -> AbstractContextManager[None]:
    """Have mlx-lm's models attend through `AttendedCache` where they are given one."""
    return replaced(_attending)


def _attending(original: Attention) -> Attention:
    def scaled_dot_product_attention(
        queries: Any, keys: Any, values: Any, cache: Any, scale: float, mask: Any, sinks: Any = None
    ) -> Any:
        if isinstance(cache, AttendedCache):
            return cache.attention(original, queries, keys, values, scale, mask, sinks)
        return original(queries, keys, values, cache, scale, mask, sinks)

    return scaled_dot_product_attention


def check_model(cache: PionPromptCache) -> Shape:
    """What the caches of a model look like, if the server may attend for it.

    The model is run lazily over two tokens: nothing is computed, but every call that it would make is seen.

    Raises:
        UnsupportedModel: It may not; the text says why.
        SeamMoved: mlx-lm computes attention in another way than this package knows.
    """
    shape, model = cache.shape, cache.model
    if model is None or shape is None:
        raise UnsupportedModel(str(cache.stats()["unsupported"] or "there is no model"))
    if shape.attached is not None:
        raise UnsupportedModel(f"kv_bits={shape.attached.bits}: quantised caches are attended to here")
    layout = shape.layout
    if not layout.row_caches:
        raise UnsupportedModel(f"no layer keeps rows, all keep {', '.join(dict.fromkeys(layout.kinds))}")
    for index, layer in zip(layout.row_caches, layout.rows, strict=True):
        if layer.keys != layer.values:
            raise UnsupportedModel(
                f"layer {index} has keys of {layer.keys.dim}, values of {layer.values.dim}"
            )
    if (layers := len(model.layers)) != len(layout.kinds):
        raise UnsupportedModel(f"{layers} layers have {len(layout.kinds)} caches: some share keys and values")
    probe = _Probe(len(layout.row_caches))
    caches = make_prompt_cache(model)
    for number, index in enumerate(layout.row_caches):
        caches[index] = AttendedCache(probe, index, number)
    with hooked():
        model(mx.zeros((1, TOKENS), mx.int32), cache=caches)
    for index, calls in zip(layout.row_caches, probe.calls, strict=True):
        if calls != 1:
            raise UnsupportedModel(f"layer {index} calls mlx-lm's attention {calls} times with its cache")
    return shape


class _Probe:
    """A prefix that nobody stores: counts who attends to it."""

    tokens = 1
    rows: Rows | None = None

    def __init__(self, layers: int) -> None:
        self.calls = [0] * layers

    def attend(self, layer: int, queries: Any, kv_heads: int) -> tuple[Any, Any]:
        self.calls[layer] += 1
        return mx.zeros(queries.shape), mx.zeros(queries.shape[:2])

    def bring(self, error: StoreError) -> Rows:
        raise error

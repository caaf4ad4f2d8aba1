"""What the caches of a model look like: their classes; of those kept as rows heads, sizes and elements."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache
from pionkv.kernels.formats import Element

from .cache_states import STATE_CLASSES
from .errors import UnsupportedModel
from .shape import LayerLayout, ModelLayout, SideLayout

ELEMENTS = {mx.float32: Element.F32, mx.float16: Element.F16, mx.bfloat16: Element.BF16}
DTYPES = {element: dtype for dtype, element in ELEMENTS.items()}


def read_layout(model: Any) -> ModelLayout:
    """Find out what the model's caches hold, without running it.

    One token is put through the model, but mlx is lazy: the shapes and types are known although nothing is
    computed. So this holds for any architecture, whatever its configuration calls these numbers.

    Raises:
        UnsupportedModel: A cache is of a class that cannot be stored.
    """
    caches = make_prompt_cache(model)
    if not caches:
        raise UnsupportedModel("the model has no caches")
    for index, cache in enumerate(caches):
        _check_class(index, cache)
    kinds = tuple(type(cache).__name__ for cache in caches)
    model(mx.zeros((1, 1), mx.int32), cache=caches)
    rows = tuple(
        LayerLayout(_side(index, cache.keys), _side(index, cache.values))
        for index, cache in enumerate(caches)
        if type(cache) is KVCache
    )
    return ModelLayout(kinds, rows)


def _check_class(index: int, cache: Any) -> None:
    if type(cache) is CacheList:
        for child in cache.caches:
            _check_class(index, child)
    elif type(cache) is not KVCache and STATE_CLASSES.get(type(cache).__name__) is not type(cache):
        known = ", ".join(("KVCache", "CacheList", *STATE_CLASSES))
        raise UnsupportedModel(f"layer {index} keeps a {type(cache).__name__}, stored can be {known}")


def _side(layer: int, array: mx.array | None) -> SideLayout:
    if array is None:
        raise UnsupportedModel(f"layer {layer} leaves its cache empty")
    element = ELEMENTS.get(array.dtype)
    if element is None:
        raise UnsupportedModel(f"layer {layer} keeps {array.dtype}, which no format stores")
    return SideLayout(array.shape[1], array.shape[3], element)

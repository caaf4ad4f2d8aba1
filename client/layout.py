"""What the caches of a model look like: heads, head sizes and element types, for every layer and side."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache
from pionkv.kernels.formats import Element

from .errors import UnsupportedModel

ELEMENTS = {mx.float32: Element.F32, mx.float16: Element.F16, mx.bfloat16: Element.BF16}
DTYPES = {element: dtype for dtype, element in ELEMENTS.items()}


@dataclass(frozen=True, slots=True)
class SideLayout:
    """The keys, or the values, of one layer: an array ``[1, heads, tokens, head_dim]`` of `element`."""

    heads: int
    head_dim: int
    element: Element

    @property
    def dim(self) -> int:
        """Elements in a row: those of one token, all heads."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """Keys and values of one layer."""

    keys: SideLayout
    values: SideLayout


CacheLayout = tuple[LayerLayout, ...]


def read_layout(model: Any) -> CacheLayout:
    """Find out what the model's caches hold, without running it.

    One token is put through the model, but mlx is lazy: the shapes and types are known although nothing is
    computed. So this holds for any architecture, whatever its configuration calls these numbers.

    Raises:
        UnsupportedModel: A layer's cache is not a plain `KVCache`.
    """
    caches = make_prompt_cache(model)
    for index, cache in enumerate(caches):
        if type(cache) is not KVCache:
            raise UnsupportedModel(
                f"layer {index} keeps a {type(cache).__name__}, only KVCache can be stored"
            )
    if not caches:
        raise UnsupportedModel("the model has no caches")
    model(mx.zeros((1, 1), mx.int32), cache=caches)
    return tuple(
        LayerLayout(_side(index, cache.keys), _side(index, cache.values))
        for index, cache in enumerate(caches)
    )


def _side(layer: int, array: mx.array | None) -> SideLayout:
    if array is None:
        raise UnsupportedModel(f"layer {layer} leaves its cache empty")
    element = ELEMENTS.get(array.dtype)
    if element is None:
        raise UnsupportedModel(f"layer {layer} keeps {array.dtype}, which no format stores")
    return SideLayout(array.shape[1], array.shape[3], element)

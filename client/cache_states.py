"""Caches that are no rows of tokens, as bytes: what they hold after the last token of a prefix.

A blob is a u32, the length of a msgpack header, the header, and the bytes of the arrays. The header is
``[version, tokens, class, state]``; in the state an array is an extension: its type, shape and place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import msgpack
import numpy as np
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from .errors import BadReply, NotStored

VERSION = 1

_LENGTH = struct.Struct("<I")
_ARRAY = 1
_DTYPES = {
    str(dtype).removeprefix("mlx.core."): dtype
    for dtype in (
        *(mx.float32, mx.float16, mx.bfloat16, mx.bool_),
        *(mx.uint8, mx.uint16, mx.uint32, mx.uint64, mx.int8, mx.int16, mx.int32, mx.int64),
    )
}


def _valid_rows(state: Any) -> Any:
    """KVCache and QuantizedKVCache: the rows that count, without the room for more."""
    keys, values, offset, *rest = state
    return _map((keys, values), lambda array: array[..., :offset, :]) + (offset, *rest)


def _valid_chunk(state: Any) -> Any:
    """ChunkedKVCache: likewise; its first row is that of token `start_position`."""
    keys, values, offset, size, start = state
    return (*_map((keys, values), lambda array: array[..., : offset - start, :]), offset, size, start)


def _window(state: Any) -> Any:
    """RotatingKVCache: the rows of the window in the order of their tokens, the oldest first."""
    keys, values, offset, keep, size, index = state
    if keys is None:
        return state

    def ordered(array: mx.array) -> mx.array:
        held = array.shape[2]
        if index < held and index < offset:
            parts = (array[..., :keep, :], array[..., index:, :], array[..., keep:index, :])
            array = mx.concatenate(parts, axis=2)
        else:
            array = array[..., :index, :]
        if array.shape[2] > size:
            first = array.shape[2] - size + keep
            array = mx.concatenate((array[..., :keep, :], array[..., first:, :]), axis=2)
        return array

    keys, values = ordered(keys), ordered(values)
    return keys, values, offset, keep, size, keys.shape[2]


def _as_it_is(state: Any) -> Any:
    return state


STATE_CLASSES: dict[str, type[Any]] = {
    each.__name__: each for each in (RotatingKVCache, ChunkedKVCache, ArraysCache, QuantizedKVCache)
}
"""Classes whose caches are kept as states, besides a CacheList of them."""

_CLASSES: dict[str, type[Any]] = {**STATE_CLASSES, "KVCache": KVCache, "CacheList": CacheList}
_REDUCED: dict[str, Callable[[Any], Any]] = {
    "KVCache": _valid_rows,
    "QuantizedKVCache": _valid_rows,
    "RotatingKVCache": _window,
    "ChunkedKVCache": _valid_chunk,
    "ArraysCache": _as_it_is,
}


def dump(cache: Any, tokens: int) -> bytes:
    """A cache that holds so many tokens, as bytes."""
    arrays: list[mx.array] = []
    state = _reduced(cache)
    _map(state, lambda array: arrays.append(mx.contiguous(array)))
    mx.eval(arrays)
    place, position = iter(arrays), 0

    def describe(_: mx.array) -> msgpack.ExtType:
        nonlocal position
        array = next(place)
        name = str(array.dtype).removeprefix("mlx.core.")
        described = msgpack.packb((name, array.shape, position))
        position += array.nbytes
        return msgpack.ExtType(_ARRAY, described)

    header = msgpack.packb((VERSION, tokens, type(cache).__name__, _map(state, describe)))
    return b"".join((_LENGTH.pack(len(header)), header, *map(_bytes_of, arrays)))


def load(blob: bytes, kind: str, tokens: int) -> Any:
    """The cache of a blob. Its arrays are its own.

    Args:
        blob: What `dump` made.
        kind: The class it must be of.
        tokens: How many tokens it must hold.

    Raises:
        NotStored: It is another.
        BadReply: It is damaged.
    """
    try:
        (length,) = _LENGTH.unpack_from(blob)
        body = memoryview(blob)[_LENGTH.size + length :]
        version, held, name, state = msgpack.unpackb(
            blob[_LENGTH.size : _LENGTH.size + length],
            use_list=False,
            ext_hook=lambda code, data: _array(code, data, body),
        )
        if (version, held, name) != (VERSION, tokens, kind):
            raise NotStored(f"a {name} after {held} tokens is stored, version {version}")
        return _cache(name, state)
    except (ValueError, TypeError, KeyError, struct.error, msgpack.UnpackException) as error:
        raise BadReply(f"a damaged state: {error}") from error


def _reduced(cache: Any) -> Any:
    if type(cache) is CacheList:
        return tuple((_reduced(child), type(child).__name__) for child in cache.caches)
    return _REDUCED[type(cache).__name__](cache.state)


def _cache(name: str, state: Any) -> Any:
    if name == "CacheList":
        return CacheList(*(_cache(child, inner) for inner, child in state))
    if name == "ArraysCache":
        arrays, *rest = state
        state = (list(arrays), *rest)
    return _CLASSES[name].from_state(state)


def _map(tree: Any, change: Callable[[mx.array], Any]) -> Any:
    """The tree with every array in it replaced."""
    if isinstance(tree, mx.array):
        return change(tree)
    if isinstance(tree, list | tuple):
        return tuple(_map(each, change) for each in tree)
    return tree


def _bytes_of(array: mx.array) -> bytes:
    if array.dtype == mx.bfloat16:
        array = array.view(mx.uint16)
    return np.array(array).tobytes()


def _array(code: int, data: bytes, body: memoryview) -> mx.array:
    if code != _ARRAY:
        raise ValueError(f"extension {code}")
    name, shape, position = msgpack.unpackb(data, use_list=False)
    dtype = _DTYPES[name]
    shown = np.dtype("<u2") if dtype == mx.bfloat16 else np.dtype(name)
    count = int(np.prod(shape))
    array = mx.array(np.frombuffer(body, shown, count, position).reshape(shape))
    return array.view(mx.bfloat16) if dtype == mx.bfloat16 else array

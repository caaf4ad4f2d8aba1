"""Rows of the wire and arrays of mlx.

A row on the wire is one token, ``heads × head_dim`` elements; a cache keeps ``[1, heads, tokens, head_dim]``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from pionkv.kernels import Heads, LayerSpec, unpack
from pionkv.kernels.formats import Element

from .errors import BadReply
from .layout import DTYPES, CacheLayout, SideLayout
from .plan import Attached, Plan

# Element types as the buffer protocol can show them: it has no bfloat16.
_NUMPY: dict[Element, np.dtype[Any]] = {
    Element.F32: np.dtype("<f4"),
    Element.F16: np.dtype("<f2"),
    Element.BF16: np.dtype("<u2"),
}


class Landing(Protocol):
    """Where the rows of one layer and side go, and the array they become."""

    def place(self, start: int, end: int) -> memoryview:
        """Writable bytes for rows `start` to `end - 1` in their stored format, valid until the next call."""

    def landed(self, start: int, end: int) -> None:
        """Say that those rows have been written there."""

    def fill(self, start: int, end: int, rows: memoryview) -> None:
        """Take those rows from where they are instead."""

    def array(self) -> Any:
        """The whole side, ``[1, heads, tokens or more, head_dim]`` in the model's element type.

        Three of them where rows stay packed.
        """


def landing(
    side: SideLayout, spec: LayerSpec, tokens: int, memory: Memory, attached: Attached | None
) -> Landing:
    """A landing of the kind that the format needs."""
    if attached is not None:
        return _Attached(side, spec, tokens, attached, memory.arriving)
    if spec.verbatim_element is None:
        return _Packed(side, spec, tokens, side.element, memory)
    return _Verbatim(side, spec, tokens, spec.verbatim_element, memory)


def room(tokens: int) -> int:
    """Rows that an array for so many tokens has: mlx-lm's caches grow in steps, and copy everything then."""
    step = int(KVCache.step)
    return (tokens // step + 1) * step


class Scratch:
    """Memory for rows on their way, used again and again: touched pages are fast."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def take(self, length: int) -> memoryview:
        """So many writable bytes, valid until the next call."""
        if self._bytes.nbytes < length:
            self._bytes = np.empty(length, np.uint8)
        return self._bytes.data[:length]


class Memory:
    """Memory that the landings of one prefix share.

    Args:
        in_turn: Whether each of them gets all its rows before the next one gets any.
    """

    def __init__(self, *, in_turn: bool) -> None:
        self.arriving = Scratch()
        self._in_turn = Scratch() if in_turn else None

    def ordered(self, length: int) -> memoryview:
        """So many writable bytes for the rows of one landing, until it has all of them."""
        return np.empty(length, np.uint8).data if self._in_turn is None else self._in_turn.take(length)


class _Scratched(ABC):
    """Rows are received into scratch memory and taken from there."""

    def __init__(self, spec: LayerSpec, scratch: Scratch) -> None:
        self._spec = spec
        self._scratch = scratch
        self._arrived = memoryview(b"")

    def place(self, start: int, end: int) -> memoryview:
        self._arrived = self._scratch.take((end - start) * self._spec.row_bytes)
        return self._arrived

    def landed(self, start: int, end: int) -> None:
        self.fill(start, end, self._arrived)

    @abstractmethod
    def fill(self, start: int, end: int, rows: memoryview) -> None:
        """Take rows from where they lie."""


class _Unpacked(_Scratched):
    """Rows become one array of elements, with room to grow."""

    def __init__(
        self, side: SideLayout, spec: LayerSpec, tokens: int, element: Element, memory: Memory
    ) -> None:
        super().__init__(spec, memory.arriving)
        self._side = side
        self._tokens = tokens
        self._element = element
        self._memory = memory
        self._held = 0
        self._array: mx.array | None = None

    def fill(self, start: int, end: int, rows: memoryview) -> None:
        self._put(start, end, rows)
        self._held += end - start
        if self._held == self._tokens:
            # Copied here: memory of its own is touched once, and not by another thread.
            self._array = mx.array(self._target[None])
            del self._target

    def array(self) -> mx.array:
        if self._array is None:
            raise BadReply(f"{self._held} of {self._tokens} rows came")
        array = self._array.view(DTYPES[self._element])
        return array if self._element is self._side.element else array.astype(DTYPES[self._side.element])

    @abstractmethod
    def _put(self, start: int, end: int, rows: memoryview) -> None:
        """Put rows in order."""

    @cached_property
    def _target(self) -> np.ndarray[Any, Any]:
        """Where the rows are put in order: ``(heads, tokens and room, head_dim)``."""
        shape = (self._side.heads, room(self._tokens), self._side.head_dim)
        dtype = _NUMPY[self._element]
        length = math.prod(shape) * dtype.itemsize
        target = np.frombuffer(self._memory.ordered(length), dtype).reshape(shape)
        target[:, self._tokens :] = 0
        return target


class _Verbatim(_Unpacked):
    """Elements are stored as they are."""

    def _put(self, start: int, end: int, rows: memoryview) -> None:
        shape = (end - start, self._side.heads, self._side.head_dim)
        source = np.frombuffer(rows, self._target.dtype).reshape(shape)
        for head, target in enumerate(self._target):
            target[start:end] = source[:, head]


class _Packed(_Unpacked):
    """Elements are coded."""

    def _put(self, start: int, end: int, rows: memoryview) -> None:
        side = self._side
        first = start * side.head_dim * self._element.itemsize
        layout = Heads(side.heads, room(self._tokens) * side.head_dim, side.head_dim)
        target = self._target.reshape(-1).view(np.uint8).data[first:]
        unpack(self._spec, rows, end - start, self._element, target, layout=layout)


class _Attached(_Scratched):
    """Elements stay coded: rows are cut into codes, scales and biases."""

    def __init__(
        self, side: SideLayout, spec: LayerSpec, tokens: int, attached: Attached, scratch: Scratch
    ) -> None:
        super().__init__(spec, scratch)
        self._side = side
        self._attached = attached
        self._rows = np.empty((tokens, spec.row_bytes), np.uint8)

    def fill(self, start: int, end: int, rows: memoryview) -> None:
        self._rows[start:end] = np.frombuffer(rows, np.uint8).reshape(end - start, -1)

    def array(self) -> tuple[mx.array, ...]:
        element = DTYPES[self._side.element]
        codes, scales, biases = (
            mx.array(np.ascontiguousarray(part).view(dtype).reshape(len(part), self._side.heads, -1))
            for part, dtype in zip(self._parts(), (np.uint32, np.float16, np.float16), strict=True)
        )
        return tuple(
            mx.contiguous(part.transpose(1, 0, 2)[None])
            for part in (codes, scales.astype(element), biases.astype(element))
        )

    def _parts(self) -> Iterator[np.ndarray[Any, Any]]:
        codes, scales = _part_bytes(self._side, self._attached)
        yield self._rows[:, :codes]
        yield self._rows[:, codes : codes + scales]
        yield self._rows[:, codes + scales :]


def _part_bytes(side: SideLayout, attached: Attached) -> tuple[int, int]:
    """Bytes of a row's codes, and of its scales, which are those of its biases."""
    return side.dim * attached.bits // 8, side.dim // attached.group_size * Element.F16.itemsize


def packed_rows(parts: Any, start: int, end: int) -> memoryview:
    """Rows `start` to `end - 1` of codes, scales and biases, as they are stored; a copy."""
    codes, scales, biases = (
        part[0, :, start:end].transpose(1, 0, 2).reshape(end - start, -1) for part in parts
    )
    row = [codes.view(mx.uint8), *(part.astype(mx.float16).view(mx.uint8) for part in (scales, biases))]
    rows = mx.contiguous(mx.concatenate(row, axis=1))
    mx.eval(rows)
    return _memory(rows)


def _memory(array: Any) -> memoryview:
    """The bytes of an evaluated, contiguous array: writable, and the array's own."""
    return memoryview(array).cast("B")


def rows_of(array: mx.array, start: int, end: int) -> memoryview:
    """The elements of rows `start` to `end - 1` of a cache's array, as they go over the wire; a copy."""
    rows = array[0, :, start:end, :].transpose(1, 0, 2).reshape(end - start, -1)
    if array.dtype == mx.bfloat16:
        rows = rows.view(mx.uint16)
    rows = mx.contiguous(rows)
    mx.eval(rows)
    return _memory(rows)


def load_kernels(layout: CacheLayout, plan: Plan) -> None:
    """Have the kernels ready that restoring needs: loading them takes longer than restoring does."""
    keys = zip((layer.keys for layer in layout), plan.keys, strict=True)
    values = zip((layer.values for layer in layout), plan.values, strict=True)
    for spec, element in {(spec, side.element) for side, spec in (*keys, *values)}:
        if spec.verbatim_element is None:
            unpack(spec, bytes(spec.row_bytes), 1, element, bytearray(spec.dim * element.itemsize))

"""Rows of the wire and arrays of mlx.

A row on the wire is one token, ``heads × head_dim`` elements; a cache keeps ``[1, heads, tokens, head_dim]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from pionkv.kernels import Heads, LayerSpec, unpack
from pionkv.kernels.formats import Element

from .layout import DTYPES, CacheLayout, SideLayout
from .plan import Attached, Plan

# Element types as the buffer protocol can show them: it has no bfloat16.
_SHOWN = {Element.F32: mx.float32, Element.F16: mx.float16, Element.BF16: mx.uint16}


class Landing(Protocol):
    """Where the rows of one layer and side go, and the array they become."""

    def place(self, start: int, end: int) -> memoryview:
        """Writable bytes for rows `start` to `end - 1` in their stored format."""

    def landed(self, start: int, end: int) -> None:
        """Say that those rows have been written there."""

    def array(self) -> Any:
        """The whole side, ``[1, heads, tokens, head_dim]`` in the model's element type; three if packed."""


def landing(
    side: SideLayout, spec: LayerSpec, tokens: int, scratch: Scratch, attached: Attached | None
) -> Landing:
    """A landing of the kind that the format needs."""
    if attached is not None:
        return _Attached(side, spec, tokens, attached)
    if spec.verbatim_element is None:
        return _Packed(side, spec, tokens, scratch)
    return _Verbatim(side, spec.verbatim_element, tokens)


class Scratch:
    """Memory for rows that still have to be unpacked, used again and again: touched pages are fast."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def take(self, length: int) -> memoryview:
        """So many writable bytes, valid until the next call."""
        if self._bytes.nbytes < length:
            self._bytes = np.empty(length, np.uint8)
        return self._bytes.data[:length]


class _Verbatim:
    """Elements are stored as they are: they are received straight into the array's memory."""

    def __init__(self, side: SideLayout, stored: Element, tokens: int) -> None:
        self._side = side
        self._stored = stored
        self._row = side.dim * stored.itemsize
        # Zeroes are written, so that the memory is the array's own and its pages have been touched.
        self._rows = mx.zeros((tokens, side.heads, side.head_dim), _SHOWN[stored])
        mx.eval(self._rows)
        self._bytes = _memory(self._rows)

    def place(self, start: int, end: int) -> memoryview:
        return self._bytes[start * self._row : end * self._row]

    def landed(self, start: int, end: int) -> None:
        pass

    def array(self) -> mx.array:
        rows = self._rows.view(DTYPES[self._stored])
        if self._stored is not self._side.element:
            rows = rows.astype(DTYPES[self._side.element])
        # A view with other strides: the cache copies its buffer at the first token anyway, to let it grow.
        return rows.transpose(1, 0, 2)[None]


class _Packed:
    """Elements are coded: they are received into scratch memory and unpacked into the array's memory."""

    def __init__(self, side: SideLayout, spec: LayerSpec, tokens: int, scratch: Scratch) -> None:
        self._side = side
        self._spec = spec
        self._tokens = tokens
        self._scratch = scratch
        self._arrived = memoryview(b"")
        self._target = mx.zeros((1, side.heads, tokens, side.head_dim), _SHOWN[side.element])
        mx.eval(self._target)
        self._bytes = _memory(self._target)

    def place(self, start: int, end: int) -> memoryview:
        self._arrived = self._scratch.take((end - start) * self._spec.row_bytes)
        return self._arrived

    def landed(self, start: int, end: int) -> None:
        side = self._side
        first = start * side.head_dim * side.element.itemsize
        heads = Heads(side.heads, self._tokens * side.head_dim, side.head_dim)
        unpack(self._spec, self._arrived, end - start, side.element, self._bytes[first:], layout=heads)

    def array(self) -> mx.array:
        return self._target.view(DTYPES[self._side.element])


class _Attached:
    """Elements stay coded: rows are received as they are and cut into codes, scales and biases."""

    def __init__(self, side: SideLayout, spec: LayerSpec, tokens: int, attached: Attached) -> None:
        self._side = side
        self._row = spec.row_bytes
        self._attached = attached
        self._rows = np.empty((tokens, spec.row_bytes), np.uint8)

    def place(self, start: int, end: int) -> memoryview:
        return self._rows[start:end].data.cast("B")

    def landed(self, start: int, end: int) -> None:
        pass

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

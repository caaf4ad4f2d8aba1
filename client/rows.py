"""Rows of the wire and arrays of mlx.

A row on the wire is one token, ``heads × head_dim`` elements; a cache keeps ``[1, heads, tokens, head_dim]``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from pionkv.kernels import Heads, LayerSpec, unpack
from pionkv.kernels.formats import Element

from .blank import Blank, blanks
from .errors import BadReply
from .fetching import Receiver
from .layout import DTYPES
from .plan import Attached, Plan
from .shape import CacheLayout, SideLayout
from .spread import Scratch, spread

# Element types as the buffer protocol can show them: it has no bfloat16.
_SHOWN = {Element.F32: mx.float32, Element.F16: mx.float16, Element.BF16: mx.uint16}


class Landing(Receiver, Protocol):
    """Where the rows of one layer and side go, and the array they become."""

    def fill(self, start: int, end: int, rows: memoryview) -> None:
        """Take those rows from where they are instead. Other landings may be filled meanwhile."""

    def cut(self, tokens: int) -> None:
        """No more rows than these will come; they have come."""

    def array(self) -> Any:
        """The whole side, ``[1, heads, tokens or more, head_dim]`` in the model's element type.

        Three of them where rows stay packed.
        """


def landings(
    sides: Sequence[tuple[SideLayout, LayerSpec]], tokens: int, attached: Attached | None
) -> Sequence[Landing]:
    """A landing for each side, of the kind that its format needs. Not one of its rows is there yet."""
    scratch = Scratch()
    made = [_kind(side, spec, tokens, scratch, attached) for side, spec in sides]
    arrays, zeros = blanks([each for landing in made for each in landing.blanks])
    at = iter(arrays)
    for landing in made:
        landing.take([next(at) for _ in landing.blanks], zeros=zeros)
    return made


def _kind(
    side: SideLayout, spec: LayerSpec, tokens: int, scratch: Scratch, attached: Attached | None
) -> _Filled:
    if attached is not None:
        return _Attached(side, spec, tokens, scratch, attached)
    exact = spec.verbatim_element is side.element
    return (_Verbatim if exact else _Packed)(side, spec, tokens, scratch)


def room(tokens: int) -> int:
    """Rows that an array for so many tokens has: mlx-lm's caches grow in steps, and copy everything then."""
    step = int(KVCache.step)
    return (tokens // step + 1) * step


class _Filled(ABC):
    """Rows are put where they belong in arrays of mlx, from scratch memory or from where they lie.

    Attributes:
        blanks: What arrays it needs.
    """

    blanks: tuple[Blank, ...]

    def __init__(self, side: SideLayout, spec: LayerSpec, tokens: int, scratch: Scratch) -> None:
        self._side = side
        self._spec = spec
        self._tokens = tokens
        self._scratch = scratch
        self._arrived = memoryview(b"")
        self._held = 0
        self._arrays: list[mx.array] = []
        self._zeros = False

    def take(self, arrays: list[mx.array], *, zeros: bool) -> None:
        """Get the arrays, as `blanks` asks for them, and whether they are zeros."""
        self._arrays, self._zeros = arrays, zeros

    @cached_property
    def _targets(self) -> list[np.ndarray[Any, Any]]:
        """The memory of the arrays, which is waited for."""
        return [np.array(array, copy=False)[0] for array in self._arrays]

    @abstractmethod
    def _put(self, start: int, end: int, rows: memoryview) -> None:
        """Put rows where they belong."""

    @abstractmethod
    def _finished(self) -> Any:
        """What `array` returns."""

    def place(self, start: int, end: int) -> memoryview:
        self._arrived = self._scratch.take((end - start) * self._spec.row_bytes)
        return self._arrived

    def landed(self, start: int, end: int) -> None:
        self.fill(start, end, self._arrived)

    def fill(self, start: int, end: int, rows: memoryview) -> None:
        self._put(start, end, rows)
        self._held += end - start

    def cut(self, tokens: int) -> None:
        self._tokens = tokens

    def array(self) -> Any:
        if self._held != self._tokens:
            raise BadReply(f"{self._held} of {self._tokens} rows came")
        return self._finished()


class _Unpacked(_Filled):
    """Rows become one array of elements, with room to grow."""

    def __init__(self, side: SideLayout, spec: LayerSpec, tokens: int, scratch: Scratch) -> None:
        super().__init__(side, spec, tokens, scratch)
        self.blanks = (((1, side.heads, room(tokens), side.head_dim), _SHOWN[side.element]),)

    @property
    def _target(self) -> np.ndarray[Any, Any]:
        return self._targets[0]

    def fill(self, start: int, end: int, rows: memoryview) -> None:
        super().fill(start, end, rows)
        if end == self._tokens:
            self._clear(end)

    def cut(self, tokens: int) -> None:
        super().cut(tokens)
        self._clear(tokens)

    def _clear(self, first: int) -> None:
        if not self._zeros:
            # Zero bytes are set, where zero elements are written one by one.
            self._target[:, first:].view(np.uint8)[...] = 0

    def _finished(self) -> mx.array:
        return self._arrays[0].view(DTYPES[self._side.element])


class _Verbatim(_Unpacked):
    """Elements are stored as the model has them."""

    def _put(self, start: int, end: int, rows: memoryview) -> None:
        spread(rows, self._spec.row_bytes, 0, self._target[:, start:end])


class _Packed(_Unpacked):
    """Elements are coded, or of another type: they are decoded and cut into heads in one pass."""

    def _put(self, start: int, end: int, rows: memoryview) -> None:
        side = self._side
        first = start * side.head_dim * side.element.itemsize
        layout = Heads(side.heads, self._target.shape[1] * side.head_dim, side.head_dim)
        target = self._target.reshape(-1).view(np.uint8).data[first:]
        unpack(self._spec, rows, end - start, side.element, target, layout=layout)


class _Attached(_Filled):
    """Elements stay coded: rows are cut into codes, scales and biases."""

    def __init__(
        self, side: SideLayout, spec: LayerSpec, tokens: int, scratch: Scratch, attached: Attached
    ) -> None:
        super().__init__(side, spec, tokens, scratch)
        codes = side.head_dim * attached.bits // (8 * mx.uint32.size)
        scales = ((1, side.heads, tokens, side.head_dim // attached.group_size), mx.float16)
        self.blanks = (((1, side.heads, tokens, codes), mx.uint32), scales, scales)

    def _put(self, start: int, end: int, rows: memoryview) -> None:
        first = 0
        for target in self._targets:
            spread(rows, self._spec.row_bytes, first, target[:, start:end])
            first += target.shape[0] * target.shape[2] * target.itemsize

    def _finished(self) -> tuple[mx.array, ...]:
        element = DTYPES[self._side.element]
        codes, scales, biases = (array[:, :, : self._tokens] for array in self._arrays)
        return codes, scales.astype(element), biases.astype(element)


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
    for spec, element in {(spec.wire, side.element) for side, spec in (*keys, *values)}:
        if spec.verbatim_element is not element:
            unpack(spec, bytes(spec.row_bytes), 1, element, bytearray(spec.dim * element.itemsize))

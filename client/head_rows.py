"""Rows of the wire and arrays ``[heads, tokens, head_dim]``, for models that are not mlx's.

This imports no framework. A bfloat16 is carried as its bits, uint16: numpy has no such type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pionkv.kernels import Heads, LayerSpec, unpack
from pionkv.kernels.formats import Element

from .buffers import Buffers
from .deadline import Deadline
from .fetching import Fetch, Wanted
from .lane import Lane
from .mapped_prefix import ask_where, may_map, take_mapped
from .pace import Watch
from .publish import SIDES
from .requests import Name
from .route import Route
from .shape import Shape, SideLayout
from .spread import Scratch, spread

Bits = np.ndarray[Any, Any]
"""Elements, or the bits of bfloat16."""

BITS: dict[Element, np.dtype[Any]] = {
    Element.F32: np.dtype("<f4"),
    Element.F16: np.dtype("<f2"),
    Element.BF16: np.dtype("<u2"),
}


def _bits_of_array(array: Any) -> Bits:
    return np.asarray(array)


class HeadRows:
    """A prefix that is read out of arrays, as `publish.Filled`; nobody writes to them before it is published.

    Args:
        shape: What the model's caches look like.
        sides: Keys and values: an array ``[heads, tokens, head_dim]`` for each layer, from token `first` on.
        tokens: How many tokens they hold, those before `first` included.
        bits: Makes an array of numpy of a part of one.
        first: The first token that they have.
    """

    def __init__(
        self,
        shape: Shape,
        sides: tuple[Sequence[Any], Sequence[Any]],
        tokens: int,
        bits: Callable[[Any], Bits] = _bits_of_array,
        first: int = 0,
    ) -> None:
        self.shape = shape
        self.tokens = tokens
        self.first = first
        self._sides = sides
        self._bits = bits

    def width(self, side: int, layer: int) -> int:
        """As `Source`: bytes of a row."""
        of = self._layout(side, layer)
        return of.dim * of.element.itemsize

    def rows(self, side: int, layer: int, start: int, end: int) -> tuple[memoryview, str]:
        """As `Source`: some rows; a copy."""
        rows = np.ascontiguousarray(self._part(side, layer, start, end).transpose(1, 0, 2))
        return rows.reshape(-1).view(np.uint8).data, self._layout(side, layer).element.name

    def state(self, index: int) -> memoryview:
        """As `Source`: there is none, all caches are rows."""
        raise IndexError(index)

    def row_bytes(self, first: int) -> int:
        """As `Filled`: bytes of the rows from `first` on."""
        layers = range(len(self.shape.layout.rows))
        return (self.tokens - first) * sum(self.width(side, layer) for side in SIDES for layer in layers)

    def snapshot(self, first: int) -> HeadRows:
        """As `Filled`: a copy of the rows from `first` on."""
        layers = range(len(self.shape.layout.rows))
        keys, values = (
            [np.array(self._part(side, layer, first, self.tokens)) for layer in layers] for side in SIDES
        )
        return HeadRows(self.shape, (keys, values), self.tokens, first=first)

    @property
    def nbytes(self) -> int:
        """As `Copy`: bytes that it takes."""
        return self.row_bytes(self.first)

    def _layout(self, side: int, layer: int) -> SideLayout:
        of = self.shape.layout.rows[layer]
        return (of.keys, of.values)[side]

    def _part(self, side: int, layer: int, start: int, end: int) -> Bits:
        return self._bits(self._sides[side][layer][:, start - self.first : end - self.first])


def fetch_heads(
    lane: Lane,
    deadline: Deadline,
    namespace: Name,
    shape: Shape,
    tokens: int,
    route: Route,
    watch: Watch | None = None,
    at: int | None = None,
    buffers: Buffers | None = None,
) -> tuple[int, list[Bits]]:
    """The first rows of a stored prefix: how many, and arrays ``[heads, tokens, head_dim]``, k0 v0 k1 v1 ….

    Args:
        lane: The lane.
        deadline: Bounds all of it.
        namespace: The prefix, found under a digest that names these formats.
        shape: What the model's caches look like.
        tokens: How many rows.
        route: How rows come; what came is counted there.
        watch: Says when the rest had better be prefilled: then fewer rows come. None: all of them.
        at: The generation that the rows must be of; None: whatever is stored under the name.
        buffers: Where the arrays' memory is from; None: it is new.

    Raises:
        NotStored: They are of another generation, or in other formats.
        BadReply: Something else came.
        StoreError: The server refused, or is not available.
    """
    specs = [spec.wire for spec in shape.specs]
    sides = [side for layer in shape.layout.rows for side in (layer.keys, layer.values)]
    scratch, memory = Scratch(), buffers or Buffers(0)
    arriving = [
        _Arriving(side, spec, tokens, scratch, memory) for side, spec in zip(sides, specs, strict=True)
    ]
    if may_map(route, shape):
        ask_where(lane, namespace, deadline)
        if take_mapped(lane, deadline, shape, arriving, tokens, at, route):
            return tokens, [each.array for each in arriving]
    wanted = Wanted(namespace, tuple(spec.row_bytes for spec in specs), at)
    came = Fetch(lane, deadline, wanted, tokens, route, watch).into(arriving)
    return came, [np.ascontiguousarray(each.array[:, :came]) for each in arriving]


class _Arriving:
    """Where the rows of one layer and side go: through scratch memory, which is warm, to each head's place.

    Attributes:
        array: The elements, ``[heads, tokens, head_dim]``.
    """

    def __init__(
        self, side: SideLayout, spec: LayerSpec, tokens: int, scratch: Scratch, memory: Buffers
    ) -> None:
        whole = memory.take(tokens * side.dim * side.element.itemsize).view(BITS[side.element])
        self.array = whole.reshape(side.heads, tokens, side.head_dim)
        self._side = side
        self._spec = spec
        self._scratch = scratch
        self._rows = memoryview(b"")

    def place(self, start: int, end: int) -> memoryview:
        self._rows = self._scratch.take((end - start) * self._spec.row_bytes)
        return self._rows

    def landed(self, start: int, end: int) -> None:
        self.fill(start, end, self._rows)

    def fill(self, start: int, end: int, rows: memoryview) -> None:
        side, spec = self._side, self._spec
        if spec.verbatim_element is side.element:
            spread(rows, spec.row_bytes, 0, self.array[:, start:end])
            return
        first = start * side.head_dim * side.element.itemsize
        target = self.array.reshape(-1).view(np.uint8).data[first:]
        layout = Heads(side.heads, self.array.shape[1] * side.head_dim, side.head_dim)
        unpack(spec, rows, end - start, side.element, target, layout=layout)

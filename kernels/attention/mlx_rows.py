"""Rows of a layer as mlx arrays: decoded, or packed as mlx packs them, or decoded anew in each pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..formats import Element
from .forms import AttentionError, Selector
from .packed import PackedLayer, PackedSide

PIECE_ELEMENTS: Final = 1 << 24
"""Elements of one side that are decoded at a time."""
STATS_KEPT: Final = 4
SMALLEST_BLOCK_KEPT: Final = 16
"""Figures of smaller blocks would take as much memory as the keys: they are computed anew."""

_DTYPES: Final = {Element.F32: mx.float32, Element.F16: mx.float16, Element.BF16: mx.bfloat16}


class Side(Protocol):
    """Keys or values of one layer, `[H_kv, N, D]`."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory kept."""

    def dense(self, first: int, last: int) -> mx.array:
        """Rows [first, last), `[H_kv, last - first, D]`, in the type in which they are kept."""

    def scores(self, q: mx.array, first: int, last: int) -> mx.array:
        """`q @ rows.T`, float32: q `[H_kv, M, D]` to `[H_kv, M, last - first]`."""

    def mix(self, weights: mx.array, first: int, last: int) -> mx.array:
        """`weights @ rows`, float32: weights `[H_kv, M, last - first]` to `[H_kv, M, D]`."""

    def pick(self, heads: NDArray[np.int32], rows: NDArray[np.int32]) -> mx.array:
        """Chosen rows, float32 `[H_q, T, D]`: of head `heads[h]` the rows `rows[h]` (`[H_q, T]`)."""


@dataclass(frozen=True, slots=True)
class DenseSide:
    """Decoded rows."""

    array: mx.array

    @property
    def nbytes(self) -> int:
        """Bytes of memory kept."""
        return int(self.array.nbytes)

    def dense(self, first: int, last: int) -> mx.array:
        """See `Side`."""
        return self.array[:, first:last]

    def scores(self, q: mx.array, first: int, last: int) -> mx.array:
        """See `Side`."""
        return q @ self.dense(first, last).astype(mx.float32).swapaxes(-1, -2)

    def mix(self, weights: mx.array, first: int, last: int) -> mx.array:
        """See `Side`."""
        return weights @ self.dense(first, last).astype(mx.float32)

    def pick(self, heads: NDArray[np.int32], rows: NDArray[np.int32]) -> mx.array:
        """See `Side`."""
        flat = mx.array(heads[:, None] * self.array.shape[1] + rows)
        return self.array.reshape(-1, self.array.shape[2])[flat].astype(mx.float32)


@dataclass(frozen=True, slots=True)
class QuantizedSide:
    """Rows in mlx's own packing: products are computed with the codes, no decoded copy is made.

    Attributes:
        codes: uint32 `[H_kv, N, D * bits / 32]`.
        scales: float32 `[H_kv, N, D / group]`.
        biases: The same.
        group: Elements of a scale.
        bits: Bits of a code.
    """

    codes: mx.array
    scales: mx.array
    biases: mx.array
    group: int
    bits: int

    @property
    def nbytes(self) -> int:
        """Bytes of memory kept."""
        return int(self.codes.nbytes + self.scales.nbytes + self.biases.nbytes)

    def dense(self, first: int, last: int) -> mx.array:
        """See `Side`."""
        return mx.dequantize(*self._parts(first, last), group_size=self.group, bits=self.bits)

    def scores(self, q: mx.array, first: int, last: int) -> mx.array:
        """See `Side`."""
        return self._product(q, first, last, transpose=True)

    def mix(self, weights: mx.array, first: int, last: int) -> mx.array:
        """See `Side`."""
        return self._product(weights, first, last, transpose=False)

    def pick(self, heads: NDArray[np.int32], rows: NDArray[np.int32]) -> mx.array:
        """See `Side`."""
        flat = mx.array(heads[:, None] * self.codes.shape[1] + rows)
        parts = (part.reshape(-1, part.shape[2])[flat] for part in (self.codes, self.scales, self.biases))
        return mx.dequantize(*parts, group_size=self.group, bits=self.bits)

    def _product(self, x: mx.array, first: int, last: int, *, transpose: bool) -> mx.array:
        parts = self._parts(first, last)
        return mx.quantized_matmul(x, *parts, transpose=transpose, group_size=self.group, bits=self.bits)

    def _parts(self, first: int, last: int) -> tuple[mx.array, mx.array, mx.array]:
        return self.codes[:, first:last], self.scales[:, first:last], self.biases[:, first:last]


@dataclass(frozen=True, slots=True)
class StreamedSide:
    """Rows that stay as they are stored and are decoded whenever they are needed."""

    packed: PackedSide
    heads: int
    element: Element
    nbytes: int = 0

    def dense(self, first: int, last: int) -> mx.array:
        """See `Side`."""
        return decode(self.packed, first, last, self.heads, self.element)

    def scores(self, q: mx.array, first: int, last: int) -> mx.array:
        """See `Side`."""
        return DenseSide(self.dense(first, last)).scores(q, 0, last - first)

    def mix(self, weights: mx.array, first: int, last: int) -> mx.array:
        """See `Side`."""
        return DenseSide(self.dense(first, last)).mix(weights, 0, last - first)

    def pick(self, heads: NDArray[np.int32], rows: NDArray[np.int32]) -> mx.array:
        """See `Side`."""
        wanted, places = np.unique(rows, return_inverse=True)
        breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
        runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(wanted, breaks)]
        found = mx.concatenate([self.dense(*run) for run in runs], axis=1)
        return DenseSide(found).pick(heads, places.reshape(rows.shape).astype(np.int32))


@dataclass(slots=True)
class MlxRows:
    """Keys and values of one layer.

    Attributes:
        k: The keys.
        v: The values.
        rows: How many.
        heads: Key/value heads.
        head_dim: Elements of a head.
        step: Rows of which both sides are at hand at a time.
    """

    k: Side
    v: Side
    rows: int
    heads: int
    head_dim: int
    step: int = field(init=False)
    _stats: dict[tuple[int, Selector], tuple[mx.array, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.step = max(1, PIECE_ELEMENTS // (self.heads * self.head_dim))

    @property
    def nbytes(self) -> int:
        """Bytes of memory kept."""
        return self.k.nbytes + self.v.nbytes

    def block_stats(self, block: int, selector: Selector) -> tuple[mx.array, ...]:
        """The mean, or the least and the greatest, of the keys of each block: `[H_kv, blocks, D]` each."""
        found = self._stats.get((block, selector))
        if found is None:
            found = self._compute_stats(block, selector)
            if self.nbytes and block >= SMALLEST_BLOCK_KEPT:
                while len(self._stats) >= STATS_KEPT:
                    del self._stats[next(iter(self._stats))]
                self._stats[block, selector] = found
        return found

    def _compute_stats(self, block: int, selector: Selector) -> tuple[mx.array, ...]:
        step = max(1, self.step // block) * block
        pieces: list[tuple[mx.array, ...]] = []
        for first in range(0, self.rows, step):
            last = min(first + step, self.rows)
            whole = first + (last - first) // block * block
            for low, high, size in ((first, whole, block), (whole, last, last - whole)):
                if low < high:
                    pieces.append(_stats_of(self.k.dense(low, high), size, selector))
                    mx.eval(*pieces[-1])
        return tuple(mx.concatenate(parts, axis=1) for parts in zip(*pieces, strict=True))


def _stats_of(k: mx.array, block: int, selector: Selector) -> tuple[mx.array, ...]:
    blocks = k.astype(mx.float32).reshape(k.shape[0], -1, block, k.shape[2])
    if selector is Selector.BLOCK_MEAN:
        return (blocks.mean(axis=2),)
    return blocks.min(axis=2), blocks.max(axis=2)


def decode(side: PackedSide, first: int, last: int, heads: int, element: Element) -> mx.array:
    """Rows [first, last) as an array `[heads, last - first, D]`; they are decoded into its own memory."""
    shape = (heads, last - first, side.spec.dim // heads)
    wide = element is Element.F32
    array = mx.zeros(shape, dtype=mx.float32 if wide else mx.uint16)
    mx.eval(array)
    side.unpack(first, last, heads, element, np.array(array, copy=False))
    return array if wide else array.view(_DTYPES[element])


def packs_like_mlx(side: PackedSide, head_dim: int) -> bool:
    """Whether the rows are in mlx's own packing, with no group that spans two heads."""
    return side.spec.details.family == "affine" and head_dim % side.spec.group == 0


def load_quantized(side: PackedSide, rows: int, heads: int) -> QuantizedSide:
    """The first `rows` rows of a side in mlx's own packing: codes as they are stored, scales widened."""
    spec = side.spec
    width = spec.row_parts.codes
    packed = np.empty((rows, spec.row_bytes), np.uint8)
    for row, piece in side.pieces(0, rows):
        found = np.frombuffer(piece.data, np.uint8).reshape(-1, spec.row_bytes)
        packed[row : row + len(found)] = found
    codes = np.ascontiguousarray(packed[:, :width]).view(np.uint32)
    widened = np.ascontiguousarray(packed[:, width:]).view(np.float16).astype(np.float32)
    params = np.split(widened, 2, axis=1)
    planes = [
        mx.contiguous(mx.array(plane).reshape(rows, heads, -1).swapaxes(0, 1)) for plane in (codes, *params)
    ]
    mx.eval(*planes)
    return QuantizedSide(planes[0], planes[1], planes[2], spec.group, spec.details.bits)


def quantized_bytes(side: PackedSide, rows: int) -> int:
    """Bytes that `load_quantized` would keep: scales and biases take twice what they do in a row."""
    parts = side.spec.row_parts
    return rows * (parts.codes + 2 * parts.scales)


def quantized_products_work() -> bool:
    """Whether quantised products on this device are those of the decoded rows, in every packing used."""
    rng = np.random.default_rng(0)
    x, rows = (mx.array(rng.standard_normal(shape), mx.float32) for shape in ((2, 3, 64), (2, 96, 64)))
    try:
        return all(_products_agree(x, rows, group, bits) for group in (32, 64) for bits in (4, 8))
    except (RuntimeError, ValueError):
        return False


def _products_agree(x: mx.array, rows: mx.array, group: int, bits: int) -> bool:
    codes, scales, biases = mx.quantize(rows, group_size=group, bits=bits)
    side = QuantizedSide(codes, scales, biases, group, bits)
    count = rows.shape[1]
    plain = DenseSide(side.dense(0, count))
    scores = plain.scores(x, 0, count)
    pairs = (
        (side.scores(x, 0, count), scores),
        (side.mix(scores, 0, count), plain.mix(scores, 0, count)),
    )
    return all(mx.allclose(*pair, rtol=1e-3, atol=1e-1).item() for pair in pairs)


def check(rows: MlxRows, q: NDArray[np.float32]) -> None:
    """Raises `AttentionError` for queries of another head dim."""
    if q.ndim != 3 or q.shape[2] != rows.head_dim or not q.shape[1]:
        raise AttentionError(f"queries of shape {q.shape} do not fit heads of {rows.head_dim} elements")


def as_rows(rows: object) -> MlxRows:
    """Rows that this engine has made."""
    return cast(MlxRows, rows)


def layer_sides(layer: PackedLayer) -> tuple[PackedSide, PackedSide]:
    """Both sides, keys first."""
    return layer.k, layer.v

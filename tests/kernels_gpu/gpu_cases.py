"""Rows that a kernel could get wrong, for every format, element type, dim and layout. numpy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pionkv.kernels import FORMATS, Element, LayerSpec
from pionkv.kernels.formats import HEAD

BF16_MAX = float.fromhex("0x1.fep+127")
_MAX = {Element.F32: float(np.finfo(np.float32).max), Element.F16: 65504.0, Element.BF16: BF16_MAX}
_TINY = {Element.F32: 1e-45, Element.F16: 6e-8, Element.BF16: 9.2e-41}


@dataclass(frozen=True)
class Layout:
    """How rows of `dim` elements lie in an array `(1, heads, rows, width)`.

    Attributes:
        heads: Number of heads.
        spare: Rows of the buffer that are not in use, as in a cache that grows in steps.
        step: Elements between neighbours of a head; 1 except for a view that no cache would have.
    """

    heads: int = 1
    spare: int = 0
    step: int = 1


def words_of(values: NDArray[np.float32], element: Element) -> NDArray[np.uint16] | NDArray[np.float32]:
    """Values in the element type: float32, float16, or bfloat16 as 16-bit words (cut, not rounded)."""
    if element is Element.F32:
        return values.astype(np.float32)
    if element is Element.F16:
        return values.astype(np.float16).view(np.uint16)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def edge_rows(dim: int, element: Element, limit: float, seed: int) -> NDArray[np.float32]:
    """Rows of finite values within the limit, the hard ones among them."""
    rng = np.random.default_rng([seed, dim, int(element)])
    most, tiny = min(_MAX[element], limit), _TINY[element]
    normal = rng.standard_normal
    ramp = np.arange(dim, dtype=np.float64)
    lift = np.float64(2.0) ** rng.integers(-24, 15, dim)
    rows = [
        np.zeros(dim),
        np.full(dim, -0.0),
        np.where(ramp % 2 == 0, 0.0, -0.0),
        np.full(dim, 1.5),
        np.full(dim, -7.0),
        np.full(dim, most),
        np.full(dim, -most),
        np.where(ramp % 3 == 0, most, -most),
        np.where(ramp % 5 == 0, most, 0.0),
        np.full(dim, tiny),
        np.where(ramp % 2 == 0, tiny, -tiny),
        normal(dim) * tiny * 5,
        normal(dim) * 1e-6,
        normal(dim) * 2e-5,
        normal(dim),
        np.abs(normal(dim)) + 3.0,
        -np.abs(normal(dim)) - 3.0,
        normal(dim) * np.where(ramp % 37 == 5, 60.0, 1.0),
        normal(dim) * lift,
        ramp % 16,
        (ramp - 15) / 8,
        (ramp % 32) - 15.5,
        ramp % 509 / 2 - 127,
        np.where(ramp == dim - 1, 1e-3, 0.0),
        np.where(ramp == 0, -100.0, 0.25),
        1000.0 + normal(dim) * 0.5,
        rng.uniform(-1, 1, dim) * most,
        2.0 ** (ramp % 30 - 15),
    ]
    values = np.clip(np.stack(rows), -most, most).astype(np.float32)
    if element is Element.F32:
        bits = rng.integers(0, 2**32, (4, dim), np.uint64).astype(np.uint32).view(np.float32)
        usable = np.isfinite(bits) & (np.abs(bits) <= np.float32(most))
        values = np.vstack([values, np.where(usable, bits, np.float32(0.5))])
    return values


def laid_out(words: NDArray[np.generic], layout: Layout) -> NDArray[np.generic]:
    """The rows as a strided view `(1, heads, rows, width)` of a buffer filled with something else."""
    rows, dim = words.shape
    width = dim // layout.heads
    buffer = np.full((1, layout.heads, rows + layout.spare, width * layout.step), 0x3C, words.dtype)
    view = buffer[:, :, :rows, :: layout.step]
    view[0] = words.reshape(rows, layout.heads, width).transpose(1, 0, 2)
    return view


def shapes(name: str) -> Iterator[tuple[LayerSpec, Layout]]:
    """Layer specs of a format: dims that are small, ragged, more than a SIMD group takes at a time; layouts.

    A cache has heads and spare rows; steps are for views that no cache would have.
    """
    family, group = FORMATS[name].family, FORMATS[name].group
    if family == "rope":
        for dim, rope, layout in ((33, 1, Layout()), (192, 64, Layout(2, 3)), (320, 32, Layout(2, step=2))):
            yield LayerSpec(name, dim, rope=rope), layout
        yield LayerSpec(name, 1152, rope=64), Layout(4, 1)
        yield LayerSpec(name, 1034, rope=10), Layout()
        return
    if group == HEAD:
        for head_dim in (32, 64, 128, 256):
            yield LayerSpec(name, 3 * head_dim, head_dim=head_dim), Layout(3, 2)
            yield LayerSpec(name, 4 * head_dim, head_dim=head_dim), Layout(2, step=2)
        for head_dim in (2, 6, 80, 100, 576) if family == "qserve" else ():
            yield LayerSpec(name, 2 * head_dim, head_dim=head_dim), Layout()
        return
    wide = [(320, Layout(2, step=2)), (1024, Layout(8, 24))]
    if group > 1:
        some = [(group, Layout()), (2 * group, Layout(2, 3)), (3 * group, Layout(3)), (17 * group, Layout())]
    else:
        some = [(dim, Layout()) for dim in (1, 7, 8, 100, 250, 1100)]
        some += [(192, Layout(3, 5)), (60, Layout(5, 2)), (36, Layout(2, step=3))]
    for dim, layout in some + wide:
        yield LayerSpec(name, dim), layout


def refusals(element: Element, limit: float, *, quantized: bool) -> Iterator[float]:
    """Values that a format has to refuse when they come as this element."""
    if quantized:
        yield from (np.nan, np.inf, -np.inf)
    if limit < _MAX[element]:
        above = float(np.nextafter(np.float32(limit), np.float32(np.inf)))
        yield from (above, -_MAX[element]) if element is Element.F32 else (-_MAX[element],)

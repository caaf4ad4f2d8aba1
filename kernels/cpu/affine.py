"""The mlx layouts, as `oracle.affine` defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir

from ..formats import FP16_MAX, Affine
from .lanes import FLOAT, HALF, I8, I32, Lanes, load, operation, store
from .llvm import kernel
from .rows import flush_row, load_row, store_row

if TYPE_CHECKING:
    from .rows import Elements, Work

_SMALLEST_SCALE = float(np.float32(1e-7))
_ROUND_TRIP = int(Affine.ROUND_TRIP)


def _mlx(x: Lanes, low: Lanes, high: Lanes, steps: int) -> tuple[Lanes, Lanes, Lanes]:
    scale = ((high - low) / steps).larger(low.like(_SMALLEST_SCALE))
    low_is_end = low.magnitude() > high.magnitude()
    scale = low_is_end.choose(scale, -scale)
    end = low_is_end.choose(low, high)
    count = (end / scale).nearest()
    exact = count.magnitude() > 0.0
    scale = exact.choose(end / count, scale)
    bias = exact.choose(end, end.like(0.0))
    return ((x - bias) / scale).nearest(), scale, bias


def _round_trip(x: Lanes, low: Lanes, high: Lanes, steps: int) -> tuple[Lanes, Lanes, Lanes]:
    scale = ((high - low) / steps).to_half_and_back()
    bias = low.to_half_and_back()
    inverse = (scale > 0.0).choose(scale.like(1.0) / scale, scale.like(0.0))
    return (x - bias) * inverse + 0.5, scale, bias


def _packer(bits: int, group: int, rule: Any = _mlx) -> Any:
    steps = 2**bits - 1

    def build(
        builder: ir.IRBuilder, codes: ir.Value, scales: ir.Value, biases: ir.Value, elements: ir.Value
    ) -> None:
        x = load(builder, elements, FLOAT, group)
        code, scale, bias = rule(x, x.fold(Lanes.smaller), x.fold(Lanes.larger), steps)
        store(code.clamp(0, steps).to(I32).pack(bits), codes)
        store(scale.to(HALF), scales)
        store(bias.to(HALF), biases)

    return operation(build, 4)


def _unpacker(bits: int, group: int) -> Any:
    def build(
        builder: ir.IRBuilder, codes: ir.Value, scales: ir.Value, biases: ir.Value, elements: ir.Value
    ) -> None:
        code = load(builder, codes, I8, group * bits // 8).unpack(bits).to(I32, signed=False).to(FLOAT)
        scale, bias = (load(builder, place, HALF, 1).to(FLOAT) for place in (scales, biases))
        product = code * scale
        rounded = product.to_half_and_back()
        rounded = (rounded.magnitude() > FP16_MAX).choose(product, rounded)
        store((rounded + bias).saturate(FP16_MAX).to_half_and_back(), elements)

    return operation(build, 4)


_pack4g32, _pack4g64, _pack8g32, _pack8g64 = (_packer(b, g) for b, g in ((4, 32), (4, 64), (8, 32), (8, 64)))
_pack4g32_rt = _packer(4, 32, _round_trip)
_unpack4g32, _unpack4g64, _unpack8g32, _unpack8g64 = (
    _unpacker(b, g) for b, g in ((4, 32), (4, 64), (8, 32), (8, 64))
)


@kernel
def pack(source: Elements, work: Work, out: int) -> int:
    """Code rows."""
    rows, dim, bits, group, rule, limit_bits = work
    scratch = np.empty(dim, np.float32)
    code_bytes, params = dim * bits // 8, 2 * (dim // group)
    for row in range(rows):
        load_row(source, row, scratch)
        refused = flush_row(scratch, limit_bits)
        if refused >= 0:
            return row * dim + refused
        at = row * (code_bytes + 2 * params)
        scale = at + code_bytes
        for start in range(0, dim, group):
            if rule == _ROUND_TRIP:
                _pack4g32_rt(out, at, out, scale, out, scale + params, scratch, start)
            elif bits == 4 and group == 32:
                _pack4g32(out, at, out, scale, out, scale + params, scratch, start)
            elif bits == 4:
                _pack4g64(out, at, out, scale, out, scale + params, scratch, start)
            elif group == 32:
                _pack8g32(out, at, out, scale, out, scale + params, scratch, start)
            else:
                _pack8g64(out, at, out, scale, out, scale + params, scratch, start)
            at += group * bits // 8
            scale += 2
    return -1


@kernel
def unpack(packed: int, work: Work, out: Elements) -> None:
    """Decode rows."""
    rows, dim, bits, group, _rule, _limit_bits = work
    scratch = np.empty(dim, np.float32)
    code_bytes, params = dim * bits // 8, 2 * (dim // group)
    for row in range(rows):
        at = row * (code_bytes + 2 * params)
        scale = at + code_bytes
        for start in range(0, dim, group):
            if bits == 4 and group == 32:
                _unpack4g32(packed, at, packed, scale, packed, scale + params, scratch, start)
            elif bits == 4:
                _unpack4g64(packed, at, packed, scale, packed, scale + params, scratch, start)
            elif group == 32:
                _unpack8g32(packed, at, packed, scale, packed, scale + params, scratch, start)
            else:
                _unpack8g64(packed, at, packed, scale, packed, scale + params, scratch, start)
            at += group * bits // 8
            scale += 2
        store_row(out, row, scratch)

"""turbo4, turbo3, turbo2, as `oracle.turbo` defines them."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from ..codebooks import TURBO, TURBO_UNIT
from .lanes import BLOCK, FLOAT, HALF, I8, I16, I32, Lanes, block_operation, load, store
from .llvm import from_bits, kernel, load_f32, magnitude_bits, store_f32
from .rows import flush_row, largest_magnitude, load_row, store_row

_ZERO, _ONE = np.float32(0), np.float32(1)
_SMALLEST_UNIT = np.float32(2.0**-80)
_SMALLEST_END = 2.0**-24
_EXPONENT = 0x7F800000


def _packer(bits: int) -> Any:
    levels = TURBO[bits]

    def build(builder: ir.IRBuilder, packed: ir.Value, elements: ir.Value) -> None:
        turned = load(builder, elements, FLOAT, BLOCK).hadamard()
        high, low = turned.fold(Lanes.larger), turned.fold(Lanes.smaller)
        end = (high >= low * -1.0).choose(high, low)
        full = end.larger(end * -1.0) >= _SMALLEST_END
        # A ratio of 0 has the code of level 0.
        ratio = turned * full.choose(end.like(1.0) / end, end.like(0.0))
        code = turned.to(I32).like(0)
        level = code.like(levels[0])
        for before, after in zip(levels, levels[1:], strict=False):
            above = ratio > (before + after) / (2 * TURBO_UNIT)
            code = code + above.to(I32)
            level = above.choose(level.like(after), level)
        norm = (level * level).fold(Lanes.__add__).to(FLOAT) * TURBO_UNIT**-2
        fit = (turned * (level.to(FLOAT) * (1 / TURBO_UNIT))).ordered_sum() / norm
        store(full.choose(fit, fit.like(0.0)).to(HALF), packed)
        store(code.pack(bits), builder.gep(packed, [ir.Constant(I32, 2)]))

    return block_operation(build)


def _unpacker(bits: int) -> Any:
    levels = TURBO[bits]

    def build(builder: ir.IRBuilder, packed: ir.Value, elements: ir.Value) -> None:
        code = load(builder, builder.gep(packed, [ir.Constant(I32, 2)]), I8, 4 * bits).unpack(bits).to(I16)
        level = code.like(levels[0])
        for i in range(1, len(levels)):
            level = (code >= i).choose(level.like(levels[i]), level)
        # The sums are exact in 16 bits: 32 levels of at most 256.
        scale = load(builder, packed, HALF, 1).to(FLOAT) * (2.0**-5 / TURBO_UNIT)
        store(level.hadamard().to(FLOAT) * scale, elements)

    return block_operation(build)


_pack2, _pack3, _pack4 = (_packer(bits) for bits in (2, 3, 4))
_unpack2, _unpack3, _unpack4 = (_unpacker(bits) for bits in (2, 3, 4))


@kernel
def pack(
    source: int,
    element: int,
    heads: int,
    head_stride: int,
    row_stride: int,
    rows: int,
    dim: int,
    limit_bits: int,
    bits: int,
    out: int,
) -> int:
    """Code rows."""
    scratch = np.empty(dim, np.float32)
    at, size = 0, 2 + bits * 4
    for row in range(rows):
        load_row(source, element, heads, head_stride, row_stride, row, scratch)
        refused = flush_row(scratch, limit_bits)
        if refused >= 0:
            return row * dim + refused
        unit = inverse = _ZERO
        largest = largest_magnitude(scratch, 0, dim)
        if largest >= _SMALLEST_UNIT:
            unit = from_bits(magnitude_bits(largest) & _EXPONENT)
            inverse = _ONE / unit
        for i in range(dim):
            scratch[i] *= inverse
        store_f32(out, at, unit)
        at += 4
        for start in range(0, dim, BLOCK):
            if bits == 4:
                _pack4(out, at, scratch, start)
            elif bits == 3:
                _pack3(out, at, scratch, start)
            else:
                _pack2(out, at, scratch, start)
            at += size
    return -1


@kernel
def unpack(
    packed: int,
    element: int,
    heads: int,
    head_stride: int,
    row_stride: int,
    rows: int,
    dim: int,
    bits: int,
    out: int,
) -> None:
    """Decode rows."""
    scratch = np.empty(dim, np.float32)
    at, size = 0, 2 + bits * 4
    for row in range(rows):
        unit = load_f32(packed, at)
        at += 4
        for start in range(0, dim, BLOCK):
            if bits == 4:
                _unpack4(packed, at, scratch, start)
            elif bits == 3:
                _unpack3(packed, at, scratch, start)
            else:
                _unpack2(packed, at, scratch, start)
            at += size
        for i in range(dim):
            scratch[i] *= unit
        store_row(out, element, heads, head_stride, row_stride, row, scratch)

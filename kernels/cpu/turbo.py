"""turbo4, turbo3, turbo2, as `oracle.turbo` defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir

from ..codebooks import TURBO, TURBO_RATIO_UNIT, TURBO_UNIT
from .lanes import BLOCK, FLOAT, HALF, I8, I16, I32, Lanes, at, load, operation, store
from .llvm import from_bits, kernel, load_f32, magnitude_bits, store_f32
from .rows import flush_row, largest_magnitude, load_row, store_row

if TYPE_CHECKING:
    from .rows import Elements, Work

_ZERO, _ONE = np.float32(0), np.float32(1)
_SMALLEST_UNIT = np.float32(2.0**-80)
_SMALLEST_END = 2.0**-24
_EXPONENT = 0x7F800000


def fixed_point(ratio: Lanes) -> Lanes:
    """Ratios within -1..1, in 1 / TURBO_RATIO_UNIT, nearest-even."""
    # The last bit of a float from 512 to 1024 is worth 2**-14; 768 leaves the low 16 bits clear.
    return (ratio + 768.0).bits(I32, ratio.count).to(I16)


def _packer(bits: int) -> Any:
    levels = TURBO[bits]

    def build(builder: ir.IRBuilder, packed: ir.Value, elements: ir.Value) -> None:
        turned = load(builder, elements, FLOAT, BLOCK).hadamard()
        high, low = turned.fold(Lanes.larger), turned.fold(Lanes.smaller)
        end = (high >= -low).choose(high, low)
        full = end.magnitude() >= _SMALLEST_END
        # A ratio of 0 has the code of level 0.
        ratio = turned * full.choose(end.like(1.0) / end, end.like(0.0))
        steps = fixed_point(ratio)
        code, level = steps.like(0), steps.like(levels[0])
        for before, after in zip(levels, levels[1:], strict=False):
            above = steps > (before + after) * (TURBO_RATIO_UNIT // (2 * TURBO_UNIT))
            code = code + above.to(I16)
            level = above.choose(level.like(after), level)
        chosen = level.to(I32).to(FLOAT) * (1 / TURBO_UNIT)
        fit = (turned * chosen).ordered_sum() / (chosen * chosen).fold(Lanes.__add__)
        store(full.choose(fit, fit.like(0.0)).to(HALF), packed)
        store(code.pack(bits), at(builder, packed, 2))

    return operation(build, 2)


def _unpacker(bits: int) -> Any:
    levels = TURBO[bits]

    def build(builder: ir.IRBuilder, packed: ir.Value, elements: ir.Value) -> None:
        code = load(builder, at(builder, packed, 2), I8, 4 * bits).unpack(bits).to(I16)
        level = code.like(levels[0])
        for i in range(1, len(levels)):
            level = (code >= i).choose(level.like(levels[i]), level)
        # The sums are exact in 16 bits: 32 levels of at most 256.
        scale = load(builder, packed, HALF, 1).to(FLOAT) * (2.0**-5 / TURBO_UNIT)
        store(level.hadamard().to(I32).to(FLOAT) * scale, elements)

    return operation(build, 2)


_pack2, _pack3, _pack4 = (_packer(bits) for bits in (2, 3, 4))
_unpack2, _unpack3, _unpack4 = (_unpacker(bits) for bits in (2, 3, 4))


@kernel
def pack(source: Elements, work: Work, out: int) -> int:
    """Code rows."""
    rows, dim, bits, _group, _variant, limit_bits = work
    scratch = np.empty(dim, np.float32)
    place, size = 0, 2 + bits * 4
    for row in range(rows):
        load_row(source, row, scratch)
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
        store_f32(out, place, unit)
        place += 4
        for start in range(0, dim, BLOCK):
            if bits == 4:
                _pack4(out, place, scratch, start)
            elif bits == 3:
                _pack3(out, place, scratch, start)
            else:
                _pack2(out, place, scratch, start)
            place += size
    return -1


@kernel
def unpack(packed: int, work: Work, out: Elements) -> None:
    """Decode rows."""
    rows, dim, bits, _group, _variant, _limit_bits = work
    scratch = np.empty(dim, np.float32)
    place, size = 0, 2 + bits * 4
    for row in range(rows):
        unit = load_f32(packed, place)
        place += 4
        for start in range(0, dim, BLOCK):
            if bits == 4:
                _unpack4(packed, place, scratch, start)
            elif bits == 3:
                _unpack3(packed, place, scratch, start)
            else:
                _unpack2(packed, place, scratch, start)
            place += size
        for i in range(dim):
            scratch[i] *= unit
        store_row(out, row, scratch)

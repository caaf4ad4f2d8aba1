"""fp8 and fp8_e5m2, as `oracle.fp8` defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir

from .lanes import BLOCK, FLOAT, HALF, I8, I32, Lanes, at, load, operation, store
from .llvm import f32, kernel, store_f32
from .rows import flush_row, load_row, store_row

if TYPE_CHECKING:
    from .rows import Elements, Work

BLOCK_BYTES = 34
_TARGET = {3: 240.0, 2: 224.0}
_ZERO = np.float32(0)


def _bias(mantissa_bits: int) -> int:
    return 7 if mantissa_bits == 3 else 15


def encode(x: Lanes, mantissa_bits: int) -> tuple[Lanes, Lanes]:
    """OFP8 codes in 32-bit lanes, and what they stand for; magnitudes are below the largest finite code."""
    bias, shift = _bias(mantissa_bits), 23 - mantissa_bits
    bits = x.bits(I32, x.count)
    magnitude = bits & 0x7FFFFFFF
    rounded = (magnitude + ((magnitude >> shift) & 1) + ((1 << (shift - 1)) - 1)) >> shift
    # The sum with a power of two whose last bit is one subnormal step rounds to whole steps.
    anchor = 2.0 ** (1 - bias - mantissa_bits + 23)
    anchored = magnitude.bits(FLOAT, x.count) + anchor
    is_normal = magnitude >= (128 - bias) << 23
    code = is_normal.choose(rounded - ((127 - bias) << mantissa_bits), anchored.bits(I32, x.count) & 0xFF)
    value = is_normal.choose((rounded << shift).bits(FLOAT, x.count), anchored - anchor)
    return code | ((bits >> 24) & 0x80), value


def decode(code: Lanes, mantissa_bits: int) -> Lanes:
    """Values of OFP8 codes in 32-bit lanes."""
    bias = _bias(mantissa_bits)
    magnitude = code & 0x7F
    normal = (magnitude << (23 - mantissa_bits)) + ((127 - bias) << 23)
    subnormal = (magnitude.to(FLOAT) * 2.0 ** (1 - bias - mantissa_bits)).bits(I32, code.count)
    bits = (magnitude >= 1 << mantissa_bits).choose(normal, subnormal)
    if mantissa_bits == 2:
        bits = (magnitude >= 0x7C).choose(bits.like(0x7F800000), bits)
    first_nan = 0x7F if mantissa_bits == 3 else 0x7D
    bits = (magnitude >= first_nan).choose(bits.like(0x7FC00000), bits)
    return (bits | (code & 0x80) << 24).bits(FLOAT, code.count)


def _packer(mantissa_bits: int) -> Any:
    """Code one block; its sum of squares as decoded is returned."""

    def build(builder: ir.IRBuilder, packed: ir.Value, elements: ir.Value) -> ir.Value:
        x = load(builder, elements, FLOAT, BLOCK)
        scale = (x.magnitude().fold(Lanes.larger) / _TARGET[mantissa_bits]).to_half_and_back()
        inverse = (scale > 0.0).choose(scale.like(1.0) / scale, scale.like(0.0))
        code, magnitude = encode(x * inverse, mantissa_bits)
        value = magnitude * scale
        store(scale.to(HALF), packed)
        store(code.to(I8), at(builder, packed, 2))
        return (value * value).ordered_sum().first()

    return operation(build, 2, f32)


def _unpacker(mantissa_bits: int) -> Any:
    def build(builder: ir.IRBuilder, packed: ir.Value, elements: ir.Value) -> None:
        code = load(builder, at(builder, packed, 2), I8, BLOCK).to(I32, signed=False)
        scale = load(builder, packed, HALF, 1).to(FLOAT)
        store(decode(code, mantissa_bits) * scale, elements)

    return operation(build, 2)


pack_e4m3, pack_e5m2 = _packer(3), _packer(2)
unpack_e4m3, unpack_e5m2 = _unpacker(3), _unpacker(2)


@kernel
def pack(source: Elements, work: Work, out: int) -> int:
    """Code rows."""
    rows, dim, _bits, _group, mantissa_bits, limit_bits = work
    scratch = np.empty(dim, np.float32)
    place = 0
    for row in range(rows):
        load_row(source, row, scratch)
        refused = flush_row(scratch, limit_bits)
        if refused >= 0:
            return row * dim + refused
        header, total = place, _ZERO
        place += 4
        for start in range(0, dim, BLOCK):
            if mantissa_bits == 3:
                total += pack_e4m3(out, place, scratch, start)
            else:
                total += pack_e5m2(out, place, scratch, start)
            place += BLOCK_BYTES
        store_f32(out, header, total)
    return -1


@kernel
def unpack(packed: int, work: Work, out: Elements) -> None:
    """Decode rows."""
    rows, dim, _bits, _group, mantissa_bits, _limit_bits = work
    scratch = np.empty(dim, np.float32)
    place = 0
    for row in range(rows):
        place += 4
        for start in range(0, dim, BLOCK):
            if mantissa_bits == 3:
                unpack_e4m3(packed, place, scratch, start)
            else:
                unpack_e5m2(packed, place, scratch, start)
            place += BLOCK_BYTES
        store_row(out, row, scratch)

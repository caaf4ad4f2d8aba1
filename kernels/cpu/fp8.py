"""fp8, as `oracle.fp8` defines it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import types

from .llvm import (
    f32,
    inlined,
    kernel,
    load_f16,
    load_u8,
    operation,
    round_to_f16,
    store_f16,
    store_f32,
    store_u8,
)
from .rows import flush_row, largest_magnitude, load_row, store_row, sum_of_squares

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TARGET = np.float32(240)
_ZERO = np.float32(0)
_ONE = np.float32(1)
_BLOCK = 34


def _int(value: int) -> ir.Constant:
    return ir.Constant(ir.IntType(32), value)


def _encoder(exponent_bits: int, mantissa_bits: int) -> Callable[[ir.IRBuilder, ir.Value], ir.Value]:
    bias = (1 << (exponent_bits - 1)) - 1
    shift = 23 - mantissa_bits

    def build(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        bits = builder.bitcast(value, ir.IntType(32))
        magnitude = builder.and_(bits, _int(0x7FFFFFFF))
        odd = builder.and_(builder.lshr(magnitude, _int(shift)), _int(1))
        nudge = builder.add(odd, _int((1 << (shift - 1)) - 1))
        rounded = builder.lshr(builder.add(magnitude, nudge), _int(shift))
        normal = builder.sub(rounded, _int((127 - bias) << mantissa_bits))
        # The sum with a power of two whose last bit is one subnormal step rounds to whole steps.
        anchor = ir.Constant(ir.FloatType(), 2.0 ** (1 - bias - mantissa_bits + 23))
        steps = builder.fadd(builder.bitcast(magnitude, ir.FloatType()), anchor)
        subnormal = builder.and_(builder.bitcast(steps, ir.IntType(32)), _int(0xFF))
        is_small = builder.icmp_unsigned("<", magnitude, _int((128 - bias) << 23))
        sign = builder.and_(builder.lshr(bits, _int(24)), _int(0x80))
        return builder.or_(builder.select(is_small, subnormal, normal), sign)

    return build


def _decoder(exponent_bits: int, mantissa_bits: int) -> Callable[[ir.IRBuilder, ir.Value], ir.Value]:
    bias = (1 << (exponent_bits - 1)) - 1
    first_nan = 0x7F if mantissa_bits == 3 else 0x7D
    infinity = 0x7C if mantissa_bits == 2 else None

    def build(builder: ir.IRBuilder, code: ir.Value) -> ir.Value:
        magnitude = builder.and_(code, _int(0x7F))
        sign = builder.shl(builder.and_(code, _int(0x80)), _int(24))
        normal = builder.add(builder.shl(magnitude, _int(23 - mantissa_bits)), _int((127 - bias) << 23))
        step = ir.Constant(ir.FloatType(), 2.0 ** (1 - bias - mantissa_bits))
        subnormal = builder.fmul(builder.sitofp(magnitude, ir.FloatType()), step)
        is_small = builder.icmp_unsigned("<", magnitude, _int(1 << mantissa_bits))
        bits = builder.select(is_small, builder.bitcast(subnormal, ir.IntType(32)), normal)
        if infinity is not None:
            is_infinite = builder.icmp_unsigned("==", magnitude, _int(infinity))
            bits = builder.select(is_infinite, _int(0x7F800000), bits)
        is_nan = builder.icmp_unsigned(">=", magnitude, _int(first_nan))
        bits = builder.select(is_nan, _int(0x7FC00000), bits)
        return builder.bitcast(builder.or_(bits, sign), ir.FloatType())

    return build


encode_e4m3 = operation(_encoder(4, 3), types.int32, f32)
decode_e4m3 = operation(_decoder(4, 3), f32, types.int32)


@inlined
def pack_block(scratch: NDArray[np.float32], start: int, out: int, at: int) -> None:
    """One block of 34 bytes; `scratch` then holds what it decodes to."""
    scale = round_to_f16(largest_magnitude(scratch, start, 32) / _TARGET)
    inverse = _ONE / scale if scale > _ZERO else _ZERO
    store_f16(out, at, scale)
    for i in range(32):
        code = encode_e4m3(scratch[start + i] * inverse)
        store_u8(out, at + 2 + i, code)
        scratch[start + i] = decode_e4m3(code) * scale


@inlined
def unpack_block(packed: int, at: int, scratch: NDArray[np.float32], start: int) -> None:
    """One block of 34 bytes."""
    scale = load_f16(packed, at)
    for i in range(32):
        scratch[start + i] = decode_e4m3(load_u8(packed, at + 2 + i)) * scale


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
    _: int,
    out: int,
) -> int:
    """Code rows."""
    scratch = np.empty(dim, np.float32)
    blocks = dim // 32
    for row in range(rows):
        load_row(source, element, heads, head_stride, row_stride, row, scratch)
        refused = flush_row(scratch, limit_bits)
        if refused >= 0:
            return row * dim + refused
        at = row * (4 + blocks * _BLOCK)
        for block in range(blocks):
            pack_block(scratch, block * 32, out, at + 4 + block * _BLOCK)
        store_f32(out, at, sum_of_squares(scratch))
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
    _: int,
    out: int,
) -> None:
    """Decode rows."""
    scratch = np.empty(dim, np.float32)
    blocks = dim // 32
    for row in range(rows):
        at = row * (4 + blocks * _BLOCK)
        for block in range(blocks):
            unpack_block(packed, at + 4 + block * _BLOCK, scratch, block * 32)
        store_row(out, element, heads, head_stride, row_stride, row, scratch)

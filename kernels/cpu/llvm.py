"""What numba lacks: unaligned typed memory, half precision, and float operations that vectorize.

A place in memory is an address (int64) and a byte offset. The offset must be the part that moves in a loop:
LLVM then sees one pointer and a stride, and vectorizes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_F = TypeVar("_F", bound=Callable[..., Any])
_Convert = Callable[[ir.IRBuilder, ir.Value], ir.Value]

_SOURCES: Final = hashlib.blake2b(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))), digest_size=4
).hexdigest()

# "numpy": a division by zero is an infinity, not an exception with its branch in every loop.
_OPTIONS: Final = {"nogil": True, "error_model": "numpy"}


def kernel(function: _F) -> _F:
    """Compile an entry point; the result is kept on disk.

    numba looks at the date of the one file that holds the function. A kernel is made of several files, so the
    digest of all of them becomes part of the name it is kept under.
    """
    function.__qualname__ += f"_{_SOURCES}"
    compiled: _F = numba.njit(cache=True, **_OPTIONS)(function)
    return compiled


def inlined(function: _F) -> _F:
    """Compile a function into every kernel that calls it."""
    compiled: _F = numba.njit(forceinline=True, **_OPTIONS)(function)
    return compiled


_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_HALF, _FLOAT = ir.HalfType(), ir.FloatType()
_ADDRESS = types.int64
f32: Final = numba.float32
_u8, _u16, _i32 = types.uint8, types.uint16, types.int32


def _place(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value, kind: ir.Type) -> ir.Value:
    start = builder.inttoptr(address, _I8.as_pointer())
    return builder.bitcast(builder.gep(start, [offset]), kind.as_pointer())


def _loader(kind: ir.Type, result: types.Type, convert: _Convert | None = None) -> Any:
    @intrinsic
    def load(_typing: Any, address: Any, offset: Any) -> Any:
        def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
            value = builder.load(_place(builder, args[0], args[1], kind), align=1)
            return convert(builder, value) if convert else value

        return result(_ADDRESS, _ADDRESS), generate

    return load


def _storer(kind: ir.Type, argument: types.Type, convert: _Convert | None = None) -> Any:
    @intrinsic
    def store(_typing: Any, address: Any, offset: Any, value: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
            word = convert(builder, args[2]) if convert else args[2]
            builder.store(word, _place(builder, args[0], args[1], kind), align=1)
            return context.get_dummy_value()

        return types.void(_ADDRESS, _ADDRESS, argument), generate

    return store


def operation(build: Callable[..., ir.Value], result: types.Type, *arguments: types.Type) -> Any:
    """An intrinsic of fixed types, built by `build(builder, *values)`."""

    def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        return build(builder, *args)

    if len(arguments) == 1:

        @intrinsic
        def unary(_typing: Any, a: Any) -> Any:
            return result(*arguments), generate

        return unary

    @intrinsic
    def binary(_typing: Any, a: Any, b: Any) -> Any:
        return result(*arguments), generate

    return binary


def _int(value: int) -> ir.Constant:
    return ir.Constant(_I32, value)


def _bits(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return builder.bitcast(value, _I32)


def _magnitude(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return builder.and_(_bits(builder, value), _int(0x7FFFFFFF))


def _call(builder: ir.IRBuilder, name: str, value: ir.Value) -> ir.Value:
    return builder.call(builder.module.declare_intrinsic(name, [_FLOAT]), [value])


def _bf16_to_f32(builder: ir.IRBuilder, word: ir.Value) -> ir.Value:
    return builder.bitcast(builder.shl(builder.zext(word, _I32), _int(16)), _FLOAT)


def _f32_to_bf16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    bits = _bits(builder, value)
    top = builder.lshr(bits, _int(16))
    half = builder.add(_int(0x7FFF), builder.and_(top, _int(1)))
    rounded = builder.lshr(builder.add(bits, half), _int(16))
    is_nan = builder.icmp_unsigned(">", _magnitude(builder, value), _int(0x7F800000))
    return builder.trunc(builder.select(is_nan, builder.or_(top, _int(0x40)), rounded), _I16)


def _round_to_f16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return builder.fpext(builder.fptrunc(value, _HALF), _FLOAT)


def _flush(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    small = builder.icmp_unsigned("<", _magnitude(builder, value), _int(0x00800000))
    return builder.select(small, ir.Constant(_FLOAT, 0.0), value)


def _saturate(limit: float, limit_bits: int) -> Callable[[ir.IRBuilder, ir.Value], ir.Value]:
    def build(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        magnitude = _magnitude(builder, value)
        beyond = builder.icmp_unsigned(">", magnitude, _int(limit_bits))
        finite = builder.icmp_unsigned("<", magnitude, _int(0x7F800000))
        positive = builder.icmp_signed(">=", _bits(builder, value), _int(0))
        end = builder.select(positive, ir.Constant(_FLOAT, limit), ir.Constant(_FLOAT, -limit))
        return builder.select(builder.and_(beyond, finite), end, value)

    return build


def _choose(order: str) -> Callable[..., ir.Value]:
    # The flags let a loop of these become a vector reduction; callers pass no NaN and no -0.
    def build(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
        flags = ("nnan", "nsz")
        return builder.select(builder.fcmp_ordered(order, a, b, flags=flags), a, b, flags=flags)

    return build


load_u8 = _loader(_I8, _i32, lambda builder, word: builder.zext(word, _I32))
load_i8 = _loader(_I8, _i32, lambda builder, word: builder.sext(word, _I32))
load_f32 = _loader(_FLOAT, f32)
load_f16 = _loader(_HALF, f32, lambda builder, half: builder.fpext(half, _FLOAT))
load_bf16 = _loader(_I16, f32, _bf16_to_f32)

store_u8 = _storer(_I8, _i32, lambda builder, word: builder.trunc(word, _I8))
store_f32 = _storer(_FLOAT, f32)
store_f16 = _storer(_HALF, f32, lambda builder, value: builder.fptrunc(value, _HALF))
store_bf16 = _storer(_I16, f32, _f32_to_bf16)

smaller = operation(_choose("<"), f32, f32, f32)
larger = operation(_choose(">"), f32, f32, f32)
magnitude_bits = operation(_magnitude, _i32, f32)
from_bits = operation(lambda b, v: b.bitcast(v, _FLOAT), f32, _i32)
absolute = operation(lambda b, v: _call(b, "llvm.fabs", v), f32, f32)
nearest = operation(lambda b, v: _call(b, "llvm.rint", v), f32, f32)
to_int = operation(lambda b, v: b.fptosi(v, _I32), _i32, f32)
to_float = operation(lambda b, v: b.sitofp(v, _FLOAT), f32, _i32)
flush = operation(_flush, f32, f32)
round_to_f16 = operation(_round_to_f16, f32, f32)
saturate_f16 = operation(_saturate(65504.0, 0x477FE000), f32, f32)
saturate_bf16 = operation(_saturate(float.fromhex("0x1.fep+127"), 0x7F7F0000), f32, f32)

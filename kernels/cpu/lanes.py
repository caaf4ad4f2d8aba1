"""Vectors as values: code for a block of elements that is certain to be vector code.

Loops over a block of 32 are left to LLVM's vectorizer where it does well. Rotations, look-ups and packing of
odd widths are shuffles, which it does not find: they are written here, with Python's operators, on values of
one LLVM vector type. LLVM splits a vector of 32 into the registers a machine has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I8, I16, I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
HALF, FLOAT = ir.HalfType(), ir.FloatType()

BLOCK: Final = 32


class Lanes:
    """Numbers side by side; one lane alone stands for as many as its partner in an operation has."""

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.builder = builder
        self.value = value
        self.kind = value.type.element
        self.count: int = value.type.count

    @classmethod
    def constant(cls, builder: ir.IRBuilder, kind: ir.Type, values: Sequence[float]) -> Lanes:
        """Known numbers."""
        vector = ir.VectorType(kind, len(values))
        return cls(builder, ir.Constant(vector, [ir.Constant(kind, value) for value in values]))

    @classmethod
    def scalar(cls, builder: ir.IRBuilder, value: ir.Value) -> Lanes:
        """One lane."""
        empty = ir.Constant(ir.VectorType(value.type, 1), ir.Undefined)
        return cls(builder, builder.insert_element(empty, value, ir.Constant(I32, 0)))

    def first(self) -> ir.Value:
        """Lane 0 as a scalar."""
        return self.builder.extract_element(self.value, ir.Constant(I32, 0))

    def pick(self, lanes: Sequence[int], other: Lanes | None = None) -> Lanes:
        """Lanes by number; those of `other` are numbered after this one's."""
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), [ir.Constant(I32, lane) for lane in lanes])
        return self._with(self.builder.shuffle_vector(self.value, (other or self).value, mask))

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._both(other, self.builder.fadd, self.builder.add)

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._both(other, self.builder.fsub, self.builder.sub)

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._both(other, self.builder.fmul, self.builder.mul)

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return self._both(other, self.builder.fdiv, None)

    def __and__(self, other: Lanes | int) -> Lanes:
        return self._both(other, None, self.builder.and_)

    def __or__(self, other: Lanes | int) -> Lanes:
        return self._both(other, None, self.builder.or_)

    def __lshift__(self, other: int) -> Lanes:
        return self._both(other, None, self.builder.shl)

    def __rshift__(self, other: int) -> Lanes:
        return self._both(other, None, self.builder.lshr)

    def __gt__(self, other: Lanes | float) -> Lanes:
        return self._compare(">", other)

    def __ge__(self, other: Lanes | float) -> Lanes:
        return self._compare(">=", other)

    def choose(self, yes: Lanes, no: Lanes) -> Lanes:
        """Where this comparison holds `yes`, else `no`."""
        return self._with(self.builder.select(self.value, yes.value, no.value))

    def like(self, values: float) -> Lanes:
        """A known number in every lane of this type."""
        return self.constant(self.builder, self.kind, [values] * self.count)

    def larger(self, other: Lanes) -> Lanes:
        """Lane by lane; no NaN may come."""
        return (self > other).choose(self, other)

    def smaller(self, other: Lanes) -> Lanes:
        """Lane by lane; no NaN may come."""
        return (other > self).choose(self, other)

    def fold(self, combine: Callable[[Lanes, Lanes], Lanes]) -> Lanes:
        """All lanes in one, halving; for operations whose order does not matter."""
        rest = self
        while rest.count > 1:
            half = rest.count // 2
            rest = combine(rest.pick(range(half)), rest.pick(range(half, 2 * half)))
        return rest

    def ordered_sum(self) -> Lanes:
        """Sum of 32 lanes in the order of `oracle.numeric.row_sum`."""
        octets = self.pick(range(0, self.count, 8))
        for i in range(1, 8):
            octets = octets + self.pick(range(i, self.count, 8))
        pairs = octets.pick([0, 2]) + octets.pick([1, 3])
        return pairs.pick([0]) + pairs.pick([1])

    def to(self, kind: ir.Type) -> Lanes:
        """Convert: numbers between int and float types (signed), masks to 0 and 1."""
        vector = ir.VectorType(kind, self.count)
        build = self.builder
        if _is_float(self.kind) and _is_float(kind):
            convert = build.fptrunc if kind == HALF else build.fpext
        elif _is_float(self.kind):
            convert = build.fptosi
        elif _is_float(kind):
            convert = build.sitofp
        elif kind.width < self.kind.width:
            convert = build.trunc
        else:
            convert = build.zext if self.kind.width == 1 else build.sext
        return self._with(convert(self.value, vector))

    def bits(self, kind: ir.Type, count: int) -> Lanes:
        """The same bytes as lanes of another type."""
        return self._with(self.builder.bitcast(self.value, ir.VectorType(kind, count)))

    def hadamard(self) -> Lanes:
        """The oracle's butterflies."""
        x, stride = self, 1
        while stride < self.count:
            partner = x.pick([i ^ stride for i in range(x.count)])
            second = [i + (x.count if i & stride else 0) for i in range(x.count)]
            x = (x + partner).pick(second, partner - x)
            stride *= 2
        return x

    def pack(self, width: int) -> Lanes:
        """Codes below 2**width in 32-bit lanes as bytes, lowest bits first."""
        words = self.pick(range(0, self.count, 8))
        for i in range(1, 8):
            words = words | self.pick(range(i, self.count, 8)) << i * width
        whole = words.bits(I8, 4 * words.count)
        return whole.pick([4 * word + byte for word in range(words.count) for byte in range(width)])

    def unpack(self, width: int) -> Lanes:
        """Codes in 32-bit lanes from `pack`'s bytes."""
        words = self.count // width
        spread = [word * width + min(byte, width - 1) for word in range(words) for byte in range(4)]
        whole = self.pick(spread).bits(I32, words)
        parts = [(whole >> i * width) & (1 << width) - 1 for i in range(8)]
        return _interleave(parts)

    def _with(self, value: ir.Value) -> Lanes:
        return Lanes(self.builder, value)

    def _compare(self, order: str, other: Lanes | float) -> Lanes:
        build = self.builder
        if _is_float(self.kind):
            return self._both(other, lambda a, b: build.fcmp_ordered(order, a, b), None)
        return self._both(other, None, lambda a, b: build.icmp_signed(order, a, b))

    def _both(self, other: Lanes | float, floats: Any, integers: Any) -> Lanes:
        if not isinstance(other, Lanes):
            other = self.like(other)
        count = max(self.count, other.count)
        a, b = (x if x.count == count else x.pick([0] * count) for x in (self, other))
        return self._with((floats if _is_float(self.kind) else integers)(a.value, b.value))


def _is_float(kind: ir.Type) -> bool:
    return isinstance(kind, (ir.FloatType, ir.HalfType))


def _interleave(parts: list[Lanes]) -> Lanes:
    """Lane 0 of each part, then lane 1 of each, and so on."""
    count = parts[0].count
    joined = parts
    while len(joined) > 1:
        joined = [a.pick(range(a.count + b.count), b) for a, b in zip(joined[::2], joined[1::2], strict=True)]
    return joined[0].pick([part * count + lane for lane in range(count) for part in range(len(parts))])


def load(builder: ir.IRBuilder, place: ir.Value, kind: ir.Type, count: int) -> Lanes:
    """Lanes from memory of any alignment."""
    pointer = builder.bitcast(place, ir.VectorType(kind, count).as_pointer())
    return Lanes(builder, builder.load(pointer, align=1))


def store(lanes: Lanes, place: ir.Value) -> None:
    """Lanes to memory of any alignment."""
    build = lanes.builder
    build.store(lanes.value, build.bitcast(place, lanes.value.type.as_pointer()), align=1)


def block_operation(build: Callable[[ir.IRBuilder, ir.Value, ir.Value], None]) -> Any:
    """A call `operation(address, offset, scratch, start)`; `build(builder, bytes, elements)` writes its code.

    `bytes` points at the packed block, `elements` at its float32 elements.
    """

    @intrinsic
    def operation(_typing: Any, address: Any, offset: Any, scratch: Any, start: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            packed = builder.gep(builder.inttoptr(args[0], I8.as_pointer()), [args[1]])
            elements = context.make_array(signature.args[2])(context, builder, args[2]).data
            build(builder, packed, builder.gep(elements, [args[3]]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, scratch, types.int64), generate

    return operation

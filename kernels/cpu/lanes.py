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

    def __neg__(self) -> Lanes:
        return self * -1.0

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
        rest, width = self, 8
        while width > 1:
            half = width // 2
            first = [i for i in range(rest.count) if i % width < half]
            rest = rest.pick(first) + rest.pick([i + half for i in first])
            width = half
        pairs = rest.pick([0, 2]) + rest.pick([1, 3])
        return pairs.pick([0]) + pairs.pick([1])

    def magnitude(self) -> Lanes:
        """Floats without their sign."""
        return (self.bits(I32, self.count) & 0x7FFFFFFF).bits(FLOAT, self.count)

    def nearest(self) -> Lanes:
        """The nearest whole floats, ties to even."""
        name = f"llvm.rint.v{self.count}f32"
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(self.value.type, [self.value.type]), name)
        return self._with(self.builder.call(function, [self.value]))

    def clamp(self, low: float, high: float) -> Lanes:
        """Within low..high; no NaN may come."""
        return self.larger(self.like(low)).smaller(self.like(high))

    def saturate(self, limit: float) -> Lanes:
        """Finite floats within +-limit; NaN and infinities stay."""
        magnitude = self.magnitude()
        beyond = magnitude.bits(I32, self.count) > magnitude.like(limit).bits(I32, self.count)
        finite = magnitude.like(float("inf")).bits(I32, self.count) > magnitude.bits(I32, self.count)
        end = (self.bits(I32, self.count) >= 0).choose(self.like(limit), self.like(-limit))
        return (beyond & finite).choose(end, self)

    def to_half_and_back(self) -> Lanes:
        """Rounded to fp16."""
        return self.to(HALF).to(FLOAT)

    def to(self, kind: ir.Type, *, signed: bool = True) -> Lanes:
        """Convert numbers between int and float types; masks become 0 and 1."""
        vector = ir.VectorType(kind, self.count)
        build = self.builder
        convert: Any
        if _is_float(self.kind) and _is_float(kind):
            convert = build.fptrunc if kind == HALF else build.fpext
        elif _is_float(self.kind):
            convert = build.fptosi
        elif _is_float(kind):
            convert = build.sitofp
        elif kind.width < self.kind.width:
            convert = build.trunc
        else:
            convert = build.sext if signed and self.kind.width > 1 else build.zext
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
        """Whole numbers below 2**width as bytes, lowest bits first."""
        if width == 3:
            words = self.to(I32).pick(range(0, self.count, 8))
            for i in range(1, 8):
                words = words | self.to(I32).pick(range(i, self.count, 8)) << i * width
            whole = words.bits(I8, 4 * words.count)
            return whole.pick([4 * word + byte for word in range(words.count) for byte in range(3)])
        codes = self.to(I8)
        while width < 8:
            codes = codes.pick(range(0, codes.count, 2)) | codes.pick(range(1, codes.count, 2)) << width
            width *= 2
        return codes

    def unpack(self, width: int) -> Lanes:
        """Codes, one a byte, from `pack`'s bytes."""
        if width == 3:
            words = self.pick([3 * w + min(b, 2) for w in range(self.count // 3) for b in range(4)])
            words = words.bits(I32, self.count // 3)
            parts = [((words >> 3 * i) & 7).to(I8) for i in range(8)]
            while len(parts) > 1:
                half = len(parts) // 2
                parts = [a.interleave(b) for a, b in zip(parts[:half], parts[half:], strict=True)]
            return parts[0]
        codes, have = self, 8
        while have > width:
            have //= 2
            codes = (codes & (1 << have) - 1).interleave(codes >> have)
        return codes

    def interleave(self, other: Lanes) -> Lanes:
        """Lanes of both in turn."""
        return self.pick([lane + part * self.count for lane in range(self.count) for part in (0, 1)], other)

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


def load(builder: ir.IRBuilder, place: ir.Value, kind: ir.Type, count: int) -> Lanes:
    """Lanes from memory of any alignment."""
    pointer = builder.bitcast(place, ir.VectorType(kind, count).as_pointer())
    return Lanes(builder, builder.load(pointer, align=1))


def at(builder: ir.IRBuilder, place: ir.Value, offset: int) -> ir.Value:
    """A place some bytes further."""
    return builder.gep(place, [ir.Constant(I32, offset)])


def store(lanes: Lanes, place: ir.Value) -> None:
    """Lanes to memory of any alignment."""
    build = lanes.builder
    build.store(lanes.value, build.bitcast(place, lanes.value.type.as_pointer()), align=1)


def operation(build: Callable[..., ir.Value | None], places: int, result: types.Type = types.void) -> Any:
    """A call on places in memory whose code `build(builder, *pointers)` writes.

    Each place is two arguments: the address of bytes and a byte offset, or an array and an index.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        pointers = []
        for kind, base, offset in zip(signature.args[::2], args[::2], args[1::2], strict=True):
            if isinstance(kind, types.Array):
                start = context.make_array(kind)(context, builder, base).data
            else:
                start = builder.inttoptr(base, I8.as_pointer())
            pointers.append(builder.gep(start, [offset]))
        value = build(builder, *pointers)
        return context.get_dummy_value() if value is None else value

    def signature(*arguments: Any) -> Any:
        fixed = (kind if isinstance(kind, types.Array) else types.int64 for kind in arguments)
        return result(*fixed), generate

    if places == 1:

        @intrinsic
        def one(_typing: Any, a: Any, i: Any) -> Any:
            return signature(a, i)

        return one

    if places == 2:

        @intrinsic
        def two(_typing: Any, a: Any, i: Any, b: Any, j: Any) -> Any:
            return signature(a, i, b, j)

        return two

    if places == 3:

        @intrinsic
        def three(_typing: Any, a: Any, i: Any, b: Any, j: Any, c: Any, k: Any) -> Any:
            return signature(a, i, b, j, c, k)

        return three

    @intrinsic
    def four(_typing: Any, a: Any, i: Any, b: Any, j: Any, c: Any, k: Any, d: Any, n: Any) -> Any:
        return signature(a, i, b, j, c, k, d, n)

    return four

"""rvq1, rvq2, as `oracle.rvq` defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir

from ..codebooks import RVQ, RVQ_UNIT
from ..oracle.rvq import FLIPS
from .lanes import BLOCK, FLOAT, I8, I32, Lanes, load, operation, store
from .llvm import f32, inlined, kernel, load_bf16, store_bf16
from .rows import flush_row, load_row, store_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .rows import Elements, Work

_ZERO, _ONE = np.float32(0), np.float32(1)
_SMALLEST_SQUARE = np.float32(2.0**-100)


def _nearest(x: Lanes, levels: tuple[int, ...]) -> tuple[Lanes, Lanes]:
    """Code and level."""
    code = x.to(I32).like(0)
    level = x.like(levels[0] / RVQ_UNIT)
    for before, after in zip(levels, levels[1:], strict=False):
        above = x > (before + after) / (2 * RVQ_UNIT)
        code = code + above.to(I32)
        level = above.choose(level.like(after / RVQ_UNIT), level)
    return code, level


def _packer(bits: int) -> Any:
    """Code one block; the levels replace the elements, and the sum of their products is returned."""
    first, second = RVQ[bits]

    def build(builder: ir.IRBuilder, stage1: ir.Value, stage2: ir.Value, elements: ir.Value) -> ir.Value:
        z = load(builder, elements, FLOAT, BLOCK)
        code1, level1 = _nearest(z, first)
        code2, level2 = _nearest(z - level1, second)
        store(code1.pack(bits), stage1)
        store(code2.pack(bits), stage2)
        chosen = level1 + level2
        store(chosen, elements)
        return (z * chosen).ordered_sum().first()

    return operation(build, 3, f32)


def _unpacker(bits: int) -> Any:
    def build(builder: ir.IRBuilder, stage1: ir.Value, stage2: ir.Value, elements: ir.Value) -> None:
        chosen = None
        for place, levels in zip((stage1, stage2), RVQ[bits], strict=True):
            code = load(builder, place, I8, 4 * bits).unpack(bits)
            level = code.to(I32).to(FLOAT).like(levels[0] / RVQ_UNIT)
            for i in range(1, len(levels)):
                level = (code >= i).choose(level.like(levels[i] / RVQ_UNIT), level)
            chosen = level if chosen is None else chosen + level
        assert chosen is not None
        store(chosen.hadamard(), elements)

    return operation(build, 3)


def _build_turn(builder: ir.IRBuilder, elements: ir.Value, flips: ir.Value) -> None:
    x, signs = (load(builder, place, FLOAT, BLOCK) for place in (elements, flips))
    store((x * signs).hadamard(), elements)


def _build_flip(builder: ir.IRBuilder, elements: ir.Value, flips: ir.Value) -> None:
    x, signs = (load(builder, place, FLOAT, BLOCK) for place in (elements, flips))
    store(x * signs, elements)


def _build_squares(builder: ir.IRBuilder, elements: ir.Value) -> ir.Value:
    x = load(builder, elements, FLOAT, BLOCK)
    return (x * x).ordered_sum().first()


def _build_butterfly(builder: ir.IRBuilder, one: ir.Value, other: ir.Value) -> None:
    a, b = (load(builder, place, FLOAT, BLOCK) for place in (one, other))
    store(a + b, one)
    store(a - b, other)


_turn, _flip = operation(_build_turn, 2), operation(_build_flip, 2)
_squares = operation(_build_squares, 1, f32)
_butterfly = operation(_build_butterfly, 2)
_pack1, _pack2 = _packer(1), _packer(2)
_unpack1, _unpack2 = _unpacker(1), _unpacker(2)


@inlined
def _sum_of_squares(scratch: NDArray[np.float32], start: int, head: int) -> np.float32:
    total = _ZERO
    for block in range(start, start + head, BLOCK):
        total += _squares(scratch, block)
    return total


@inlined
def _turn_across(scratch: NDArray[np.float32], start: int, head: int) -> None:
    """The transform's strides of 32 and more."""
    stride = BLOCK
    while stride < head:
        for block in range(0, head, BLOCK):
            if block & stride == 0:
                _butterfly(scratch, start + block, scratch, start + block + stride)
        stride *= 2


@inlined
def _pack_head(scratch: NDArray[np.float32], start: int, head: int, bits: int, out: int, place: int) -> None:
    square = _sum_of_squares(scratch, start, head)
    norm = inverse = _ZERO
    if square >= _SMALLEST_SQUARE:
        norm = np.sqrt(square)
        inverse = _ONE / norm
    for block in range(0, head, BLOCK):
        _turn(scratch, start + block, FLIPS, block % 256)
    _turn_across(scratch, start, head)
    for i in range(start, start + head):
        scratch[i] *= inverse
    stage = head * bits // 8
    product = _ZERO
    for block in range(0, head, BLOCK):
        at = place + block * bits // 8
        if bits == 1:
            product += _pack1(out, at, out, at + stage, scratch, start + block)
        else:
            product += _pack2(out, at, out, at + stage, scratch, start + block)
    gain = _ZERO
    if norm > _ZERO:
        gain = norm * (product / _sum_of_squares(scratch, start, head))
    store_bf16(out, place + 2 * stage, gain)


@kernel
def pack(source: Elements, work: Work, out: int) -> int:
    """Code rows."""
    rows, dim, bits, head, _variant, limit_bits = work
    scratch = np.empty(dim, np.float32)
    place, size = 0, 2 + head * bits // 8
    for row in range(rows):
        load_row(source, row, scratch)
        refused = flush_row(scratch, limit_bits)
        if refused >= 0:
            return row * dim + refused
        for start in range(0, dim, head):
            _pack_head(scratch, start, head, bits // 2, out, place)
            place += size
    return -1


@inlined
def _unpack_head(
    packed: int, place: int, bits: int, head: int, scratch: NDArray[np.float32], start: int
) -> None:
    stage = head * bits // 8
    for block in range(0, head, BLOCK):
        at = place + block * bits // 8
        if bits == 1:
            _unpack1(packed, at, packed, at + stage, scratch, start + block)
        else:
            _unpack2(packed, at, packed, at + stage, scratch, start + block)
    _turn_across(scratch, start, head)
    gain, share = load_bf16(packed, place + 2 * stage), _ONE / np.float32(head)
    for block in range(0, head, BLOCK):
        _flip(scratch, start + block, FLIPS, block % 256)
    for i in range(start, start + head):
        scratch[i] = scratch[i] * share * gain


@kernel
def unpack(packed: int, work: Work, out: Elements) -> None:
    """Decode rows."""
    rows, dim, bits, head, _variant, _limit_bits = work
    scratch = np.empty(dim, np.float32)
    place, size = 0, 2 + head * bits // 8
    for row in range(rows):
        for start in range(0, dim, head):
            _unpack_head(packed, place, bits // 2, head, scratch, start)
            place += size
        store_row(out, row, scratch)

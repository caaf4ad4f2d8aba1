"""qserve4, as `oracle.qserve` defines it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .llvm import (
    absolute,
    inlined,
    kernel,
    larger,
    load_f16,
    load_u8,
    nearest,
    round_to_f16,
    smaller,
    store_f16,
    store_u8,
    to_float,
    to_int,
)
from .rows import flush_row, load_row, store_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .rows import Elements, Work

_ZERO, _ONE, _STEPS = np.float32(0), np.float32(1), np.float32(15)
_FP16_MAX = np.float32(65504)


@inlined
def _choose(scratch: NDArray[np.float32], start: int, head: int) -> tuple[np.float32, np.float32, bool]:
    """Scale, offset, and whether the head counts as constant."""
    low = high = scratch[start]
    for i in range(start, start + head):
        low = smaller(low, scratch[i])
        high = larger(high, scratch[i])
    scale = round_to_f16((high - low) / _STEPS)
    if scale > _ZERO:
        offset = (_ZERO - low) / scale
        if absolute(offset) <= _FP16_MAX:
            return scale, round_to_f16(offset), False
    return round_to_f16(low), -_ONE, True


@inlined
def _code(scratch: NDArray[np.float32], start: int, head: int, scale: np.float32, offset: np.float32) -> None:
    """Elements of a head to codes, in place."""
    for i in range(start, start + head):
        steps = nearest(scratch[i] / scale + offset)
        scratch[i] = smaller(larger(steps, _ZERO), _STEPS)


@kernel
def pack(source: Elements, work: Work, out: int) -> int:
    """Code rows."""
    rows, dim, _bits, head, _variant, limit_bits = work
    scratch = np.empty(dim, np.float32)
    code_bytes, params = dim // 2, 2 * (dim // head)
    for row in range(rows):
        load_row(source, row, scratch)
        refused = flush_row(scratch, limit_bits)
        if refused >= 0:
            return row * dim + refused
        place = row * (code_bytes + 2 * params)
        at = place + code_bytes
        for start in range(0, dim, head):
            scale, offset, constant = _choose(scratch, start, head)
            store_f16(out, at, scale)
            store_f16(out, at + params, offset)
            if constant:
                scratch[start : start + head] = _ZERO
            else:
                _code(scratch, start, head, scale, offset)
            at += 2
        for i in range(code_bytes):
            store_u8(out, place + i, to_int(scratch[2 * i]) | to_int(scratch[2 * i + 1]) << 4)
    return -1


@kernel
def unpack(packed: int, work: Work, out: Elements) -> None:
    """Decode rows."""
    rows, dim, _bits, head, _variant, _limit_bits = work
    scratch = np.empty(dim, np.float32)
    code_bytes, params = dim // 2, 2 * (dim // head)
    for row in range(rows):
        place = row * (code_bytes + 2 * params)
        for i in range(code_bytes):
            pair = load_u8(packed, place + i)
            scratch[2 * i] = to_float(pair & 15)
            scratch[2 * i + 1] = to_float(pair >> 4)
        at = place + code_bytes
        for start in range(0, dim, head):
            scale, offset = load_f16(packed, at), load_f16(packed, at + params)
            for i in range(start, start + head):
                scratch[i] = (scratch[i] - offset) * scale
            at += 2
        store_row(out, row, scratch)

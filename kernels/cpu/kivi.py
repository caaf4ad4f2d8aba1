"""kivi4, kivi2, as `oracle.kivi` defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..kivi import LIMIT, KiviSpec, Side
from . import address_of, elements_of
from .llvm import (
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

    from ..batch import Batch
    from .rows import Elements

    Row = NDArray[np.float32]

_ZERO = np.float32(0)
_LIMIT_BITS = int(np.float32(LIMIT).view(np.int32))


def pack(spec: KiviSpec, side: Side, batch: Batch, source: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    """Code rows; return -1, or the flat index of the first refused element."""
    run, unit = (_pack_keys, spec.tokens) if side is Side.KEYS else (_pack_values, spec.channels)
    refused: int = run(elements_of(source, batch), batch.rows, spec.dim, spec.bits, unit, address_of(out))
    return refused


def unpack(
    spec: KiviSpec, side: Side, batch: Batch, packed: NDArray[np.uint8], out: NDArray[np.uint8]
) -> None:
    """Decode rows."""
    run, unit = (_unpack_keys, spec.tokens) if side is Side.KEYS else (_unpack_values, spec.channels)
    run(address_of(packed), batch.rows, spec.dim, spec.bits, unit, elements_of(out, batch))


@inlined
def _store_codes(codes: Row, bits: int, out: int, place: int) -> None:
    """Codes kept as floats, lowest bits first."""
    if bits == 4:
        for i in range(len(codes) // 2):
            store_u8(out, place + i, to_int(codes[2 * i]) | to_int(codes[2 * i + 1]) << 4)
    else:
        for i in range(len(codes) // 4):
            low = to_int(codes[4 * i]) | to_int(codes[4 * i + 1]) << 2
            high = to_int(codes[4 * i + 2]) | to_int(codes[4 * i + 3]) << 2
            store_u8(out, place + i, low | high << 4)


@inlined
def _load_codes(packed: int, place: int, bits: int, codes: Row) -> None:
    if bits == 4:
        for i in range(len(codes) // 2):
            byte = load_u8(packed, place + i)
            codes[2 * i] = to_float(byte & 15)
            codes[2 * i + 1] = to_float(byte >> 4)
    else:
        for i in range(len(codes) // 4):
            byte = load_u8(packed, place + i)
            for part in range(4):
                codes[4 * i + part] = to_float(byte >> 2 * part & 3)


@inlined
def _code(x: np.float32, scale: np.float32, zero: np.float32, steps: np.float32) -> np.float32:
    code = smaller(larger(nearest((x - zero) / scale), _ZERO), steps)
    return code if scale > _ZERO else _ZERO


@inlined
def _load_group(source: Elements, first: int, rows: int, group: NDArray[np.float32]) -> int:
    """Load the rows of a group, the last one again where there are no more; the first refused, or -1."""
    tokens, dim = group.shape
    for token in range(tokens):
        load_row(source, min(first + token, rows - 1), group[token])
        refused = flush_row(group[token], _LIMIT_BITS)
        if refused >= 0:
            return (first + token) * dim + refused
    return -1


@kernel
def _pack_keys(source: Elements, rows: int, dim: int, bits: int, tokens: int, out: int) -> int:
    group = np.empty((tokens, dim), np.float32)
    low, high = np.empty(dim, np.float32), np.empty(dim, np.float32)
    steps = np.float32((1 << bits) - 1)
    size = dim * bits // 8
    place = 0
    for first in range(0, rows, tokens):
        refused = _load_group(source, first, rows, group)
        if refused >= 0:
            return refused
        low[:] = group[0]
        high[:] = group[0]
        for token in range(1, tokens):
            for i in range(dim):
                low[i] = smaller(low[i], group[token, i])
                high[i] = larger(high[i], group[token, i])
        params = place + tokens * size
        for i in range(dim):
            scale, zero = round_to_f16((high[i] - low[i]) / steps), round_to_f16(low[i])
            store_f16(out, params + 2 * i, scale)
            store_f16(out, params + 2 * (dim + i), zero)
            low[i], high[i] = zero, scale
        for token in range(tokens):
            for i in range(dim):
                group[token, i] = _code(group[token, i], high[i], low[i], steps)
            _store_codes(group[token], bits, out, place + token * size)
        place = params + 4 * dim
    return -1


@kernel
def _unpack_keys(packed: int, rows: int, dim: int, bits: int, tokens: int, out: Elements) -> None:
    scratch = np.empty(dim, np.float32)
    size = dim * bits // 8
    for row in range(rows):
        place = row // tokens * (tokens * size + 4 * dim)
        params = place + tokens * size
        _load_codes(packed, place + row % tokens * size, bits, scratch)
        for i in range(dim):
            scale, zero = load_f16(packed, params + 2 * i), load_f16(packed, params + 2 * (dim + i))
            scratch[i] = scratch[i] * scale + zero
        store_row(out, row, scratch)


@kernel
def _pack_values(source: Elements, rows: int, dim: int, bits: int, channels: int, out: int) -> int:
    scratch = np.empty(dim, np.float32)
    steps = np.float32((1 << bits) - 1)
    size, params = dim * bits // 8, 2 * (dim // channels)
    for row in range(rows):
        load_row(source, row, scratch)
        refused = flush_row(scratch, _LIMIT_BITS)
        if refused >= 0:
            return row * dim + refused
        place = row * (size + 2 * params)
        at = place + size
        for start in range(0, dim, channels):
            low = high = scratch[start]
            for i in range(start, start + channels):
                low = smaller(low, scratch[i])
                high = larger(high, scratch[i])
            scale, zero = round_to_f16((high - low) / steps), round_to_f16(low)
            store_f16(out, at, scale)
            store_f16(out, at + params, zero)
            for i in range(start, start + channels):
                scratch[i] = _code(scratch[i], scale, zero, steps)
            at += 2
        _store_codes(scratch, bits, out, place)
    return -1


@kernel
def _unpack_values(packed: int, rows: int, dim: int, bits: int, channels: int, out: Elements) -> None:
    scratch = np.empty(dim, np.float32)
    size, params = dim * bits // 8, 2 * (dim // channels)
    for row in range(rows):
        place = row * (size + 2 * params)
        at = place + size
        _load_codes(packed, place, bits, scratch)
        for start in range(0, dim, channels):
            scale, zero = load_f16(packed, at), load_f16(packed, at + params)
            for i in range(start, start + channels):
                scratch[i] = scratch[i] * scale + zero
            at += 2
        store_row(out, row, scratch)

"""kivi4, kivi2: an fp16 scale and zero for every channel of a key group, or every group of a value row.

Key group: the codes of its tokens one after the other (each dim codes, lowest bits first), the fp16 scales
of all channels, the fp16 zeros of all channels. Value row: codes, fp16 scales, fp16 zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..bits import pack_codes, packed_bytes, unpack_codes
from ..kivi import LIMIT, KiviSpec, Side
from .numeric import F32, first_beyond, flush, fp16_to_fp32, fp32_to_fp16, read, write

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..batch import Batch

    _Coded = tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16]]


def choose(x: NDArray[np.float32], axis: int, bits: int) -> _Coded:
    """Codes, scales and zeros of groups that run along `axis`.

    scale = fp16((max - min) / (2**bits - 1)), zero = fp16(min), code = rint((x - zero) / scale) with both as
    stored; a scale that rounds to 0 (a constant group) has codes 0.
    """
    steps = F32(2**bits - 1)
    low, high = x.min(axis=axis, keepdims=True), x.max(axis=axis, keepdims=True)
    stored_scale, stored_zero = fp32_to_fp16((high - low) / steps), fp32_to_fp16(low)
    scale, zero = fp16_to_fp32(stored_scale), fp16_to_fp32(stored_zero)
    codes = np.clip(np.rint((x - zero) / np.where(scale > 0, scale, F32(1))), F32(0), steps)
    return np.where(scale > 0, codes, F32(0)).astype(np.uint8), stored_scale, stored_zero


def pack(spec: KiviSpec, side: Side, batch: Batch, source: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    """Code rows; return -1, or the flat index of the first refused element."""
    x, rows = read(source, batch), batch.rows
    refused = first_beyond(x, LIMIT, non_finite=True)
    if refused >= 0:
        return refused
    x = flush(x)
    if side is Side.KEYS:
        filled = np.concatenate([x, np.repeat(x[-1:], -rows % spec.tokens, axis=0)])
        codes, *params = choose(filled.reshape(-1, spec.tokens, spec.dim), 1, spec.bits)
    else:
        codes, *params = choose(x.reshape(rows, -1, spec.channels), 2, spec.bits)
    streams = pack_codes(codes.reshape(len(codes), -1), spec.bits)
    halves = [p.reshape(len(codes), -1).view(np.uint8) for p in params]
    out[: spec.stored_bytes(side, rows)] = np.hstack([streams, *halves]).ravel()
    return -1


def unpack(
    spec: KiviSpec, side: Side, batch: Batch, packed: NDArray[np.uint8], out: NDArray[np.uint8]
) -> None:
    """Code * scale + zero, two roundings."""
    keys, rows = side is Side.KEYS, batch.rows
    per_unit = spec.tokens if keys else 1
    units = packed[: spec.stored_bytes(side, rows)].reshape(-(-rows // per_unit), -1)
    size = packed_bytes(per_unit * spec.dim, spec.bits)
    codes = unpack_codes(units[:, :size], spec.bits, per_unit * spec.dim).astype(np.float32)
    params = fp16_to_fp32(np.ascontiguousarray(units[:, size:]).view(np.float16)).reshape(len(units), 2, -1)
    shape = (
        (len(units), spec.tokens, spec.dim)
        if keys
        else (len(units), spec.dim // spec.channels, spec.channels)
    )
    scale, zero = (params[:, i, None] if keys else params[:, i, :, None] for i in (0, 1))
    values = (codes.reshape(shape) * scale + zero).reshape(-1, spec.dim)[:rows]
    write(np.ascontiguousarray(values), out, batch)

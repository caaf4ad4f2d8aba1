"""bf16_rope_fp8_body, as `oracle.rope` defines it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .fp8 import BLOCK_BYTES, pack_e4m3, unpack_e4m3
from .lanes import BLOCK
from .llvm import kernel, load_bf16, store_bf16
from .rows import flush_row, load_row, store_row

if TYPE_CHECKING:
    from .rows import Elements, Work


@kernel
def pack(source: Elements, work: Work, out: int) -> int:
    """Code rows."""
    rows, dim, _bits, _group, rope, limit_bits = work
    scratch = np.empty(dim, np.float32)
    place = 0
    for row in range(rows):
        load_row(source, row, scratch)
        for i in range(rope):
            store_bf16(out, place + 2 * i, scratch[i])
        place += 2 * rope
        refused = flush_row(scratch, limit_bits)
        if refused >= 0:
            return row * dim + refused
        for start in range(rope, dim, BLOCK):
            pack_e4m3(out, place, scratch, start)
            place += BLOCK_BYTES
    return -1


@kernel
def unpack(packed: int, work: Work, out: Elements) -> None:
    """Decode rows."""
    rows, dim, _bits, _group, rope, _limit_bits = work
    scratch = np.empty(dim, np.float32)
    place = 0
    for row in range(rows):
        for i in range(rope):
            scratch[i] = load_bf16(packed, place + 2 * i)
        place += 2 * rope
        for start in range(rope, dim, BLOCK):
            unpack_e4m3(packed, place, scratch, start)
            place += BLOCK_BYTES
        store_row(out, row, scratch)

"""fp32, fp16, bf16: conversions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .llvm import kernel
from .rows import first_overflow, load_row, store_row

if TYPE_CHECKING:
    from .rows import Elements, Work


@kernel
def pack(source: Elements, work: Work, out: int) -> int:
    """Convert to the format's element type."""
    rows, dim, _bits, _group, stored, limit_bits = work
    target = (out, stored, 1, 0, dim)
    scratch = np.empty(dim, np.float32)
    for row in range(rows):
        load_row(source, row, scratch)
        refused = first_overflow(scratch, limit_bits)
        if refused >= 0:
            return row * dim + refused
        store_row(target, row, scratch)
    return -1


@kernel
def unpack(packed: int, work: Work, out: Elements) -> None:
    """Convert from the format's element type."""
    rows, dim, _bits, _group, stored, _limit_bits = work
    source = (packed, stored, 1, 0, dim)
    scratch = np.empty(dim, np.float32)
    for row in range(rows):
        load_row(source, row, scratch)
        store_row(out, row, scratch)

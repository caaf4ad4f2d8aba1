"""fp8 codes alone, as `oracle.static_fp8` defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import address_of, elements_of
from .fp8 import decode, encode
from .lanes import BLOCK, FLOAT, I8, I32, load, operation, store
from .llvm import kernel, larger, smaller
from .rows import flush_row, load_row, store_row

if TYPE_CHECKING:
    from llvmlite import ir
    from numpy.typing import NDArray

    from ..batch import Batch
    from ..static_fp8 import StaticScales
    from .rows import Elements

_LARGEST = {3: np.float32(448), 2: np.float32(57344)}
_LARGEST_FINITE = 0x7F7FFFFF


def pack(scales: StaticScales, batch: Batch, source: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    """Code rows; return -1, or the flat index of the first refused element."""
    values = np.float32(1) / np.array(scales.values, np.float32)
    bits = scales.mantissa_bits
    elements = elements_of(source, batch)
    refused: int = _pack(elements, batch.rows, batch.dim, values, bits, _LARGEST[bits], address_of(out))
    return refused


def unpack(scales: StaticScales, batch: Batch, packed: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Decode rows."""
    values = np.array(scales.values, np.float32)
    elements = elements_of(out, batch)
    _unpack(address_of(packed), batch.rows, batch.dim, values, scales.mantissa_bits, elements)


def _encoder(mantissa_bits: int) -> Any:
    def build(builder: ir.IRBuilder, packed: ir.Value, elements: ir.Value) -> None:
        store(encode(load(builder, elements, FLOAT, BLOCK), mantissa_bits)[0].to(I8), packed)

    return operation(build, 2)


def _decoder(mantissa_bits: int) -> Any:
    def build(builder: ir.IRBuilder, packed: ir.Value, elements: ir.Value) -> None:
        store(decode(load(builder, packed, I8, BLOCK).to(I32, signed=False), mantissa_bits), elements)

    return operation(build, 2)


_encode_e4m3, _encode_e5m2 = _encoder(3), _encoder(2)
_decode_e4m3, _decode_e5m2 = _decoder(3), _decoder(2)


@kernel
def _pack(
    source: Elements,
    rows: int,
    dim: int,
    inverses: NDArray[np.float32],
    mantissa_bits: int,
    largest: np.float32,
    out: int,
) -> int:
    scratch = np.empty(dim, np.float32)
    width = dim // len(inverses)
    for row in range(rows):
        load_row(source, row, scratch)
        refused = flush_row(scratch, _LARGEST_FINITE)
        if refused >= 0:
            return row * dim + refused
        for head in range(len(inverses)):
            for i in range(head * width, (head + 1) * width):
                scratch[i] = smaller(larger(scratch[i] * inverses[head], -largest), largest)
        for start in range(0, dim, BLOCK):
            if mantissa_bits == 3:
                _encode_e4m3(out, row * dim + start, scratch, start)
            else:
                _encode_e5m2(out, row * dim + start, scratch, start)
    return -1


@kernel
def _unpack(
    packed: int, rows: int, dim: int, scales: NDArray[np.float32], mantissa_bits: int, out: Elements
) -> None:
    scratch = np.empty(dim, np.float32)
    width = dim // len(scales)
    for row in range(rows):
        for start in range(0, dim, BLOCK):
            if mantissa_bits == 3:
                _decode_e4m3(packed, row * dim + start, scratch, start)
            else:
                _decode_e5m2(packed, row * dim + start, scratch, start)
        for head in range(len(scales)):
            for i in range(head * width, (head + 1) * width):
                scratch[i] *= scales[head]
        store_row(out, row, scratch)

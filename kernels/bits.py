"""Codes of 1, 2, 3, 4 or 8 bits in bytes.

One order everywhere: code i of a stream occupies bits `i * width` and up, counted from the lowest bit of the
first byte. For 1, 2, 4 and 8 bits these are also the little-endian words that mlx packs; 3 bits put 8 codes
into 3 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from .errors import KernelError, ShortBuffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTHS: Final = (1, 2, 3, 4, 8)


def packed_bytes(count: int, width: int) -> int:
    """Bytes of `count` codes; the last byte is filled up with zeros.

    Raises:
        KernelError: No such width.
    """
    if width not in WIDTHS:
        raise KernelError(f"codes of {width} bits (want one of {WIDTHS})")
    return -(-count * width // 8)


def pack_codes(codes: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Pack the last axis.

    Args:
        codes: `(..., count)`, each below `2 ** width`.
        width: Bits of a code.

    Returns:
        `(..., packed_bytes(count, width))`.

    Raises:
        KernelError: No such width, or a code does not fit it.
    """
    size = packed_bytes(codes.shape[-1], width)
    if width < 8 and codes.size and int(codes.max()) >> width:
        raise KernelError(f"code {int(codes.max())} does not fit {width} bits")
    bits = np.unpackbits(codes[..., None], axis=-1, count=width, bitorder="little")
    stream = bits.reshape(*codes.shape[:-1], -1)
    return np.packbits(stream, axis=-1, bitorder="little").reshape(*codes.shape[:-1], size)


def unpack_codes(packed: NDArray[np.uint8], width: int, count: int) -> NDArray[np.uint8]:
    """The first `count` codes of the last axis.

    Args:
        packed: `(..., bytes)`.
        width: Bits of a code.
        count: Number of codes wanted.

    Raises:
        KernelError: No such width.
        ShortBuffer: There are fewer codes.
    """
    size = packed_bytes(count, width)
    if packed.shape[-1] < size:
        raise ShortBuffer(f"packed codes hold {packed.shape[-1]} bytes, {size} are needed")
    stream = np.unpackbits(packed, axis=-1, count=count * width, bitorder="little")
    codes = stream.reshape(*packed.shape[:-1], count, width)
    return np.packbits(codes, axis=-1, bitorder="little").reshape(*packed.shape[:-1], count)

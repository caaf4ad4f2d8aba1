"""Arrays of mlx to be filled in place.

mlx fills what it makes, and copies what it is given: either way memory is gone through twice, and one thread
is the first to touch it, which costs most. Only what it loads it leaves alone until the file's reader has
written there. So for large arrays it is given a file that has a header and whose reader writes nothing.

It waits for each array of such a file, though, which takes longer than writing zeros into a small one. Those
are zeros, written by mlx's own thread while the server is asked.
"""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Sequence

import mlx.core as mx

_NAMES = {mx.float32: "F32", mx.float16: "F16", mx.uint16: "U16", mx.uint32: "U32"}
_LENGTH = struct.Struct("<Q")

WORTH_BYTES = 1 << 20
"""Bytes of an array below which it is written sooner than its part of a file is asked for."""

Blank = tuple[tuple[int, ...], mx.Dtype]
"""Shape and type of an array: float32, float16, uint16 or uint32."""


def blanks(wanted: Sequence[Blank]) -> tuple[list[mx.array], bool]:
    """Arrays with memory of their own, and whether they are zeros.

    Elements of others have to be written before they mean anything. Zeros may still be on their way: whoever
    looks at an array waits for them.
    """
    if sum(math.prod(shape) * dtype.size for shape, dtype in wanted) >= WORTH_BYTES * len(wanted) > 0:
        found = mx.load(_Unwritten(wanted), format="safetensors", stream=mx.cpu)
        arrays = [found[str(index)] for index in range(len(wanted))]
        mx.eval(arrays)
        return arrays, False
    arrays = [mx.zeros(shape, dtype, stream=mx.cpu) for shape, dtype in wanted]
    mx.async_eval(arrays)
    return arrays, True


class _Unwritten(io.RawIOBase):
    """A safetensors file; reading beyond its header leaves the destination as it is."""

    def __init__(self, wanted: Sequence[Blank]) -> None:
        entries, end = {}, 0
        for index, (shape, dtype) in enumerate(wanted):
            start, end = end, end + math.prod(shape) * dtype.size
            entries[str(index)] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": (start, end)}
        described = json.dumps(entries).encode()
        self._header = _LENGTH.pack(len(described)) + described
        self._length = len(self._header) + end
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, destination: memoryview) -> int:  # type: ignore[override]
        header = self._header[self._position : self._position + len(destination)]
        destination[: len(header)] = header
        self._position += len(destination)
        return len(destination)

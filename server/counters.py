"""Numbers of all workers, in an unnamed file that they share.

Each worker has a slot of two halves, and writes its numbers into one after the other, each with a sequence
number and a checksum: a reader takes the newest half that is whole, so that a worker killed while it writes
loses that write and no more. A worker started in the place of a dead one goes on from what its slot says.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Mapping

import msgpack
import xxhash

HALF_BYTES = 256 << 10
_HEAD = struct.Struct("<QIQ")
"""Sequence number, length and xxh3-64 of what follows."""

Numbers = Mapping[str, int]


class Counters:
    """The shared file.

    Args:
        handle: Of the file; closed with `close`.
        workers: How many slots there are. One more holds what the receipt stood at when it was reset.
    """

    def __init__(self, handle: int, workers: int) -> None:
        self._handle = handle
        self.workers = workers

    @classmethod
    def create(cls, workers: int) -> Counters:
        """Make the file, its space taken. Raises `OSError`."""
        with tempfile.TemporaryFile() as file:
            file.write(bytes((workers + 1) * 2 * HALF_BYTES))
            file.flush()
            return cls(os.dup(file.fileno()), workers)

    @property
    def handle(self) -> int:
        """To be inherited by a worker."""
        return self._handle

    def read(self, slot: int) -> Numbers:
        """What a slot holds; nothing if it was never written."""
        found = self._newest(slot)
        return found[1] if found is not None else {}

    def write(self, slot: int, numbers: Numbers) -> None:
        """Replace what a slot holds."""
        newest = self._newest(slot)
        sequence = 1 if newest is None else newest[0] + 1
        body = msgpack.packb(dict(numbers))
        if _HEAD.size + len(body) > HALF_BYTES:
            raise ValueError(f"{len(body)} bytes of counters, at most {HALF_BYTES - _HEAD.size}")
        os.pwrite(
            self._handle, _HEAD.pack(sequence, len(body), _seal(sequence, body)) + body, _at(slot, sequence)
        )

    def close(self) -> None:
        """Let the file go."""
        os.close(self._handle)

    def _newest(self, slot: int) -> tuple[int, Numbers] | None:
        halves = [self._half(slot, which) for which in (0, 1)]
        return max((half for half in halves if half is not None), key=lambda half: half[0], default=None)

    def _half(self, slot: int, which: int) -> tuple[int, Numbers] | None:
        at = _at(slot, which)
        sequence, length, seal = _HEAD.unpack(os.pread(self._handle, _HEAD.size, at))
        body = os.pread(self._handle, length, at + _HEAD.size) if length < HALF_BYTES else b""
        if not sequence or len(body) != length or _seal(sequence, body) != seal:
            return None
        return sequence, msgpack.unpackb(body)


def _seal(sequence: int, body: bytes) -> int:
    return xxhash.xxh3_64_intdigest(body, seed=sequence)


def _at(slot: int, sequence: int) -> int:
    return (slot * 2 + sequence % 2) * HALF_BYTES

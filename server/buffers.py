"""Bounded, reused buffers for rows on their way through a kernel."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import deque
from pathlib import Path

from pionkv.storage import NoSpace
from pionkv.storage.files import FULL

CHUNK_BYTES = 1 << 20
"""Rows are packed and unpacked a chunk at a time; a row is at most 32 KiB, so a chunk holds whole rows."""

KEPT_CHUNKS = 16
KEPT_SPOOL_BYTES = 256 << 20


class ChunkPool:
    """Hands out `CHUNK_BYTES` buffers and keeps some that were given back, as their memory is warm.

    The memory is mapped outside the heap, in huge pages where the system has them.
    """

    def __init__(self, kept: int = KEPT_CHUNKS) -> None:
        self._free: deque[memoryview] = deque(maxlen=kept)

    def take(self) -> memoryview:
        """A writable buffer of `CHUNK_BYTES` bytes of unknown content."""
        return self._free.pop() if self._free else _map_chunk()

    def give(self, buffer: memoryview) -> None:
        """Give a buffer back. Nobody may still read or write it."""
        self._free.append(buffer)


def _map_chunk() -> memoryview:
    memory = mmap.mmap(-1, CHUNK_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


class SpoolPool:
    """Hands out buffers of any size that are maps of unnamed files: page cache, not memory of the process."""

    def __init__(self, directory: Path, kept_bytes: int = KEPT_SPOOL_BYTES) -> None:
        self._directory = directory
        self._left_to_keep = kept_bytes
        self._free: list[memoryview] = []

    def take(self, size: int) -> memoryview:
        """A writable buffer of at least `size` bytes of unknown content.

        Raises:
            NoSpace: The directory's file system takes no more.
            OSError: It refuses for another reason.
        """
        fitting = [spool for spool in self._free if spool.nbytes >= size]
        if fitting:
            spool = min(fitting, key=len)
            self._free.remove(spool)
            self._left_to_keep += spool.nbytes
            return spool
        with tempfile.TemporaryFile(dir=self._directory) as file:
            room = max(size, CHUNK_BYTES)
            try:
                file.truncate(room)
                if hasattr(os, "posix_fallocate"):
                    # A full disk is an error here; later, written through the map, it would end the process.
                    os.posix_fallocate(file.fileno(), 0, room)
            except OSError as error:
                if error.errno in FULL:
                    raise NoSpace("a buffer") from error
                raise
            return memoryview(mmap.mmap(file.fileno(), 0))

    def give(self, spool: memoryview) -> None:
        """Give a buffer back; it is kept warm if there is room."""
        if spool.nbytes <= self._left_to_keep:
            self._left_to_keep -= spool.nbytes
            self._free.append(spool)

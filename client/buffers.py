"""Memory for rows that a caller gets as arrays, used again once nothing refers to it.

The first touch of new memory takes about as long as receiving into memory that has been written to before:
the system finds pages for it and fills them with zeros. Memory that a caller is done with spares that.

Invariant: memory is handed out again only after the end of the object that is the base of its array, which
every view keeps alive, and which can make no further array.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

KEPT_BYTES = 256 << 20
"""Bytes that are kept for the next rows unless another number is said."""

WORTH_BYTES = 1 << 16
"""A shorter array comes from the heap, which has it at hand."""

Bytes = NDArray[np.uint8]

_all: weakref.WeakSet[Buffers] = weakref.WeakSet()


class Buffers:
    """Makes arrays whose memory comes back when they and all views of them are gone. Thread-safe.

    What came back is kept for the next array of about the same length. Above the limit the memory whose size
    has been of no use for longest goes to the system. Memory in use does not count: it is the caller's.

    Attributes:
        limit: Bytes that are kept at most; 0 keeps none. Another limit holds from the next `take` on.
        kept: Bytes that are kept now.
    """

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        """Begin with none.

        Args:
            limit: Bytes that are kept at most.

        Raises:
            ValueError: It is below 0.
        """
        if limit < 0:
            raise ValueError(f"{limit} bytes to be kept: at least 0")
        self.limit = limit
        self._start()
        _all.add(self)

    def take(self, length: int) -> Bytes:
        """An array ``(length,)`` of bytes, writable, whatever is in them; nobody else has its memory."""
        self._bound = self.limit
        size = _rounded(length)
        if length < WORTH_BYTES or size > self.limit:
            return np.empty(length, np.uint8)
        memory = self._found(size)
        return _Lent(self, np.empty(size, np.uint8) if memory is None else memory).array(length)

    def release(self) -> None:
        """Give all that is kept to the system, and what comes back until the next `take`."""
        self._bound = 0
        self._settle()

    def give_back(self, memory: Bytes) -> None:
        """Take memory that nothing else refers to."""
        self._back.append(memory)
        self._settle()

    def _start(self) -> None:
        self.kept = 0
        self._bound = self.limit
        self._back: deque[Bytes] = deque()
        """What came back and has not been looked at."""
        self._memory: dict[int, list[Bytes]] = {}
        """What is kept, by its size; the size that was of use last is the last one."""
        self._lock = threading.Lock()
        """Nobody waits for it: memory comes back whenever garbage is collected, also to who has it."""

    def _found(self, size: int) -> Bytes | None:
        """Memory of that size that was kept."""
        self._settle()
        if not self._lock.acquire(blocking=False):
            return None
        try:
            same = self._memory.pop(size, [])
            found = same.pop() if same else None
            if same:
                self._memory[size] = same
            self._count()
        finally:
            self._lock.release()
        self._settle()
        return found

    def _settle(self) -> None:
        """Keep what came back, within the bound. Who has the lock does it for those who came meanwhile."""
        while (self._back or self.kept > self._bound) and self._lock.acquire(blocking=False):
            try:
                while self._back:
                    memory = self._back.popleft()
                    same = self._memory.pop(memory.nbytes, [])
                    same.append(memory)
                    self._memory[memory.nbytes] = same
                self._count()
                while self.kept > self._bound:
                    size, same = next(iter(self._memory.items()))
                    same.pop()
                    if not same:
                        del self._memory[size]
                    self._count()
            finally:
                self._lock.release()

    def _count(self) -> None:
        self.kept = sum([size * len(same) for size, same in self._memory.items()])


class _Lent:
    """Stands for memory as long as an array refers to it."""

    __slots__ = ("__array_interface__", "_buffers", "_memory")

    def __init__(self, buffers: Buffers, memory: Bytes) -> None:
        self._buffers = buffers
        self._memory = memory

    def array(self, length: int) -> Bytes:
        """The one array of its first bytes."""
        self.__array_interface__ = self._memory[:length].__array_interface__
        array = np.asarray(self)
        del self.__array_interface__
        return array

    def __del__(self) -> None:
        self._buffers.give_back(self._memory)


def _rounded(length: int) -> int:
    """Bytes of memory for so many: up to a quarter more, so that lengths that differ little share it."""
    step = 1 << max(length.bit_length() - 3, 0)
    return -(-length // step) * step


def _leave_to_parent() -> None:
    """In a forked child: what is kept would be copied when written to, and a thread may have had the lock."""
    for buffers in list(_all):
        buffers._start()


os.register_at_fork(after_in_child=_leave_to_parent)

"""Large files and maps are let go of in a thread: freeing a gigabyte takes tens of milliseconds."""

from __future__ import annotations

import contextlib
import os
import queue
import threading

LARGE_BYTES = 16 << 20
"""Smaller ones are freed at once, which takes less than a millisecond."""


class Reaper:
    """Frees what nobody uses any more, in a thread that starts when it is needed and ends with `close`."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[int | memoryview | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def unlink(self, path: str) -> None:
        """Remove a file, if it is there: its name at once, its blocks when the thread comes to it."""
        with contextlib.suppress(FileNotFoundError):
            holder = -1
            if os.stat(path).st_blocks * 512 >= LARGE_BYTES:
                # The blocks of a file that is open go when it is closed.
                with contextlib.suppress(OSError):
                    holder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.unlink(path)
            if holder >= 0:
                self._put(holder)

    def drop(self, view: memoryview) -> None:
        """Take over a reference to a map: it is unmapped unless someone has another."""
        if view.nbytes >= LARGE_BYTES:
            self._put(view)

    def close(self) -> None:
        """Wait until everything is freed."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _put(self, thing: int | memoryview) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pionkv-reaper", daemon=True)
            self._thread.start()
        self._queue.put(thing)

    def _run(self) -> None:
        while (thing := self._queue.get()) is not None:
            if isinstance(thing, int):
                os.close(thing)
            # A map goes with the last reference to it, which this may be.
            del thing

"""Room kept on the disk for removing: on a full disk LMDB, which copies what it changes, could do nothing.

The file `reserve` holds blocks and nothing else. A transaction that lowers the bytes accounted, and finds
the disk full, gives them up and is run again; the next tick that finds room takes them back.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FILE = "reserve"
BYTES = 4 << 20


class Reserve:
    """The reserve of a data directory, shared by its processes.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self) -> None:
        """Take the room if it is there and nobody has; does nothing otherwise."""
        if self._path.exists():
            return
        with contextlib.suppress(OSError):
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                _allocate(handle)
            except OSError:
                self.give_up()
            finally:
                os.close(handle)

    def give_up(self) -> bool:
        """Let the room be used; whether there was any."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


def _allocate(handle: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, BYTES)
    else:
        os.pwrite(handle, bytes(BYTES), 0)

"""The data directory: opened by several processes at once, swept of what the dead left behind.

    lock               held shared by every process that has the directory open, alone by one alone
    opening            held by the process that is opening or closing it
    running            names the boot under which it is open; see recovery.py
    checkpoint         what a machine crash falls back to; see checkpoint.py
    reserve            room for removing on a full disk; see reserve.py
    writers/<8 hex>    held exclusively by the process that makes pages under this writer number
    pages/<16 hex>     page files; the upper half of the number is the writer's
    catalog/           the LMDB environment

A page file that the catalog does not name belongs to a write under way if its writer lives, and to nobody if
not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import DirectoryError


class Directory:
    """One process' hold on a data directory.

    Raises:
        DirectoryError: It cannot be made, read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pages = path / "pages"
        self.catalog = path / "catalog"
        self._writers = path / "writers"
        self._writer_fd = -1
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.pages, self.catalog, self._writers):
                folder.mkdir(mode=0o700, exist_ok=True)
            self._lock_fd = _open_lock(path / "lock")
            self._opening_fd = _open_lock(path / "opening")
        except OSError as error:
            raise DirectoryError(str(path), error.strerror or str(error)) from error

    @contextlib.contextmanager
    def opening(self) -> Iterator[bool]:
        """Open or close with no other process doing so; yields whether this one is alone with the directory.

        The process holds the directory afterwards, until `close`.
        """
        fcntl.flock(self._opening_fd, fcntl.LOCK_EX)
        try:
            yield self._try_alone()
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_SH)
            fcntl.flock(self._opening_fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def closing(self) -> Iterator[bool]:
        """The same at the end: yields whether this process was the last, and lets the directory go."""
        fcntl.flock(self._opening_fd, fcntl.LOCK_EX)
        try:
            yield self._try_alone()
        finally:
            self.close()

    def _try_alone(self) -> bool:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def become_writer(self, number: int) -> None:
        """Hold the lock of a writer number, so that others can tell that its pages are in hand."""
        path = self._writers / f"{number:08x}"
        try:
            self._writer_fd = _open_lock(path)
        except OSError as error:
            raise DirectoryError(str(self.path), error.strerror or str(error)) from error
        fcntl.flock(self._writer_fd, fcntl.LOCK_EX)

    def sweep(self, is_named: Callable[[int], bool]) -> int:
        """Remove page files that no record names and no living writer made; how many."""
        dead = dead_writers(self._writers)
        removed = 0
        living: dict[int, bool] = {}
        for entry in os.scandir(self.pages):
            page = page_number(entry.name)
            if page is None:
                continue
            writer = page >> 32
            if writer not in living:
                living[writer] = writer not in dead and (self._writers / f"{writer:08x}").exists()
            if not living[writer] and not is_named(page):
                os.unlink(entry.path)
                removed += 1
        for writer in dead:
            (self._writers / f"{writer:08x}").unlink(missing_ok=True)
        return removed

    def close(self) -> None:
        """Let the directory go."""
        for fd in (self._writer_fd, self._lock_fd, self._opening_fd):
            if fd >= 0:
                os.close(fd)
        self._writer_fd = self._lock_fd = self._opening_fd = -1


def dead_writers(writers: Path) -> set[int]:
    """Writers whose process is gone: the kernel dropped their lock."""
    dead: set[int] = set()
    for entry in os.scandir(writers):
        with contextlib.suppress(ValueError, FileNotFoundError):
            number = int(entry.name, 16)
            fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                dead.add(number)
            except BlockingIOError:
                pass
            finally:
                os.close(fd)
    return dead


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def page_number(name: str) -> int | None:
    """The number of a page file, from its name; None for the name of anything else."""
    try:
        return int(name, 16) if len(name) == 16 else None
    except ValueError:
        return None

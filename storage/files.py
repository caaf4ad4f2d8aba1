"""What the operating system is asked for: syncing, errors by kind, and which boot this is."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The file system takes no more bytes."""
NO_HANDLES = frozenset({errno.EMFILE, errno.ENFILE})
"""The process, or the system, may open no more files."""


_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of linux/falloc.h."""


def _system_fallocate() -> Callable[[int, int, int, int], int] | None:
    """fallocate(2); `os.posix_fallocate` will not do, which writes where a file system has no such thing."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    call = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return call


_fallocate = _system_fallocate()


def set_aside(fd: int, offset: int, length: int) -> None:
    """Have the file system take blocks for bytes that are to be written; it need not.

    A disk that is full is told of by the write.
    """
    if _fallocate is not None:
        _fallocate(fd, _KEEP_SIZE, offset, length)


def sync_file(fd: int) -> None:
    """Bring a file's bytes to the disk."""
    if sys.platform == "darwin":
        # fsync on macOS stops at the drive's cache.
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def sync_file_at(path: str) -> None:
    """Bring a file's bytes to the disk, if it is still there."""
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync_file(fd)
        finally:
            os.close(fd)


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file so that after a crash it is the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        sync_file(file.fileno())
    fresh.rename(path)
    sync_directory(path.parent)


def remove_durably(path: Path) -> None:
    """Remove a file, if it is there, so that it does not come back after a crash."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_directory(path.parent)


def boot_id() -> str:
    """Names this run of the machine: another one means that what was not synced may be lost."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()

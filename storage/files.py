"""What the operating system is asked for: syncing, errors by kind, and which boot this is."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The file system takes no more bytes."""
NO_HANDLES = frozenset({errno.EMFILE, errno.ENFILE})
"""The process, or the system, may open no more files."""


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

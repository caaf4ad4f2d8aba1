"""A copy of the whole store as of one moment, made while it is in use.

A copy is a data directory of its own. Its page files are hard links to those of the store: what a reader can
see of a page never changes, so they cost no time and no disk until the store lets go of them. The catalog is
copied while a pin keeps the pages of its state as they are; see checkpoint.py for why that is enough.

Pages may be freed between the pin and the links. Then the pin is renewed and what is missing linked, until
all of one state is there.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import threading
from pathlib import Path
from typing import Any

from .catalog import Catalog, Reader
from .errors import DirectoryError, NoSpace, SaveBusy, SaveExists
from .files import FULL, sync_directory, sync_file, sync_file_at
from .page import page_path

FOLDER = "saved"
"""Where copies are, below the data directory."""
CHUNK_BYTES = 8 << 20
_LOCK = ".lock"
_STAGING = ".making-"


class Save:
    """One copy being made: `link` and `renew` until all pages are there, then `copy`, then `close`.

    `link` and `copy` may run in any thread, one at a time; the rest belongs to the store's thread.

    Args:
        directory: The data directory.
        pages: Where page files are.
        catalog: The catalog.
        name: Path of the copy below `saved`.

    Raises:
        SaveBusy: Another copy is being made, by whichever process.
        SaveExists: There is something of this name.
        DirectoryError: The file system refuses.
    """

    def __init__(self, directory: Path, pages: Path, catalog: Catalog, name: str) -> None:
        self._folder = directory / FOLDER
        self._target = self._folder / name
        self._pages = pages
        self._catalog = catalog
        self._guard = threading.Lock()
        self._abandoned = False
        self._pin: Any = None
        self._metas = b""
        self._missing: int | None = None
        self._numbers: list[int] = []
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._begin(name)
        except OSError as error:
            raise DirectoryError(str(self._folder), error.strerror or str(error)) from error

    def _begin(self, name: str) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise SaveBusy from None
        try:
            for stale in self._folder.glob(f"{_STAGING}*"):
                shutil.rmtree(stale)
            if self._target.exists():
                raise SaveExists(name)
            self._staging = self._folder / f"{_STAGING}{secrets.token_hex(8)}"
            for path in (self._staging, self._staging / "pages", self._staging / "catalog"):
                path.mkdir(mode=0o700)
            self.renew()
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._abandoned

    def renew(self) -> None:
        """Take the state that is committed now."""
        if self._pin is not None:
            self._pin.abort()
        self._pin, self._metas = self._catalog.pin()
        keys = (key for key, _ in Reader(self._catalog, self._pin).scan("pages"))
        self._numbers = [int.from_bytes(key, "big") for key in keys]

    def link(self) -> bool:
        """Link the pages of the state; False when some have gone meanwhile: renew and link again.

        Raises:
            DirectoryError: The file system refuses, or the store was closed meanwhile.
        """
        for number in self._numbers:
            self._check()
            source, target = page_path(self._pages, number), page_path(self._staging / "pages", number)
            if os.path.exists(target):
                continue
            try:
                os.link(source, target)
            except FileNotFoundError:
                if number == self._missing:
                    continue  # It is named still: the store itself has lost it.
                self._missing = number
                return False
            except OSError as error:
                raise DirectoryError(str(self._folder), error.strerror or str(error)) from error
        return True

    def copy(self) -> None:
        """Copy the catalog, bring everything to the disk, and give the copy its name.

        Raises:
            NoSpace: The file system is full.
            DirectoryError: It refuses, or the store was closed meanwhile.
        """
        self._check()
        try:
            self._copy_catalog()
            for entry in os.scandir(self._staging / "pages"):
                sync_file_at(entry.path)
            for folder in ("pages", "catalog", "."):
                sync_directory(self._staging / folder)
            self._target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._guard:
                self._check()
                self._staging.rename(self._target)
            sync_directory(self._target.parent)
        except OSError as error:
            if error.errno in FULL:
                raise NoSpace("the copy") from error
            raise DirectoryError(str(self._target), error.strerror or str(error)) from error

    def close(self) -> None:
        """Let go of everything; a copy that is not complete leaves nothing."""
        with self._guard:
            if self._abandoned:
                return
            self._abandoned = True
        self._pin.abort()
        shutil.rmtree(self._staging, ignore_errors=True)
        os.close(self._lock)

    def _copy_catalog(self) -> None:
        path = self._staging / "catalog" / "data.mdb"
        with (
            self._catalog.data_path.open("rb", buffering=0) as source,
            open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as target,
        ):
            while chunk := source.read(CHUNK_BYTES):
                self._check()
                target.write(chunk)
            target.seek(0)
            target.write(self._metas)
            target.flush()
            sync_file(target.fileno())

    def _check(self) -> None:
        if self._abandoned:
            raise DirectoryError(str(self._target), "the store was closed meanwhile")

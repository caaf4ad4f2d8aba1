"""Opening and closing a data directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import lmdb

from .catalog import Catalog, is_full
from .checkpoint import Checkpointer
from .digest import pieces_of
from .directory import Directory
from .engine import READS_KEPT, Asked, AskedWhere, Engine
from .errors import DirectoryError, NoSpace, OtherVersion, StorageError
from .files import FULL
from .known import Known
from .maps import PageMaps
from .open_pages import OpenPages
from .options import Durability, StoreOptions
from .places import Located
from .read import Rows
from .reaper import Reaper
from .recovery import join, mark_closed, recover, settle
from .reserve import FILE as RESERVE
from .reserve import Reserve
from .spares import Freed


def open_engine(path: Path, options: StoreOptions, clock: Callable[[], float], boot: str) -> Engine:
    """Hold the directory, recover it if nobody else has it open, and put the parts of a store together.

    On a full disk the reserve is used up for that: what is stored can then be read, and removed.

    Raises:
        DirectoryError: The directory cannot be used.
        NoSpace: The file system takes no more; what is stored stays as it is.
    """
    try:
        return _open_engine(path, options, clock, boot)
    except (DirectoryError, NoSpace) as error:
        if not _is_full(error):
            raise
        if Reserve(path / RESERVE).give_up():
            return _open_engine(path, options, clock, boot)
        raise NoSpace(f"opening the data directory {path}") from error


def _is_full(error: BaseException | None) -> bool:
    """Whether an error comes from a full file system."""
    while error is not None:
        if isinstance(error, NoSpace) or (isinstance(error, OSError) and error.errno in FULL):
            return True
        if isinstance(error, lmdb.Error) and is_full(error):
            return True
        error = error.__cause__
    return False


def _open_engine(path: Path, options: StoreOptions, clock: Callable[[], float], boot: str) -> Engine:
    directory = Directory(path)
    try:
        with directory.opening() as alone:
            if not alone:
                join(directory, options.durability)
            rolled_back = alone and recover(directory, options.durability, boot)
            return _assemble(directory, options, clock, alone, rolled_back)
    except BaseException as error:
        directory.close()
        if isinstance(error, OtherVersion):
            raise DirectoryError(str(path), str(error)) from error
        if isinstance(error, OSError):
            raise DirectoryError(str(path), error.strerror or str(error)) from error
        raise


def close_engine(engine: Engine) -> None:
    """Sync, let everything go, and if this was the last process, note that nothing is left to recover."""
    # Who has its turn at checkpoints must not wait for a process that waits for its own.
    with contextlib.suppress(StorageError):
        engine.checkpoints.settle()
    with engine.directory.closing() as last:
        engine.pages.close()
        engine.maps.close()
        engine.reaper.close()
        try:
            engine.checkpoints.run()
        finally:
            engine.checkpoints.close()
            engine.catalog.close()
        if last:
            mark_closed(engine.directory)


def _assemble(
    directory: Directory, options: StoreOptions, clock: Callable[[], float], alone: bool, rolled_back: bool
) -> Engine:
    def release(freed: list[Freed], reuse: bool) -> None:
        for page in freed:
            maps.drop(page.number)
            pages.release(page, reuse=reuse)

    reaper = Reaper()
    synced = options.durability is Durability.ALWAYS
    catalog = Catalog(
        directory.catalog, options.catalog_map_bytes, synced=synced, release=release, worker=options.worker
    )
    checkpoints = Checkpointer(directory.path, directory.pages, catalog)
    try:
        if options.durability is Durability.EVERYSEC:
            # What a crash falls back to until the first checkpoint of this process must not be written over.
            (checkpoints.take_over if alone else checkpoints.pin)()
        number = catalog.write(lambda writer: writer.new_writer())
        directory.become_writer(number)
        with catalog.snapshot() as reader:
            directory.sweep(reader.names_page)
        pages = OpenPages(directory.pages, number, options.max_open_pages, reaper.unlink)
        reads: Known[Asked, tuple[Rows | None, bytes]] = Known(READS_KEPT)
        places: Known[AskedWhere, Located] = Known(READS_KEPT)
        maps = PageMaps(
            directory.pages, options.max_maps, pieces_of(catalog), reaper, (reads.forget, places.forget)
        )
        if rolled_back:
            catalog.write(lambda writer: settle(writer, directory.pages))
        if options.durability is Durability.EVERYSEC:
            checkpoints.run()
        catalog.check_readers()
        catalog.reserve.take()
    except BaseException:
        checkpoints.close()
        catalog.close()
        raise
    return Engine(
        directory, options, clock, catalog, pages, maps, checkpoints, reaper, places=places, reads=reads
    )

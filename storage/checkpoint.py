"""Checkpoints: what a machine crash falls back to when commits are not synced one by one.

LMDB without sync survives a killed process, but after a machine crash its file may hold any mixture of old
and new pages. Two facts make every state that was synced recoverable:

- LMDB never reuses a page that an open reader may see. So while a reader (the pin) stays at transaction S,
  every page of S stays as it was, whatever is written later.
- Which pages make up S is said by LMDB's two meta pages alone. So a synced copy of them, put back, brings S
  back.

A checkpoint pins S, syncs the page files that S may name, syncs the catalog, and writes the meta pages into
the file `checkpoint`, where those of the one before stay until they are on the disk; then the pin before it
is let go. Processes take turns; any of them syncs for all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import xxhash

from .catalog import CHECKPOINT_BEGUN, Catalog, Reader, Writer
from .errors import DirectoryError, NoSpace
from .files import FULL, sync_directory, sync_file, sync_file_at, write_durably
from .page import BLOCK, page_path

FILE = "checkpoint"
_LOCK = "checkpoint.lock"
_MAGIC = b"PIONCKP2"
_NUMBER = _SEAL = struct.Struct("<Q")
_STATUS = struct.Struct("<QQ")
_STATUS_KEY = b"checkpoint"
PINNING = b"\xff" * 8
"""In the place of a transaction while it is not known yet: later than all."""


@dataclass
class _Round:
    """A checkpoint being made.

    Attributes:
        begun: The transaction that noted its beginning.
        pin: The read transaction that holds it.
        number: The transaction that is pinned.
        noted: The transaction that noted which.
        metas: The meta pages as they were then.
        marks: The pages that may not be on the disk yet.
    """

    begun: bytes
    pin: Any
    number: int
    noted: int
    metas: bytes
    marks: dict[bytes, bytes]


class Checkpointer:
    """Makes the checkpoints of one process. Belongs to the store's thread.

    Args:
        directory: The data directory.
        pages: Where page files are.
        catalog: The catalog.
    """

    def __init__(self, directory: Path, pages: Path, catalog: Catalog) -> None:
        self._file = directory / FILE
        self._pages = pages
        self._catalog = catalog
        self._lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pin: Any = None
        self._fresh: Any = None
        """What is to be the pin once a checkpoint has it."""
        self._pinned = 0
        self._round: _Round | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._made = False
        """Whether this process has made one."""

    def pin(self) -> None:
        """Hold on to what is committed now, as the checkpoint on the disk may name it."""
        self._pin, _ = self._catalog.pin()
        self._pinned = int(self._pin.id())

    def take_over(self) -> None:
        """Make a checkpoint of what others left, before anything is changed; nobody else has the store open.

        The pin of a process that was killed may be gone with it: the first commit could write over what its
        last checkpoint names.

        Raises:
            NoSpace, DirectoryError: As `steps`.
        """
        pin, metas = self._catalog.pin()
        marks = dict(Reader(self._catalog, pin).scan("unsynced"))
        self._pin, self._pinned = pin, int(pin.id())
        try:
            self._write(_Round(b"", pin, self._pinned, 0, metas, marks))
        except OSError as error:
            self._raise(error)

    def tick(self) -> None:
        """Begin a checkpoint when something changed, or end one whose bytes are on the disk; never blocks."""
        if self._thread is not None:
            if not self._thread.is_alive():
                self._end_thread()
            return
        self._renew_overtaken_pin()
        if self._is_due() and self._try_begin(fcntl.LOCK_EX | fcntl.LOCK_NB):
            self._start_thread()

    def settle(self) -> None:
        """End the checkpoint that is being made, if one is, and with it the turn of this process."""
        if self._thread is not None:
            self._thread.join()
            self._end_thread()

    def run(self) -> None:
        """Make a checkpoint of everything committed before the call, and wait for it."""
        self.settle()
        if self._is_due() and self._try_begin(fcntl.LOCK_EX):
            try:
                self._flush()
            except BaseException as error:
                self._abandon()
                self._raise(error)
            self._finish()

    def steps(self) -> Iterator[Callable[[], None]]:
        """What `run` does, without blocking: each call that this yields may, and belongs in another thread.

        Raises:
            NoSpace: The file system takes no more.
            DirectoryError: It refuses.
        """
        wanted = self._committed()
        while not self._holds(wanted):
            if self._thread is None and not self._try_begin(fcntl.LOCK_EX | fcntl.LOCK_NB):
                yield self._await_turn
                continue
            if self._thread is None:
                self._start_thread()
            thread = self._thread
            assert thread is not None
            yield thread.join
            if self._thread is thread:
                self._end_thread()

    def close(self) -> None:
        """Let the pin go; the last checkpoint then holds only until the next write."""
        self.settle()
        self.unpin()
        os.close(self._lock)

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._flush_in_thread, name="pionkv-sync")
        self._thread.start()

    def _await_turn(self) -> None:
        """Until no other process makes a checkpoint; any thread."""
        with (self._file.parent / _LOCK).open("rb") as turn:
            fcntl.flock(turn, fcntl.LOCK_SH)

    def _committed(self) -> int:
        """The last transaction."""
        with self._catalog.snapshot() as reader:
            return int(reader.txn.id())

    def _holds(self, transaction: int) -> bool:
        """Whether a checkpoint has everything up to this transaction."""
        with self._catalog.snapshot() as reader:
            number, noted = _status(reader)
        return number >= transaction or noted == transaction

    def _is_due(self) -> bool:
        with self._catalog.snapshot() as reader:
            return int(reader.txn.id()) != _status(reader)[1]

    def _try_begin(self, lock: int) -> bool:
        try:
            fcntl.flock(self._lock, lock)
        except BlockingIOError:
            return False
        try:
            # Others may commit between the note and the pin, so what they commit counts as pinned until it
            # is known what was.
            begun = self._catalog.write(_note_pinning, counts=False)
            pin, metas = self._catalog.pin()
            number = int(pin.id())
            noted = self._note_pinned(pin, number)
        except BaseException:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            raise
        marks = dict(Reader(self._catalog, pin).scan("unsynced"))
        self._round = _Round(begun, pin, number, noted, metas, marks)
        return True

    def _note_pinned(self, pin: Any, number: int) -> int:
        def note(writer: Writer) -> int:
            writer.put("meta", CHECKPOINT_BEGUN, _key(number))
            return int(writer.txn.id())

        try:
            return self._catalog.write(note, counts=False)
        except BaseException:
            pin.abort()
            raise

    def _flush(self) -> None:
        """Bring the pinned state to the disk: page files first, then the catalog, then what names it."""
        assert self._round is not None
        self._write(self._round)

    def _write(self, found: _Round) -> None:
        for key in found.marks:
            sync_file_at(page_path(self._pages, int.from_bytes(key, "big")))
        if found.marks:
            sync_directory(self._pages)
        self._catalog.sync()
        body = _MAGIC + _NUMBER.pack(found.number) + found.metas
        slot = _aligned(body + _SEAL.pack(xxhash.xxh3_64_intdigest(body)))
        if self._made:
            _replace_older(self._file, slot)
        else:
            # What an earlier life of the directory has left is not to be taken for a later state.
            write_durably(self._file, slot + bytes(len(slot)))
            self._made = True

    def _flush_in_thread(self) -> None:
        try:
            self._flush()
        except BaseException as error:
            self._failure = error

    def _end_thread(self) -> None:
        self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            self._abandon()
            self._raise(failure)
        self._finish()

    def _finish(self) -> None:
        """The checkpoint stands: move the pin, and forget the marks made before it began.

        A mark made since may stand for writes that came after the sync of its page: it stays for the next
        time.
        """
        found = self._round
        assert found is not None
        self.unpin()
        self._pin, self._pinned, self._round = found.pin, found.number, None

        def forget(writer: Writer) -> None:
            for key, mark in found.marks.items():
                if mark < found.begun and writer.get("unsynced", key) == mark:
                    writer.delete("unsynced", key)
            number = int(writer.txn.id())
            alone = found.noted == found.number + 1 and number == found.noted + 1
            writer.put("meta", _STATUS_KEY, _STATUS.pack(found.number, number if alone else 0))

        try:
            self._catalog.write(forget, counts=False)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        # Pins of processes that died hold pages for nothing, now that ours is there.
        self._catalog.check_readers()

    def _raise(self, error: BaseException) -> NoReturn:
        if isinstance(error, OSError):
            if error.errno in FULL:
                raise NoSpace("a checkpoint") from error
            raise DirectoryError(str(self._file.parent), error.strerror or str(error)) from error
        raise error

    def _abandon(self) -> None:
        if self._round is not None:
            self._round.pin.abort()
            self._round = None
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _renew_overtaken_pin(self) -> None:
        """Another process has made a later checkpoint: hold that as well, since that process may be killed.

        A pin of what was committed before a checkpoint holds what that names, too. So a fresh one is taken,
        and the one before goes as soon as a checkpoint has what the fresh one has.
        """
        if self._pin is None:
            return
        with self._catalog.snapshot() as reader:
            last = _status(reader)[0]
        if last <= self._pinned:
            return
        if self._fresh is None:
            self._fresh = self._catalog.hold()
        elif last >= int(self._fresh.id()):
            self._pin.abort()
            self._pin, self._pinned, self._fresh = self._fresh, int(self._fresh.id()), None

    def unpin(self) -> None:
        """Let the pin go; the last checkpoint then holds only until the next write."""
        for pin in (self._pin, self._fresh):
            if pin is not None:
                pin.abort()
        self._pin = self._fresh = None


def _aligned(slot: bytes) -> bytes:
    """Fill up to whole blocks: a slot is written without touching the other."""
    return slot.ljust(-(-len(slot) // BLOCK) * BLOCK, b"\0")


def _replace_older(path: Path, slot: bytes) -> None:
    """Write a checkpoint beside the one in the file, and once it is on the disk take that one away.

    What that one names may be written over from then on: it must not be what is left if this one is damaged.
    """
    with path.open("r+b", buffering=0) as file:
        first, second = (_number(body) for body in _slots(file.read()))
        fresh, old = (0, len(slot)) if first < second else (len(slot), 0)
        os.pwrite(file.fileno(), slot, fresh)
        sync_file(file.fileno())
        os.pwrite(file.fileno(), bytes(len(_MAGIC)), old)


def _slots(raw: bytes) -> tuple[bytes | None, bytes | None]:
    """The two checkpoints of a file; None for one that is not whole."""
    half = len(raw) // 2
    return _body(raw[:half]), _body(raw[half:])


def _body(slot: bytes) -> bytes | None:
    size = len(slot) // BLOCK * BLOCK - BLOCK
    end = len(_MAGIC) + _NUMBER.size + size
    body, seal = slot[:end], slot[end : end + _SEAL.size]
    whole = body[: len(_MAGIC)] == _MAGIC and seal == _SEAL.pack(xxhash.xxh3_64_intdigest(body))
    return body if whole else None


def _number(body: bytes | None) -> int:
    return -1 if body is None else int(_NUMBER.unpack_from(body, len(_MAGIC))[0])


def read_checkpoint(directory: Path) -> bytes | None:
    """The later checkpoint in the file; None when there is none, or none that is whole."""
    try:
        raw = (directory / FILE).read_bytes()
    except FileNotFoundError:
        return None
    return max(_slots(raw), key=_number)


def roll_back(directory: Path, data: Path) -> bool:
    """Put the catalog back to the last checkpoint; False when there is none that can be read.

    Args:
        directory: The data directory.
        data: LMDB's file.
    """
    body = read_checkpoint(directory)
    if body is None:
        return False
    with contextlib.ExitStack() as stack:
        fd = os.open(data, os.O_WRONLY | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        os.pwrite(fd, body[len(_MAGIC) + _NUMBER.size :], 0)
        sync_file(fd)
    return True


def _note_pinning(writer: Writer) -> bytes:
    """From here on a commit marks its pages anew, and no page is let go of as if no checkpoint named it."""
    writer.put("meta", CHECKPOINT_BEGUN, PINNING)
    return _key(writer.txn.id())


def _key(transaction: int) -> bytes:
    return int(transaction).to_bytes(8, "big")


def last_checkpoint(reader: Reader) -> int:
    """The transaction that a machine crash would fall back to now; 0 when there is none."""
    return _status(reader)[0]


def _status(reader: Reader) -> tuple[int, int]:
    """The transaction of the last checkpoint, and the one that noted it, if none came in between."""
    raw = reader.get("meta", _STATUS_KEY)
    return (0, 0) if raw is None else _STATUS.unpack(raw)

"""The map lane: a server on this machine says where rows lie in its files, and they are taken from there.

Nothing that a server says here is trusted to be about the same files: a path may mean another file in a
container, or on the other end of a tunnel. A file counts when device, inode, time of change and page number
are those that were told. Rows that were told do not change, so nothing has to be asked afterwards.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from pionkv.kernels.formats import LayerSpec, format_by_tag

from .errors import BadReply, NotStored, StoreError

_MAGIC = b"PIONPAGE"
_VERSION = 1
_SIDE, _RUN = struct.Struct("<HBBIIII"), struct.Struct("<IIQ")
_HEADER = struct.Struct("<8sIIQ")

Run = tuple[int, int, memoryview]
"""Rows: the first of them, one past the last, their bytes."""


class Target(Protocol):
    """Where rows of one layer and side go."""

    def fill(self, start: int, end: int, rows: memoryview) -> None:
        """Take rows `start` to `end - 1` from where they lie. Other targets may be filled meanwhile."""


Part = tuple[Target, Sequence[Run]]

MOST_THREADS = 4
"""Threads that take rows at a time: no more of them are needed to use up the memory's speed."""
BYTES_A_THREAD = 8 << 20
"""A thread that moves fewer bytes does not pay."""


class NotMapped(StoreError):
    """A file cannot be used from here; the text says why. The rows have to come over the connection."""


@dataclass(frozen=True, slots=True)
class File:
    """A page file as the server sees it.

    Attributes:
        path: Where it is.
        identity: Device, inode, and time of the last change in ns.
    """

    path: bytes
    identity: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Side:
    """The rows of one layer and side.

    Attributes:
        layer: The layer.
        side: 0 for K, 1 for V.
        spec: Format and dim.
        places: Runs of rows in order: file, offset, rows.
    """

    layer: int
    side: int
    spec: LayerSpec
    places: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class RowMap:
    """What `KV.PREFIX.MAP` or `V.MAP` answers.

    Attributes:
        generation: The generation of the prefix, or of the session.
        rows: Rows of each layer and side.
        files: The files that hold them.
        sides: k0 v0 k1 v1 and so on; of a session its layers.
    """

    generation: int
    rows: int
    files: tuple[File, ...]
    sides: tuple[Side, ...]

    @classmethod
    def parse(cls, reply: object) -> RowMap | None:
        """Read the reply; None when nothing is stored.

        Raises:
            BadReply: It is no such reply.
        """
        if reply is None:
            return None
        try:
            generation, rows, files, sides = _four(reply)
            return cls(
                int(generation),
                int(rows),
                tuple(File(bytes(path), (int(a), int(b), int(c))) for path, a, b, c in files),
                tuple(_sides(memoryview(sides))),
            )
        except (TypeError, ValueError, LookupError, struct.error) as error:
            raise BadReply("a map of rows is something else") from error


def _four(reply: object) -> list[Any]:
    if not isinstance(reply, list) or len(reply) != 4:
        raise ValueError(reply)
    return reply


def _sides(told: memoryview) -> Iterator[Side]:
    position = 0
    while position < len(told):
        layer, side, tag, dim, rope, head, count = _SIDE.unpack_from(told, position)
        position += _SIDE.size
        runs = (_RUN.unpack_from(told, position + number * _RUN.size) for number in range(count))
        places = tuple((file, offset, rows) for file, rows, offset in runs)
        position += count * _RUN.size
        yield Side(layer, side, _spec(tag, dim, rope, head), places)


@lru_cache(maxsize=64)
def _spec(tag: int, dim: int, rope: int, head: int) -> LayerSpec:
    return LayerSpec(format_by_tag(tag).name, dim, rope, head)


def fill_prefix(found: RowMap, specs: Sequence[LayerSpec], targets: Sequence[Target], tokens: int) -> None:
    """Take the first rows of every layer and side of a prefix out of the files.

    Args:
        found: Where they are.
        specs: What they must be: k0 v0 k1 v1 and so on.
        targets: Where they go, in the same order.
        tokens: How many rows.

    Raises:
        NotStored: They are something else.
        NotMapped and BadReply: As `fill`.
    """
    _check(found, specs, tokens)
    fill(found, targets, 0, tokens)


def fill(found: RowMap, targets: Sequence[Target], first: int, end: int, *, divisible: bool = False) -> None:
    """Take rows `first` to `end - 1` of every layer and side out of the files.

    Args:
        found: Where they are; rows are counted from its first one.
        targets: Where they go, one for each layer and side.
        first: The first row.
        end: One past the last row.
        divisible: Whether one target may be filled by several threads, each with rows of its own.

    Raises:
        NotMapped: A file is not there, may not be read, or is another one than the server means.
        BadReply: The places make no sense.
    """
    if any(sum(count for _, _, count in side.places) != found.rows for side in found.sides):
        raise BadReply("a map of rows names others than it counts")
    with _Files(found.files) as files:
        parts = [
            (target, [files.part(*part) for part in _parts(side, side.spec.row_bytes, start, stop)])
            for side, target in zip(found.sides, targets, strict=True)
            for start, stop in _shares(first, end, side.spec.row_bytes if divisible else 0)
        ]
        _take_all(parts)


def _take_all(parts: Sequence[Part]) -> None:
    """Fill every target; several at a time where there are enough bytes."""
    nbytes = sum(rows.nbytes for _, runs in parts for _, _, rows in runs)
    threads = min(len(parts), MOST_THREADS, nbytes // BYTES_A_THREAD)
    if threads <= 1 or (threads := min(threads, os.cpu_count() or 1)) == 1:
        _take(parts)
        return
    ours, *others = (parts[number::threads] for number in range(threads))
    with ThreadPoolExecutor(MOST_THREADS, "pionkv rows") as pool:
        begun = [pool.submit(_take, share) for share in others]
        _take(ours)
        for each in begun:
            each.result()


def _take(parts: Sequence[Part]) -> None:
    for target, runs in parts:
        for start, end, rows in runs:
            target.fill(start, end, rows)


def _check(found: RowMap, specs: Sequence[LayerSpec], tokens: int) -> None:
    if found.rows < tokens:
        raise NotStored(f"only {found.rows} of {tokens} rows are stored")
    if tuple(side.spec for side in found.sides) != tuple(specs):
        raise NotStored("stored in other formats")
    if [(side.layer, side.side) for side in found.sides] != [divmod(i, 2) for i in range(len(specs))]:
        raise NotStored("stored with other layers")


def _shares(first: int, end: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs of rows that are enough for a thread each; of rows of 0 bytes all."""
    rows = max(BYTES_A_THREAD // row_bytes, 1) if row_bytes else end - first
    for start in range(first, end, rows):
        yield start, min(start + rows, end)


def _parts(side: Side, row_bytes: int, first: int, tokens: int) -> Iterator[tuple[int, int, int, int, int]]:
    """File, offset, length, first row and end of each run, within rows `first` to `tokens - 1`."""
    position = 0
    for number, offset, count in side.places:
        start, end = max(first, position), min(tokens, position + count)
        if start < end:
            yield number, offset + (start - position) * row_bytes, (end - start) * row_bytes, start, end
        position += count


class _Files:
    """Page files, each mapped when it is first needed and let go at the end."""

    def __init__(self, files: Sequence[File]) -> None:
        self._files = files
        self._maps: dict[int, mmap.mmap] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        # Views of them may still be referenced by a traceback; then they go with it.
        self._maps.clear()

    def part(self, number: int, offset: int, length: int, start: int, end: int) -> Run:
        """Rows `start` to `end - 1`: so many bytes of a file, from `offset` on."""
        if not 0 <= number < len(self._files):
            raise BadReply(f"file {number} of {len(self._files)}")
        found = self._maps.get(number)
        if found is None:
            found = self._maps[number] = _map(self._files[number])
        if not 0 <= offset <= offset + length <= len(found):
            raise BadReply(f"bytes {offset} to {offset + length} of a page of {len(found)}")
        return start, end, memoryview(found)[offset : offset + length]


def _map(file: File) -> mmap.mmap:
    try:
        with open(file.path, "rb", buffering=0) as handle:
            status = os.fstat(handle.fileno())
            if (status.st_dev, status.st_ino, status.st_mtime_ns) != file.identity:
                raise NotMapped(f"{os.fsdecode(file.path)} is another file here")
            found = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise NotMapped(str(error)) from error
    number = os.path.basename(file.path)
    if len(found) < _HEADER.size or not _is_page(found, number):
        raise NotMapped(f"{os.fsdecode(file.path)} is no page file that this client reads")
    return found


def _is_page(found: mmap.mmap, name: bytes) -> bool:
    magic, version, _, number = _HEADER.unpack_from(found)
    return magic == _MAGIC and version == _VERSION and b"%016x" % number == name

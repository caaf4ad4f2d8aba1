"""Rows as safetensors files, for clients of this machine: V.EXPORT.

A file holds tensors `k.0 v.0 k.1 v.1 ...`, F16, shape [1, heads, rows, head size]. Its name says by whom, for
what and from which generations of the sessions it was made, so that it is made once and never stale.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pionkv.kernels import Element, Heads
from pionkv.storage import Rows

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
KEPT = 64
"""Files kept at most; the one unused for longest goes first."""

HEADER_ALIGNMENT = 8


class ExportError(Exception):
    """The directory or the file cannot be written; the text says which."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is exported.

    Attributes:
        sids: K and V session.
        start: First row.
        end: One past the last row.
        layers: Layers 0 to layers - 1.
        heads: K/V heads.
        head_dim: Elements of one head.
    """

    sids: tuple[bytes, bytes]
    start: int
    end: int
    layers: int
    heads: int
    head_dim: int

    def digest(self) -> str:
        """16 hex digits that stand for the request."""
        return _digest(repr((self.sids, self.start, self.end, self.layers, self.heads, self.head_dim)))


class Exports:
    """The files of one process.

    Args:
        directory: Where they go; made when the first one is written. Files of earlier processes are removed.
        worker: Number of this worker.
    """

    def __init__(self, directory: Path, worker: int) -> None:
        self._directory = directory.absolute()
        self._worker = worker
        self._nonce = secrets.token_hex(8)
        self._made: OrderedDict[str, Path] = OrderedDict()
        for old in self._directory.glob(f"*w{worker}-*.safetensors"):
            old.unlink(missing_ok=True)

    def find(self, request: Request, generations: Sequence[int]) -> Path | None:
        """The file of a request, if it was made from these generations and is still there."""
        path = self._made.get(request.digest())
        if path is None or path != self._path(request, generations) or not path.exists():
            return None
        self._made.move_to_end(request.digest())
        return path

    def write(self, request: Request, generations: Sequence[int], rows: Sequence[Rows]) -> Path:
        """Write the file of a request; any thread.

        Args:
            request: What was asked.
            generations: Those of the two sessions when the rows were read.
            rows: k0 v0 k1 v1 ..., all of `request.end - request.start` rows.

        Raises:
            ExportError: The file system refuses.
        """
        path = self._path(request, generations)
        try:
            self._directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            self._directory.chmod(DIRECTORY_MODE)
        except OSError as error:
            raise ExportError(f"cannot create a file in {self._directory}") from error
        try:
            _write(path, request, rows)
        except OSError as error:
            raise ExportError(f"could not write the file in {self._directory}") from error
        return path

    def keep(self, request: Request, path: Path) -> None:
        """Remember a file that was written; older generations of the request go, and the least used."""
        older = self._made.pop(request.digest(), None)
        self._made[request.digest()] = path
        if older is not None and older != path:
            older.unlink(missing_ok=True)
        while len(self._made) > KEPT:
            self._made.popitem(last=False)[1].unlink(missing_ok=True)

    def close(self) -> None:
        """Remove every file."""
        for path in self._made.values():
            path.unlink(missing_ok=True)
        self._made.clear()

    def _path(self, request: Request, generations: Sequence[int]) -> Path:
        parts = (f"w{self._worker}", self._nonce, request.digest(), _digest(repr(tuple(generations))))
        return self._directory / f"{'-'.join(parts)}.safetensors"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(path: Path, request: Request, rows: Sequence[Rows]) -> None:
    count = request.end - request.start
    size = request.heads * count * request.head_dim * Element.F16.itemsize
    header = _header(request, count, size)
    partial = path.with_name(f".tmp-{path.name}")
    partial.unlink(missing_ok=True)
    file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        _reserve(file, len(header) + size * len(rows))
        os.pwrite(file, header, 0)
        with mmap.mmap(file, 0) as memory, memoryview(memory) as view:
            for index, layer in enumerate(rows):
                begin = len(header) + index * size
                with view[begin : begin + size] as tensor:
                    _fill(tensor, layer, request, count)
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)


def _reserve(file: int, size: int) -> None:
    """Take the space first: a full disk is then an error here, and not a signal in the middle of a store."""
    os.ftruncate(file, size)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)


def _fill(tensor: memoryview, rows: Rows, request: Request, count: int) -> None:
    """Rows `[token][head, element]` become `[head][token][element]`."""
    layout = Heads(request.heads, count * request.head_dim, request.head_dim)
    done = 0
    for run in rows.runs:
        begin = done * request.head_dim * Element.F16.itemsize
        with tensor[begin:] as target:
            run.unpack(Element.F16, target, layout)
        done += run.count


def _header(request: Request, count: int, size: int) -> bytes:
    shape = [1, request.heads, count, request.head_dim]
    names = [f"{side}.{layer}" for layer in range(request.layers) for side in "kv"]
    tensors = {
        name: {"dtype": "F16", "shape": shape, "data_offsets": [index * size, (index + 1) * size]}
        for index, name in enumerate(names)
    }
    text = json.dumps(tensors, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text

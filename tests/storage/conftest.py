"""A store under test: driven by bytes in, bytes out, with a clock that the test turns."""

from __future__ import annotations

import ast
import contextlib
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pionkv.kernels import LayerSpec
from pionkv.storage import Schema, Store, StoreOptions

DIM = 32
FP16 = LayerSpec("fp16", DIM)
ROW = FP16.row_bytes


@dataclass
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


class Driver:
    """A store and the few calls that every test makes."""

    def __init__(self, store: Store, path: Path, clock: Clock) -> None:
        self.store = store
        self.path = path
        self.clock = clock

    def put(self, sid: bytes, layer: int, start: int, data: bytes) -> int:
        row_bytes = self.store.session(sid).schema.row_bytes(layer)
        with self.store.begin_write(sid, layer, start, len(data) // row_bytes) as write:
            source = memoryview(data)
            while (segment := write.next_segment()) is not None:
                segment[:] = source[: len(segment)]
                source = source[len(segment) :]
            return write.commit()

    def get(self, sid: bytes, layer: int, start: int, end: int) -> bytes | None:
        rows = self.store.rows(sid, layer, start, end)
        return None if rows is None else b"".join(rows.parts)

    def whole(self, sid: bytes, layer: int) -> bytes | None:
        rows = self.store.session(sid).rows
        return self.get(sid, layer, 0, rows[layer]) if layer < len(rows) and rows[layer] else None

    def prefix(self, name: bytes, layers: int, rows: int, fill: int = 1) -> None:
        """A whole prefix of equal rows."""
        schema = Schema.uniform(FP16)
        self.store.register(name, schema, schema)
        for layer, side in itertools.product(range(layers), (b"_pk", b"_pv")):
            self.put(name + side, layer, 0, bytes([fill]) * (rows * ROW))

    @property
    def files(self) -> list[Path]:
        return sorted((self.path / "pages").iterdir())


OpenStore = Callable[..., Driver]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_store(tmp_path: Path, clock: Clock) -> Iterator[OpenStore]:
    """Opens the test's data directory, or another one in it; what is still open at the end is closed."""
    opened: list[Store] = []

    def open_it(options: StoreOptions | None = None, name: str = "data", boot: str | None = None) -> Driver:
        store = Store.open(tmp_path / name, options, clock=clock, boot=boot)
        opened.append(store)
        return Driver(store, tmp_path / name, clock)

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def driver(open_store: OpenStore) -> Driver:
    return open_store()


@pytest.fixture
def schema() -> Schema:
    return Schema.uniform(FP16)


class PeerError(Exception):
    """What a store in another process raised; the first argument is the name of its class."""


class Peer:
    """A store in another process: `call("name", …)` is a call there, see peer.py."""

    def __init__(self, path: Path, **options: object) -> None:
        script = Path(__file__).with_name("peer.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(path), repr(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer()

    def call(self, name: str, *args: object, **kwargs: object) -> object:
        self.send(name, *args, **kwargs)
        return self.answer()

    def send(self, name: str, *args: object, **kwargs: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(repr((name, args, kwargs)) + "\n")
        self.process.stdin.flush()

    def line(self) -> tuple[object, ...] | None:
        """The next line the other process wrote; None when it is gone."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return ast.literal_eval(line) if line.endswith("\n") else None

    def answer(self) -> object:
        line = self.line()
        assert line is not None, "the other process died"
        if line[0] == "error":
            raise PeerError(*line[1:])
        return line[1]

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def close(self) -> int:
        """Let it close its store and end; its exit status."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        status = self.process.wait()
        self.process.stdout.close()
        return status


@pytest.fixture
def peer_error() -> type[PeerError]:
    return PeerError


@pytest.fixture
def open_peer(tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    """Opens the test's data directory in another process."""
    peers: list[Peer] = []

    def open_it(name: str = "data", **options: object) -> Peer:
        peers.append(Peer(tmp_path / name, **options))
        return peers[-1]

    yield open_it
    for peer in peers:
        if peer.process.poll() is None:
            peer.kill()
        for stream in (peer.process.stdin, peer.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

"""Rows received by `StoreClient` in memory that is used again, in new memory, and by redis-py with hiredis.

One layer in one piece, and prefixes of 32 layers and two sides, fp16 as stored. What was received is held
until the next has come, as in a loop that assigns it. Each way is a process of its own, since the heap of one
would serve the arrays of another; they share a core, and the server has another.

    python tests/benchmarks/bench_receive.py [--rounds 9]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import redis
from harness import Row, interleaved, rate_row, write_results
from pionkv.client import StoreClient
from wires import DIM, MIB, ROW, Contents, Wire, two_cores

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from server_process import ServerProcess  # noqa: E402

PIECES = ((1, 16 * MIB), (1, 64 * MIB), (64, MIB // 4), (64, MIB), (64, 4 * MIB))
"""Runs of rows and the bytes of each; 64 runs are 32 layers of a prefix."""
WAYS = {"kept": "", "new": "new memory", "redis-py": "redis-py + hiredis"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pionkv-bench-")))
        path = str(folder / "s")
        server = ServerProcess(folder / "data", "--unix-socket", path, "--max-bytes", "8GB")
        server.start()
        stack.callback(server.stop)
        servers, here = two_cores()
        os.sched_setaffinity(server.pid, servers)
        os.sched_setaffinity(0, here)
        wire = Wire(("127.0.0.1", server.port))
        for runs, size in PIECES:
            contents = Contents(size)
            wire.call(b"KV.PREFIX.REGISTER", b"p", b"%d" % DIM, b"fp16")
            for run in range(max(2, runs)):
                sid, count = (b"p_pk", b"p_pv")[run % 2], b"%d" % (size // ROW)
                wire.call(
                    b"V.STOREBATCH", sid, b"%d" % (run // 2), b"0", count, contents.next(), b"FMT", b"F16"
                )
            for lane, where in {"TCP": {"port": server.port}, "Unix": {"unix_socket_path": path}}.items():
                rows += _compared(f"{runs} × {size / MIB:g} MiB over {lane}", where, runs, size, rounds)
            wire.call(b"KV.PREFIX.DROP", b"p")
    write_results("receive", rows)


def _compared(work: str, where: dict[str, Any], runs: int, size: int, rounds: int) -> list[Row]:
    with ExitStack() as stack:
        ways = {way: stack.enter_context(_process(way, where, runs, size // ROW)) for way in WAYS}
        seconds = interleaved(
            {way: partial(ask, False) for way, ask in ways.items()}, rounds, 2, after_itself=True
        )
        assert len({ask(True) for ask in ways.values()}) == 1, "wrong rows"
    amount = runs * size / 1e9
    return [
        rate_row(work, "GB/s", amount, seconds["kept"], (WAYS[way], seconds[way]))
        for way in ("new", "redis-py")
    ]


@contextmanager
def _process(way: str, where: dict[str, Any], runs: int, count: int) -> Any:
    """What has the process receive, and answers the digest of all bytes if it is told to."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_receive, args=(theirs, way, where, runs, count)
    )
    process.start()
    theirs.close()  # so that the end of the process is seen here

    def ask(digest: bool) -> object:
        ours.send(digest)
        return ours.recv()

    try:
        yield ask
    finally:
        ours.send(None)
        process.join()


def _receive(connection: Connection, way: str, where: dict[str, Any], runs: int, count: int) -> None:
    bring = _redis_py(where, runs, count) if way == "redis-py" else _client(where, way, runs, count)
    held: list[Any] = []
    while (digest := connection.recv()) is not None:
        held = bring()
        connection.send(sha256(b"".join(map(bytes, held))).digest() if digest else None)


def _client(where: dict[str, Any], way: str, runs: int, count: int) -> Callable[[], list[Any]]:
    client = StoreClient(
        **where, prefer_unix=False, prefer_files=False, **({"kept_bytes": 0} if way == "new" else {})
    )

    def bring() -> list[Any]:
        if runs == 1:
            return [client.fetch_range("p_pk", 0, 0, count, form="RAW")]
        return [side for layer in client.fetch_all("p", 0, count, form="RAW") for side in layer]

    return bring


def _redis_py(where: dict[str, Any], runs: int, count: int) -> Callable[[], list[Any]]:
    client = redis.Redis(**where)

    def bring() -> list[Any]:
        if runs == 1:
            return [client.execute_command("V.FETCH", "p_pk", 0, "RANGE", 0, count, "FMT", "RAW")]
        return list(client.execute_command("V.FETCHALL", "p_pk", "p_pv", 0, count, "FMT", "RAW"))

    return bring


if __name__ == "__main__":
    main()

"""Cost as work grows: more connections, namespaces, fill and workers; and a small client beside large ones.

Each row compares two states of our own server, or ours and redis-server under the same load, in one run.

    python tests/benchmarks/bench_load.py [--rounds 7] [--only p99,connections,namespaces,budget,workers]
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from harness import Row, interleaved, rate_row, write_results
from wires import DIM, MIB, ROW, Contents, Wire, cpu_seconds, peer_server

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from server_process import ServerProcess  # noqa: E402

LARGE = 64 * MIB
HOGS = 4
PINGS = 300
PAUSE = 0.005
MANY_CONNECTIONS = 200
MANY_NAMESPACES = 100_000
FEW_NAMESPACES = 10
SMALL_BUDGET = 512 * MIB
GIB_OF_FETCHES = 4


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def store(wire: Wire, name: bytes, layers: int, size: int) -> None:
    """A prefix whose K side has so many layers of `size` bytes; its V side one row."""
    contents, count = Contents(size), b"%d" % (size // ROW)
    wire.call(b"KV.PREFIX.REGISTER", name, b"%d" % DIM, b"fp16")
    for layer in range(layers):
        sid = name + b"_pk"
        wire.call(b"V.STOREBATCH", sid, b"%d" % layer, b"0", count, contents.next(), b"FMT", b"F16")


def fetch(wire: Wire, name: bytes, layer: int, size: int) -> None:
    wire.send(b"V.FETCH", name + b"_pk", b"%d" % layer, b"RANGE", b"0", b"%d" % (size // ROW), b"FMT", b"RAW")
    assert wire.bulk() == size


# A small client beside large ones


VALUE = b""
"""Stands for `LARGE` bytes in a command."""


def _hog(port: int, command: tuple[bytes, ...], started: multiprocessing.Barrier) -> None:  # type: ignore[valid-type]
    wire = Wire(("127.0.0.1", port))
    stores, value = VALUE in command, bytes(LARGE)
    words = [value if word == VALUE else word for word in command]
    started.wait()  # type: ignore[attr-defined]
    while True:
        wire.send(*words)
        if stores:
            wire.line()
        else:
            wire.bulk()


@contextmanager
def hogs(port: int, command: tuple[bytes, ...]) -> Iterator[None]:
    """Clients that fetch or store without a pause, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    started = context.Barrier(HOGS + 1)
    processes = [
        context.Process(target=_hog, args=(port, command, started), daemon=True) for _ in range(HOGS)
    ]
    for process in processes:
        process.start()
    started.wait()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def ping_p99(port: int) -> float:
    """Seconds within which 99 of 100 PINGs are answered, sent one after the other with pauses."""
    wire = Wire(("127.0.0.1", port), room=1)
    taken = []
    for _ in range(PINGS):
        time.sleep(PAUSE)
        begin = time.perf_counter()
        assert wire.call(b"PING") == b"+PONG"
        taken.append(time.perf_counter() - begin)
    return percentile(taken, 0.99)


def small_beside_large(rounds: int) -> list[Row]:
    with ExitStack() as stack:
        ours = stack.enter_context(running()).port
        port = stack.enter_context(peer_server()).port
        store(Wire(("127.0.0.1", ours)), b"large", 1, LARGE)
        Wire(("127.0.0.1", port)).call(b"SET", b"large", Contents(LARGE).next())
        rows = b"%d" % (LARGE // ROW)
        fetches = {
            ours: (b"V.FETCH", b"large_pk", b"0", b"RANGE", b"0", rows, b"FMT", b"RAW"),
            port: (b"GET", b"large"),
        }
        stores = {
            ours: (b"V.STOREBATCH", b"large_pk", b"0", b"0", rows, VALUE, b"FMT", b"F16"),
            port: (b"SET", b"large", VALUE),
        }
        return [
            _beside("fetch", fetches, ours, port, rounds),
            _beside("store", stores, ours, port, rounds),
        ]


def _beside(what: str, commands: dict[int, tuple[bytes, ...]], ours: int, peer: int, rounds: int) -> Row:
    found: dict[int, list[float]] = {ours: [], peer: []}
    idle: dict[int, list[float]] = {ours: [], peer: []}
    for _ in range(rounds):
        for one, command in commands.items():
            idle[one].append(ping_p99(one))
            with hogs(one, command):
                found[one].append(ping_p99(one))
    return rate_row(
        f"PING p99 while {HOGS} clients {what} 64 MiB values", "1/s", 1.0, found[ours],
        ("redis-server, the same", found[peer]), 1 / 3,
        idle_p99_ms={
            name: 1e3 * percentile(idle[one], 0.5) for name, one in (("pionkv", ours), ("redis", peer))
        },
    )  # fmt: skip


# The same work with more around it


def connections(rounds: int) -> list[Row]:
    with running() as ours:
        wires = [Wire(("127.0.0.1", ours.port), room=MIB) for _ in range(MANY_CONNECTIONS)]
        store(wires[0], b"c", 1, MIB)

        def one() -> None:
            for _ in range(MANY_CONNECTIONS):
                fetch(wires[0], b"c", 0, MIB)

        def many() -> None:
            for wire in wires:
                fetch(wire, b"c", 0, MIB)

        seconds = interleaved({"many": many, "one": one}, rounds)
    amount = MANY_CONNECTIONS * MIB / 1e9
    peer = ("one connection", seconds["one"])
    return [rate_row("FETCH 1 MiB over 200 connections in turn", "GB/s", amount, seconds["many"], peer, 0.8)]


def namespaces(rounds: int) -> list[Row]:
    with ExitStack() as stack:
        arms: dict[str, Wire] = {}
        for name, count in (("few", FEW_NAMESPACES), ("many", MANY_NAMESPACES)):
            ours = stack.enter_context(running())
            wire = arms[name] = Wire(("127.0.0.1", ours.port), room=MIB)
            for first in range(0, count, 500):
                names = range(first, min(first + 500, count))
                for number in names:
                    wire.send(b"KV.PREFIX.REGISTER", b"n%d" % number, b"%d" % DIM, b"fp16")
                assert all(wire.line() == b"+OK" for _ in names)
            store(wire, b"n7", 1, MIB)

        def fetches(wire: Wire) -> Callable[[], None]:
            return lambda: [fetch(wire, b"n7", 0, MIB) for _ in range(50)] and None

        def lookups(wire: Wire) -> Callable[[], None]:
            def run() -> None:
                for number in range(2000):
                    wire.call(b"KV.PREFIX.LOOKUP", b"n%d" % (number * 47 % FEW_NAMESPACES))

            return run

        fetched = interleaved({name: fetches(wire) for name, wire in arms.items()}, rounds)
        looked = interleaved({name: lookups(wire) for name, wire in arms.items()}, rounds)
    few, many = f"{FEW_NAMESPACES} namespaces", f"{MANY_NAMESPACES:,} namespaces"
    return [
        rate_row(
            f"FETCH 1 MiB among {many}", "GB/s", 50 * MIB / 1e9, fetched["many"], (few, fetched["few"]), 0.8
        ),
        rate_row(f"LOOKUP among {many}", "1/s", 2000, looked["many"], (few, looked["few"]), 1 / 1.5),
    ]


def budget(rounds: int) -> list[Row]:
    """Storing while there is room, and storing when each new prefix evicts an old one."""
    with ExitStack() as stack:
        arms: dict[str, Callable[[], None]] = {}
        for name in ("a quarter", "full"):
            ours = stack.enter_context(running("--max-bytes", str(SMALL_BUDGET)))
            arms[name] = _storing(Wire(("127.0.0.1", ours.port)), keep=name == "full")
        for _ in range(SMALL_BUDGET // (8 * 8 * MIB) + 2):
            arms["full"]()
        seconds = interleaved(arms, rounds)
    peer = ("at a quarter of the budget", seconds["a quarter"])
    amount = 8 * 8 * MIB / 1e9
    return [rate_row("STOREBATCH 8 MiB at 99 % of the budget", "GB/s", amount, seconds["full"], peer, 0.8)]


def _storing(wire: Wire, *, keep: bool) -> Callable[[], None]:
    contents, rows, turn = Contents(8 * MIB), b"%d" % (8 * MIB // ROW), [0]

    def run() -> None:
        for _ in range(8):
            turn[0] += 1
            name = b"p%d" % turn[0]
            wire.call(b"KV.PREFIX.REGISTER", name, b"%d" % DIM, b"fp16")
            wire.call(b"V.STOREBATCH", name + b"_pk", b"0", b"0", rows, contents.next(), b"FMT", b"F16")
            if not keep and turn[0] > 8:
                wire.call(b"KV.PREFIX.DROP", b"p%d" % (turn[0] - 8))

    return run


# Workers


def workers(rounds: int) -> list[Row]:
    size = 16 * MIB
    pieces = GIB_OF_FETCHES * 1024 * MIB // size // 4
    with ExitStack() as stack:
        seconds: dict[int, list[float]] = {1: [], 2: []}
        arms: dict[int, tuple[list[Wire], list[int]]] = {}
        for count in seconds:
            ours = stack.enter_context(running("--workers", str(count)))
            wires = [Wire(("127.0.0.1", ours.port), room=size) for _ in range(8)]
            store(wires[0], b"w", 1, size)
            arms[count] = wires, worker_pids(wires[0])
        for _ in range(rounds):
            for count, (wires, pids) in arms.items():
                begin = sum(map(cpu_seconds, pids))
                for piece in range(pieces):
                    fetch(wires[piece % len(wires)], b"w", 0, size)
                seconds[count].append(sum(map(cpu_seconds, pids)) - begin)
    peer = ("1 worker", seconds[1])
    amount = pieces * size / 1e9
    return [rate_row("FETCH 16 MiB from 2 workers", "GB per CPU second", amount, seconds[2], peer, 1 / 1.1)]


def worker_pids(wire: Wire) -> list[int]:
    wire.send(b"INFO", b"workers")
    text = bytes(wire.room[: wire.bulk()]).decode()
    return [int(pid) for pid in re.findall(r"worker\d+:pid=(\d+)", text)]


@contextmanager
def running(*flags: str) -> Iterator[ServerProcess]:
    """A server of ours, its kernels loaded."""
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder) / "data", *flags)
        server.start()
        with closing(server):
            wire = Wire(("127.0.0.1", server.port), room=MIB)
            while True:
                wire.send(b"INFO", b"pion")
                if b"kernels_loading:0" in bytes(wire.room[: wire.bulk()]):
                    break
            yield server


PARTS: dict[str, Callable[[int], list[Row]]] = {
    "p99": small_beside_large,
    "connections": connections,
    "namespaces": namespaces,
    "budget": budget,
    "workers": workers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default=",".join(PARTS), help="names of parts, comma-separated")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only.split(","):
        rows += PARTS[name](options.rounds)
        print(f"{name}: done", flush=True)
    write_results("load", rows)


if __name__ == "__main__":
    main()

"""Moving bytes: pionkv beside redis-server, and both beside a bare socket, in one run.

The same lean client (one blocking socket, `recv_into` a warm buffer) drives every server, so that only the
servers differ; they are on one core, and it on another. What is timed follows a run of the same that is
not: 64 MiB through another socket leave the next slower, up to three times as long. What was stored is on
the disk before the next work is timed, so that writing it out takes no part of the two cores. Sizes are
those of one layer's rows. CPU seconds of each server are read from the kernel. Where Valkey is to be had
(see tests/engines.py) it is a peer, too, with rows of its own and no targets.

    python tests/benchmarks/bench_io.py [--rounds 9] [--only sizes,small]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import redis
from harness import Row, interleaved, rate_row, write_results
from wires import (
    DIM,
    DISTINCT,
    MIB,
    ROW,
    Contents,
    PeerServer,
    Wire,
    bare_sender,
    cpu_seconds,
    peer_server,
    two_cores,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import engines  # noqa: E402
from server_process import ServerProcess  # noqa: E402

TIMED_BYTES = 16 * MIB
"""What is timed moves at least so many: several of what is smaller, one after the other."""
PEERS = ("redis", "valkey")
"""Engines of plain keys; targets are stated against the first."""


class Bench:
    def __init__(self, ours: ServerProcess, peers: dict[str, PeerServer], rounds: int, unix: str) -> None:
        self.ours_process, self.rounds, self.unix = ours, rounds, unix
        self.ours = Wire(("127.0.0.1", ours.port))
        self.peers = peers
        self.wires = {name: Wire(("127.0.0.1", peer.port)) for name, peer in peers.items()}
        with redis.Redis(port=ours.port) as client:
            while client.info("pion")["kernels_loading"]:
                threading.Event().wait(0.05)
        self.rows: list[Row] = []
        self.all_cores, self.cores = os.sched_getaffinity(0), two_cores()

    def pin(self, apart: bool = True) -> None:
        """Event loops of servers on one core and who asks them on another, or all of them anywhere.

        Left alone the system sometimes runs a server and its client in turn on one core, which is several
        times as fast, and sometimes beside each other; which of them is chance. Threads that pack are best
        left alone: those that a loop starts while it is pinned are with it.
        """
        servers, here = self.cores if apart else (self.all_cores, self.all_cores)
        for pid in (self.ours_process.pid, *(peer.pid for peer in self.peers.values())):
            os.sched_setaffinity(pid, servers)
        os.sched_setaffinity(0, here)

    def sizes(self) -> None:
        targets = {1: (1.0, 1.0), 4: (1.1, 1.0), 16: (1.8, 1.5), 64: (3.0, 1.5)}
        for mb, (fetch_target, store_target) in targets.items():
            size = mb * MIB
            contents, count = Contents(size), b"%d" % (size // ROW)
            times = max(1, TIMED_BYTES // size)
            self.ours.call(b"KV.PREFIX.REGISTER", b"io", b"%d" % DIM, b"fp16")
            stores: Counter[Wire] = Counter()

            def store(
                contents: Contents = contents, count: bytes = count, turn: Counter[Wire] = stores
            ) -> None:
                turn[self.ours] += 1
                layer = b"%d" % turn[self.ours]
                self.ours.call(b"V.STOREBATCH", b"io_pk", layer, b"0", count, contents.next(), b"FMT", b"F16")

            def set_(wire: Wire, contents: Contents = contents, turn: Counter[Wire] = stores) -> None:
                turn[wire] += 1
                wire.call(b"SET", b"k%d" % turn[wire], contents.next())

            def fetch(count: bytes = count, turn: Counter[Wire] = stores) -> None:
                layer = b"%d" % turn[self.ours]
                self.ours.send(b"V.FETCH", b"io_pk", layer, b"RANGE", b"0", count, b"FMT", b"NATIVE")
                self.ours.bulk()

            def get(wire: Wire, turn: Counter[Wire] = stores) -> None:
                wire.send(b"GET", b"k%d" % turn[wire])
                wire.bulk()

            stores_of = {"pionkv": store, **self._of_peers(set_)}
            fetches_of = {"pionkv": fetch, **self._of_peers(get)}
            stored = interleaved(repeated(stores_of, times), self.rounds, 2, after_itself=True)
            os.sync()
            fetched = interleaved(repeated(fetches_of, times), self.rounds, 2, after_itself=True)
            fetch()
            assert bytes(self.ours.room[:size]) in [bytes(v) for v in contents.versions], "wrong rows"
            self._add(f"FETCH NATIVE {mb} MiB", times * size, fetched, "{} GET", fetch_target)
            self._add(f"STOREBATCH F16 {mb} MiB", times * size, stored, "{} SET", store_target)
            self._forget(b"io")

    def _of_peers(self, work: Callable[[Wire], None]) -> dict[str, Callable[[], None]]:
        """The same work on every peer, as arms."""
        return {name: partial(work, wire) for name, wire in self.wires.items()}

    def _forget(self, namespace: bytes) -> None:
        """Drop what was stored, in every server."""
        self.ours.call(b"KV.PREFIX.DROP", namespace)
        for wire in self.wires.values():
            wire.call(b"FLUSHALL")
        os.sync()

    def against_socket(self) -> None:
        size = 64 * MIB
        contents = Contents(size)
        self.ours.call(b"KV.PREFIX.REGISTER", b"raw", b"%d" % DIM, b"fp16")
        count = b"%d" % (size // ROW)
        self.ours.call(b"V.STOREBATCH", b"raw_pk", b"0", b"0", count, contents.versions[0], b"FMT", b"F16")
        lanes: list[tuple[str, tuple[str, int] | str]] = [
            ("TCP", ("127.0.0.1", self.ours_process.port)),
            ("Unix", self.unix),
        ]
        for name, address in lanes:
            wire = Wire(address)

            def fetch(wire: Wire = wire) -> None:
                wire.send(b"V.FETCH", b"raw_pk", b"0", b"RANGE", b"0", count, b"FMT", b"RAW")
                wire.bulk()

            with bare_sender(name, contents.versions[0], self.cores[0]) as receive:
                bare = partial(receive, wire.room)
                seconds = interleaved({"pionkv": fetch, "socket": bare}, self.rounds, 2, after_itself=True)
            self._add(f"FETCH RAW 64 MiB over {name}", size, seconds, f"bare {name} socket", 0.85)
        self.ours.call(b"KV.PREFIX.DROP", b"raw")

    def whole_prefix(self) -> None:
        layers, size = 32, MIB
        contents, count = Contents(size), b"%d" % (MIB // ROW)
        self.ours.call(b"KV.PREFIX.REGISTER", b"whole", b"%d" % DIM, b"fp16")
        for layer in range(layers):
            for side in (b"whole_pk", b"whole_pv"):
                blob = contents.next()
                self.ours.call(b"V.STOREBATCH", side, b"%d" % layer, b"0", count, blob, b"FMT", b"F16")
                for wire in self.wires.values():
                    wire.call(b"SET", b"%s%d" % (side, layer), blob)

        def fetchall() -> None:
            self.ours.send(b"V.FETCHALL", b"whole_pk", b"whole_pv", b"0", count, b"FMT", b"RAW")
            assert self.ours.line() == b"*%d" % (2 * layers)
            for index in range(2 * layers):
                self.ours.bulk(index * size)

        def gets(wire: Wire) -> None:
            for layer in range(layers):
                wire.send(b"GET", b"whole_pk%d" % layer)
                wire.send(b"GET", b"whole_pv%d" % layer)
            for index in range(2 * layers):
                wire.bulk(index * size)

        arms = {"pionkv": fetchall, **self._of_peers(gets)}
        seconds = interleaved(arms, self.rounds, 2, after_itself=True)
        for arm in arms.values():
            arm()
        for wire in self.wires.values():
            assert self.ours.room[: 64 * size] == wire.room[: 64 * size], "wrong rows"
        self._add(
            "FETCHALL 32 layers x 2 x 1 MiB", 2 * layers * size, seconds, "64 pipelined GETs of {}", 1.5
        )
        self._forget(b"whole")

    def packing(self) -> None:
        size = 16 * MIB
        rng = np.random.default_rng(1)
        blobs = [
            memoryview(rng.standard_normal(size // 4).astype(np.float32)).cast("B") for _ in range(DISTINCT)
        ]
        rows = size // 4 // DIM
        self.ours.call(b"KV.PREFIX.REGISTER", b"packed", b"%d" % DIM, b"mlx4g32")
        self.ours.call(b"KV.PREFIX.REGISTER", b"plain", b"%d" % DIM, b"fp32")
        turn = [0]

        def store(name: bytes, form: bytes) -> None:
            turn[0] += 1
            self.ours.call(
                b"V.STOREBATCH",
                name,
                b"%d" % turn[0],
                b"0",
                b"%d" % rows,
                blobs[turn[0] % DISTINCT],
                b"FMT",
                form,
            )

        arms = {
            "packed": lambda: store(b"packed_pk", b"F32"),
            "raw": lambda: store(b"plain_pk", b"RAW"),
        }
        seconds = interleaved(arms, self.rounds, 2, after_itself=True)
        row = rate_row(
            "STOREBATCH fp32 in, mlx4g32 stored, 16 MiB", "GB/s", size / 1e9, seconds["packed"],
            ("STOREBATCH RAW", seconds["raw"]), 0.5,
        )  # fmt: skip
        self.rows.append(row)
        self.ours.call(b"KV.PREFIX.DROP", b"packed", b"plain")

    def clients(self) -> None:
        """Our client's way of receiving beside redis-py with hiredis, both from our server.

        Both are told its port. Ours then finds the server's files by itself, which takes one copy instead of
        two; to see what sockets are worth each is also kept to one kind of them, without a target.
        """
        from pionkv.client import StoreClient

        for mb, target in ((16, 2.5), (64, 4.0)):
            size = mb * MIB
            blob, count = Contents(size).versions[0], size // ROW
            self.ours.call(b"KV.PREFIX.REGISTER", b"cl", b"%d" % DIM, b"fp16")
            self.ours.call(b"V.STOREBATCH", b"cl_pk", b"0", b"0", b"%d" % count, blob, b"FMT", b"F16")
            port = self.ours_process.port
            ours = {
                "": StoreClient(port=port),
                " over TCP": StoreClient(port=port, prefer_unix=False, prefer_files=False),
                " over Unix": StoreClient(unix_socket_path=self.unix, prefer_files=False),
            }
            theirs = {
                "": redis.Redis(port=port),
                " over Unix": redis.Redis(unix_socket_path=self.unix),
            }
            received: dict[str, Any] = {}

            def lane(how: str, count: int = count, got: dict[str, Any] = received, ours: Any = ours) -> None:
                got["lane" + how] = ours[how].fetch_range("cl_pk", 0, 0, count, form="RAW").data.cast("B")

            def reply(
                how: str, count: int = count, got: dict[str, Any] = received, them: Any = theirs
            ) -> None:
                command = ("V.FETCH", "cl_pk", 0, "RANGE", 0, count, "FMT", "RAW")
                got["reply" + how] = them[how].execute_command(*command)

            arms = {"lane" + how: partial(lane, how) for how in ours}
            arms |= {"reply" + how: partial(reply, how) for how in theirs}
            seconds = interleaved(arms, self.rounds, 2, after_itself=True)
            assert all(each == blob for each in received.values()), "wrong rows"
            for how, peer, wanted in (
                ("", "", target),
                (" over TCP", "", None),
                (" over Unix",) * 2 + (None,),
            ):
                row = rate_row(
                    f"client receives {mb} MiB{how or ' out of files'}",
                    "GB/s", size / 1e9, seconds["lane" + how],
                    (f"redis-py + hiredis{peer}", seconds["reply" + peer]), wanted,
                )  # fmt: skip
                self.rows.append(row)
            for client in (*ours.values(), *theirs.values()):
                client.close()
            self.ours.call(b"KV.PREFIX.DROP", b"cl")

    def small_commands(self) -> None:
        tests = {"PING_MBULK": 0.5, "SET": 0.4, "GET": 0.4}
        for name, target in tests.items():
            self._per_second(name, ("-t", name.lower()), ("-t", name.lower()), "{}-server", target)
        self._per_second("LOOKUP", ("KV.PREFIX.LOOKUP", "none"), ("EXISTS", "none"), "{} EXISTS", 0.3)

    def _per_second(
        self, name: str, ours: tuple[str, ...], theirs: tuple[str, ...], peer: str, target: float
    ) -> None:
        seconds: dict[str, list[float]] = {"pionkv": [], **{peer: [] for peer in self.peers}}
        for _ in range(5):
            seconds["pionkv"].append(self._benchmark(self.ours_process.port, *ours))
            for other, server in self.peers.items():
                seconds[other].append(self._benchmark(server.port, *theirs))
        work = f"{name}, 50 connections, pipeline 16"
        self._add_rates(work, "thousand requests/s", 1e-3, seconds, peer, target)

    def _benchmark(self, port: int, *what: str) -> float:
        """Seconds a request, by redis-benchmark."""
        command = ["redis-benchmark", "-p", str(port), "-P", "16", "-n", "100000", "--csv", *what]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return 1 / float(done.stdout.strip().splitlines()[-1].split(",")[1].strip('"'))

    def cpu(self) -> None:
        """CPU seconds of each server for 4 GiB fetched in 16 MiB pieces."""
        size, pieces = 16 * MIB, 256
        contents, count = Contents(size), b"%d" % (size // ROW)
        self.ours.call(b"KV.PREFIX.REGISTER", b"cpu", b"%d" % DIM, b"fp16")
        self.ours.call(b"V.STOREBATCH", b"cpu_pk", b"0", b"0", count, contents.versions[0], b"FMT", b"F16")
        fetch = (b"V.FETCH", b"cpu_pk", b"0", b"RANGE", b"0", count, b"FMT", b"RAW")
        arms: dict[str, tuple[int, Wire, tuple[bytes, ...]]] = {
            "pionkv": (self.ours_process.pid, self.ours, fetch)
        }
        for name, wire in self.wires.items():
            wire.call(b"SET", b"cpu", contents.versions[0])
            arms[name] = self.peers[name].pid, wire, (b"GET", b"cpu")
        spent: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(5):
            for name, (pid, wire, command) in arms.items():
                begin = cpu_seconds(pid)
                for _ in range(pieces // 4):
                    wire.send(*command)
                    wire.bulk()
                spent[name].append(cpu_seconds(pid) - begin)
        amount = size * (pieces // 4) / 1e9
        self._add_rates("server CPU for FETCH 16 MiB", "GB per CPU second", amount, spent, "{} GET", 1.0)
        self._forget(b"cpu")

    def _add(self, work: str, size: int, seconds: dict[str, list[float]], peer: str, target: float) -> None:
        self._add_rates(work, "GB/s", size / 1e9, seconds, peer, target)

    def _add_rates(
        self, work: str, unit: str, amount: float, seconds: dict[str, list[float]], peer: str, target: float
    ) -> None:
        """A row for each peer; `peer` names what it did, the target is stated against the first."""
        first, *others = (name for name in seconds if name != "pionkv")
        for name in (first, *others):
            row = rate_row(
                work, unit, amount, seconds["pionkv"], (peer.format(name), seconds[name]),
                target if name == first else None,
            )  # fmt: skip
            self.rows.append(row)


def repeated(arms: Mapping[str, Callable[[], None]], times: int) -> dict[str, Callable[[], None]]:
    """Each arm several times in a row."""

    def run(arm: Callable[[], None]) -> None:
        for _ in range(times):
            arm()

    return {name: partial(run, arm) for name, arm in arms.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="names of parts, comma-separated")
    options = parser.parse_args()
    if engines.server(PEERS[0]) is None:
        raise SystemExit("redis-server is not installed: `make system` installs it where apt is there")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        unix = str(folder / "socket")
        ours = ServerProcess(folder / "data", "--unix-socket", unix, "--max-bytes", "16GB")
        ours.start()
        stack.callback(ours.stop)
        peers = {
            name: stack.enter_context(peer_server(program))
            for name in PEERS
            if (program := engines.server(name)) is not None
        }
        bench = Bench(ours, peers, options.rounds, unix)
        parts: dict[str, Callable[[], None]] = {
            "sizes": bench.sizes,
            "socket": bench.against_socket,
            "prefix": bench.whole_prefix,
            "packing": bench.packing,
            "clients": bench.clients,
            "small": bench.small_commands,
            "cpu": bench.cpu,
        }
        for name, part in parts.items():
            if not options.only or name in options.only.split(","):
                begin = time.perf_counter()
                bench.pin(name != "packing")
                part()
                print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
        write_results("io", bench.rows)


if __name__ == "__main__":
    main()

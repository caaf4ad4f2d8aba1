"""The same fetch load on one worker and on two: CPU seconds of the server for each gigabyte sent.

Several workers must not cost more for the same work; how much faster they are depends on the cores that are
free, so the elapsed times are kept beside it and no target is set for them. The clients are there at once:
that is what several workers are for. One client that asks them in turn is in bench_load.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import Peer, Row, Spread, write_results  # noqa: E402
from pionkv.protocol.request import encode_command  # noqa: E402
from server_process import ServerProcess  # noqa: E402
from wires import cpu_seconds  # noqa: E402

DIM, ROWS, LAYERS = 1024, 2048, 4
CLIENTS, FETCHES, ROUNDS = 8, 12, 5
LEAST = 0.91
"""One worker's CPU time for a byte by that of two."""
GIB = 1 << 30


class Load:
    """A server with a prefix in it, and clients that fetch it."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.server = ServerProcess(folder / f"data{workers}", "--workers", str(workers))
        self.server.start()
        pid = self.server.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self.pids = [pid, *map(int, children)]
        self.wires = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(CLIENTS)]
        self._store()

    def _store(self) -> None:
        blob = np.random.default_rng(1).standard_normal((ROWS, DIM), np.float32).astype(np.float16).tobytes()
        self._command("KV.PREFIX.REGISTER", "n", DIM, "fp16")
        for layer in range(LAYERS):
            for sid in ("n_pk", "n_pv"):
                self._command("V.STOREBATCH", sid, layer, 0, ROWS, blob, "FMT", "F16")

    def _command(self, *words: object) -> None:
        for piece in encode_command(words):  # type: ignore[arg-type]
            self.wires[0].sendall(piece)
        assert self.wires[0].recv(100) == b"+OK\r\n"

    def run(self) -> tuple[float, float, int]:
        """Every client fetches everything, several times: CPU seconds, elapsed seconds, bytes."""
        sizes = [0] * CLIENTS
        threads = [threading.Thread(target=self._fetch, args=(index, sizes)) for index in range(CLIENTS)]
        before, begun = sum(map(cpu_seconds, self.pids)), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(map(cpu_seconds, self.pids)) - before, time.perf_counter() - begun, sum(sizes)

    def _fetch(self, index: int, sizes: list[int]) -> None:
        wire, buffer = self.wires[index], bytearray(1 << 20)
        command = b"".join(
            bytes(piece) for piece in encode_command(("V.FETCHALL", "n_pk", "n_pv", 0, ROWS, "FMT", "RAW"))
        )
        body = ROWS * DIM * 2
        reply = len(b"*%d\r\n" % (2 * LAYERS)) + 2 * LAYERS * (len(b"$%d\r\n" % body) + body + 2)
        for _ in range(FETCHES):
            wire.sendall(command)
            left = reply
            while left:
                left -= wire.recv_into(buffer, min(left, len(buffer)))
            sizes[index] += reply

    def close(self) -> None:
        for wire in self.wires:
            wire.close()
        self.server.stop()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        loads = {workers: Load(Path(folder), workers) for workers in (1, 2)}
        cpu: dict[int, list[float]] = {1: [], 2: []}
        elapsed: dict[int, list[float]] = {1: [], 2: []}
        for load in loads.values():
            load.run()
        for turn in range(ROUNDS):
            for workers in (1, 2) if turn % 2 else (2, 1):
                spent, seconds, size = loads[workers].run()
                cpu[workers].append(spent / size * GIB)
                elapsed[workers].append(size / GIB / seconds)
        for load in loads.values():
            load.close()
    costs = {workers: Spread.of(values) for workers, values in cpu.items()}
    rates = {workers: Spread.of(values) for workers, values in elapsed.items()}
    work = f"{CLIENTS} clients fetch {ROWS} rows x {DIM} fp16 of {LAYERS} layers"
    ratio = round(costs[1].median / costs[2].median, 2)
    rows = [
        Row(
            f"{work}, two workers",
            "CPU s/GiB",
            costs[2],
            Peer.of("one worker", costs[1]),
            ratio,
            target=LEAST,
            holds=ratio >= LEAST,
        ),
        Row(
            f"{work}, two workers",
            "GiB/s",
            rates[2],
            Peer.of("one worker", rates[1]),
            round(rates[2].median / rates[1].median, 2),
        ),
    ]
    write_results("workers", rows)


if __name__ == "__main__":
    main()

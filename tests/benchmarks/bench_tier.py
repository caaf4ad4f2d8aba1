"""A tier of three shards: `python tests/benchmarks/bench_tier.py [--sizes 16 128] [--rounds 5] [--nodes 3]`.

Two servers and a cluster on this machine. Written behind: from the reply to KV.PREFIX.PUBLISH until the tier
holds the prefix; the peer sets the same bytes with redis-py, in values as long under one hash tag. Read
through: a LOOKUP on the second server, which has nothing; the peer gets those values. Restored: LOOKUP and
V.FETCHALL on the second server, beside the same on the server that has the rows. Rows are compared each time.
First token: the real model after a prefix, as `tier_first_token.py` says.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import redis
import tier_first_token
from harness import Row, Spread, interleaved, rate_row, write_results

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tier")]

from pionkv.server.tier.record import PIECE_BYTES as PIECE  # noqa: E402
from redis_nodes import RedisCluster  # noqa: E402
from server_process import ServerProcess  # noqa: E402

LAYERS, DIM = 16, 1024
TOKEN_BYTES = LAYERS * 2 * DIM * 2
MB = 1e6
FLAGS = ("--tier-check", "0", "--tier-deadline", "5000", "--max-bytes", "8gb", "--log-level", "error")
NAME = b"n"


class Bench:
    """Two servers on a cluster, and a client of it."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.cluster = RedisCluster(folder / "cluster", nodes)
        self.cluster.start()
        flags = ("--tier", self.cluster.url, *FLAGS)
        self.servers = [ServerProcess(folder / name, *flags) for name in ("one", "other")]
        for server in self.servers:
            server.start()
        self.one, self.other = (self._connect(server.port) for server in self.servers)
        info = self.cluster.nodes[0].client.info("server")
        self.version = info.get("valkey_version") or info["redis_version"]
        self.direct = redis.RedisCluster("127.0.0.1", self.cluster.nodes[0].port, protocol=2)

    @staticmethod
    def _connect(port: int) -> redis.Redis:
        return redis.Redis("127.0.0.1", port, protocol=2, single_connection_client=True)

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.cluster.close()

    def cpu(self) -> tuple[float, float]:
        """CPU seconds of the servers and of the shards so far."""
        shards = [node.pid for node in self.cluster.nodes]
        return sum(_cpu(server.pid) for server in self.servers), sum(map(_cpu, shards))

    def publish(self, rows: bytes, tokens: int) -> None:
        """Store a prefix on the first server, and publish it."""
        run = self.one.execute_command
        run("KV.PREFIX.DROP", NAME)
        txn = run("KV.PREFIX.BEGIN", NAME, "KV", DIM, "fp16", "LAYERS", LAYERS, "PREFILL_MS", 600_000)
        for layer in range(LAYERS):
            for side in (b"_pk", b"_pv"):
                run("V.STOREBATCH", NAME + side, layer, 0, tokens, rows, "FMT", "RAW", "TXN", txn)
        run("KV.PREFIX.PUBLISH", txn)

    def written(self) -> None:
        """Wait until the tier holds it."""
        while b"the same" not in self.one.execute_command("KV.PREFIX.EXPLAIN", NAME):
            time.sleep(0.002)

    def forget(self) -> None:
        """The second server has nothing."""
        self.other.execute_command("FLUSHALL")

    def lookup(self, client: redis.Redis) -> None:
        answer = client.execute_command("KV.PREFIX.LOOKUP", NAME)
        assert answer == b"HIT", (answer, client.info("tier"))

    def restore(self, client: redis.Redis, tokens: int) -> list[bytes]:
        """All rows of the prefix."""
        self.lookup(client)
        found: list[bytes] = client.execute_command(
            "V.FETCHALL", NAME + b"_pk", NAME + b"_pv", 0, tokens, "FMT", "RAW"
        )
        return found


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds(prepare: Callable[[], object], work: Callable[[], object], rounds: int) -> list[float]:
    """How long `work` takes after each `prepare`; the first time is not counted."""
    found = []
    for _ in range(rounds + 1):
        prepare()
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return found[1:]


def with_cpu(bench: Bench, amount: float, found: Row, work: Callable[[], object], times: int) -> Row:
    """A row with the CPU seconds that a GB costs in the servers and in the shards."""
    before = bench.cpu()
    for _ in range(times):
        work()
    spent = [after - start for start, after in zip(before, bench.cpu(), strict=True)]
    gigabytes = amount * times / 1000
    found.extra["server_cpu_s_per_gb"] = round(spent[0] / gigabytes, 2)
    found.extra["shard_cpu_s_per_gb"] = round(spent[1] / gigabytes, 2)
    return found


def questions(bench: Bench, count: int) -> Row:
    """LOOKUPs of a prefix that is there, each of which asks the tier for the version."""
    bench.lookup(bench.other)
    before = bench.cpu()[1]
    begin = time.perf_counter()
    for _ in range(count):
        bench.lookup(bench.other)
    taken = time.perf_counter() - begin
    row = rate_row("LOOKUP that asks for the version", "1/s", count, [taken])
    row.extra["shard_cpu_us_each"] = round((bench.cpu()[1] - before) / count * 1e6, 1)
    return row


def measure(bench: Bench, megabytes: int, rounds: int) -> list[Row]:
    """The rows of one size."""
    tokens = max(1, int(megabytes * MB) // TOKEN_BYTES)
    amount = tokens * TOKEN_BYTES / MB
    random = np.random.default_rng(1)
    rows = random.integers(0, 0x3C00, tokens * DIM, np.uint16).tobytes()
    whole = rows * (2 * LAYERS)
    values = [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]
    keys = [b"{peer}%d" % number for number in range(len(values))]

    def set_all() -> None:
        for key, value in zip(keys, values, strict=True):
            bench.direct.set(key, value)

    def get_all() -> None:
        for key, value in zip(keys, values, strict=True):
            assert len(bench.direct.get(key) or b"") == len(value)

    work = f"{amount:.0f} MB, {len(values)} values"
    ours = seconds(lambda: bench.publish(rows, tokens), bench.written, rounds)
    peer = seconds(lambda: None, set_all, rounds)
    found = [rate_row(f"written behind, {work}", "MB/s", amount, ours, ("redis-py SET", peer))]
    ours = seconds(bench.forget, lambda: bench.lookup(bench.other), rounds)
    peer = seconds(lambda: None, get_all, rounds)

    def read_again() -> None:
        bench.forget()
        bench.lookup(bench.other)

    row = rate_row(f"read through, {work}", "MB/s", amount, ours, ("redis-py GET", peer))
    found.append(with_cpu(bench, amount, row, read_again, rounds))
    assert bench.restore(bench.other, tokens) == [rows] * (2 * LAYERS)

    def cold() -> Any:
        return bench.restore(bench.other, tokens)

    through = seconds(bench.forget, cold, rounds)
    arms = {
        "second": lambda: bench.restore(bench.other, tokens),
        "first": lambda: bench.restore(bench.one, tokens),
    }
    warm = interleaved(arms, rounds)
    for name, times in (("first read through", through), ("already there", warm["second"])):
        row = rate_row(f"restored on the second server, {name}, {amount:.0f} MB", "MB/s", amount, times,
                       ("the server that has it", warm["first"]))  # fmt: skip
        row.extra["ms"] = round(Spread.of(times).median * 1000, 1)
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 128], help="megabytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--prefixes", type=int, nargs="*", default=[1024], help="tokens, for the first token")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.nodes)
        try:
            rows = [row for size in options.sizes for row in measure(bench, size, options.rounds)]
            rows.append(questions(bench, options.questions))
            ports = [server.port for server in bench.servers]
            for length in options.prefixes:
                rows += tier_first_token.rows(*ports, bench.forget, length, options.rounds)
        finally:
            bench.close()
    engine = Path(bench.cluster.nodes[0].program).name
    write_results("tier", rows, shards=options.nodes, engine=f"{engine} {bench.version}")


if __name__ == "__main__":
    main()

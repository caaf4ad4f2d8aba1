"""Faults of a tier: three shards and two servers; shards and servers die, stall, fill up and are cut off.

Clients reach each shard through a gate that can be closed or stopped. Every row carries whose it is; whatever
a server serves is one version as a whole, of those that were published under the name. When the tier is well
again both servers serve the same version of every name.
"""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import redis
from faults_rows import SIDES, WrongRows, connect, name_of, pattern, version_of
from redis_nodes import RedisCluster
from server_process import ServerProcess

LAYERS, NAMES = 2, 6
SECONDS = 90
FLAGS = ("--tier-check", "0", "--tier-deadline", "300", "--log-level", "error")
SCHEMA = ("KV", 64, "fp32", "LAYERS", LAYERS)
REFUSED = (redis.RedisError, OSError)


class Gate:
    """Forwards connections to a port; it can let nothing pass, or cut all of them.

    Attributes:
        port: Where it listens.
        passing: Whether bytes pass; while they do not, connections stay open.
        cuts: Connections that it has cut.
    """

    def __init__(self) -> None:
        self.passing = threading.Event()
        self.passing.set()
        self.cuts = 0
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target = 0

    def start(self, target: int) -> None:
        self.target = target
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset every connection."""
        for end in list(self._open):
            self.cuts += 1
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.passing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()
                    continue
                self._open |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.passing.wait()
                target.sendall(data)
        for end in (source, target):
            self._open.discard(end)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
                end.close()


class TierLoop:
    """Rounds of faults.

    Args:
        folder: Where everything is made.
        seed: Decides what happens when.

    Attributes:
        counts: Publications, lookups that hit and missed, rows looked at, faults of each kind.
        slowest: The longest time that a lookup took, seconds.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.slowest = 0.0
        self._random = random.Random(seed)
        self._gates: list[Gate] = []
        self._cluster = self._made_cluster(folder / "cluster")
        self._servers: list[ServerProcess] = []
        self._folder = folder
        self._versions: dict[int, set[int]] = {number: set() for number in range(NAMES)}
        self._version = 0
        self._faults = self._made_faults()

    def _made_cluster(self, folder: Path) -> RedisCluster:
        self._gates = [Gate() for _ in range(3)]
        return RedisCluster(folder, gates=[gate.port for gate in self._gates])

    def _made_faults(self) -> dict[str, Callable[[], Callable[[], None]]]:
        return {
            "shard killed": self._kill_shard,
            "shard stopped": self._stop_shard,
            "tier killed": self._kill_tier,
            "server killed": self._kill_server,
            "connections cut": self._cut,
            "network stopped": self._stall,
            "shard full": self._fill,
        }

    def _made_server(self, name: str) -> ServerProcess:
        return ServerProcess(self._folder / name, "--tier", self._cluster.url, *FLAGS)

    def _connect(self, server: ServerProcess) -> redis.Redis:
        return connect(server.port)

    @property
    def kinds(self) -> list[str]:
        """What may break."""
        return list(self._faults)

    def run(self, rounds: int) -> None:
        """Let something break in each round. Raises `WrongRows`."""
        self._cluster.start()
        for gate, node in zip(self._gates, self._cluster.nodes, strict=False):
            gate.start(node.port)
        for name in ("one", "other"):
            server = self._made_server(name)
            self._servers.append(server)
            server.start()
        try:
            self._work(NAMES)
            self._settle()
            kinds = self.kinds
            for number in range(rounds):
                kind = kinds[number] if number < len(kinds) else self._random.choice(kinds)
                self._round(kind)
        finally:
            self.close()

    def close(self) -> None:
        """Nothing is left running."""
        for node in self._cluster.nodes:
            with suppress(Exception):
                node.signal(signal.SIGCONT)
        for server in self._servers:
            server.close()
        self._cluster.close()
        for gate in self._gates:
            gate.close()

    def _round(self, kind: str) -> None:
        heal = self._faults[kind]()
        self.counts[kind] += 1
        self._work(4)
        heal()
        self._work(2)
        self._settle()

    # What breaks, and how it is mended

    def _kill_shard(self) -> Callable[[], None]:
        node = self._random.choice(self._cluster.nodes)
        node.kill()
        return node.start

    def _stop_shard(self) -> Callable[[], None]:
        node = self._random.choice(self._cluster.nodes)
        node.signal(signal.SIGSTOP)
        return lambda: node.signal(signal.SIGCONT)

    def _kill_tier(self) -> Callable[[], None]:
        for node in self._cluster.nodes:
            node.kill()

        def heal() -> None:
            for node in self._cluster.nodes:
                node.start()

        return heal

    def _kill_server(self) -> Callable[[], None]:
        # A publication was just acknowledged, and may be on its way.
        server = self._random.choice(self._servers)
        self._publish(server, self._random.randrange(NAMES))
        server.restart(crash=True)
        return lambda: None

    def _cut(self) -> Callable[[], None]:
        stop = threading.Event()

        def go_on() -> None:
            while not stop.wait(0.02):
                for gate in self._gates:
                    gate.cut()

        thread = threading.Thread(target=go_on)
        thread.start()

        def heal() -> None:
            stop.set()
            thread.join()

        return heal

    def _stall(self) -> Callable[[], None]:
        for gate in self._gates:
            gate.passing.clear()

        def heal() -> None:
            for gate in self._gates:
                gate.passing.set()

        return heal

    def _fill(self) -> Callable[[], None]:
        node = self._random.choice(self._cluster.nodes)
        node.client.config_set("maxmemory", "1mb")
        return lambda: node.client.config_set("maxmemory", "0")

    # What goes on meanwhile

    def _work(self, count: int) -> None:
        for _ in range(count):
            number = self._random.randrange(NAMES) if self.counts["published"] >= NAMES else self._version
            self._publish(self._random.choice(self._servers), number % NAMES)
            for server in self._servers:
                self._look(server, self._random.randrange(NAMES))

    def _publish(self, server: ServerProcess, number: int) -> None:
        """Replace a prefix by another version, of another length."""
        self._version += 1
        self._versions[number].add(self._version)
        name, rows = name_of(number), self._random.choice((3, 70, 700))
        try:
            with self._connect(server) as client:
                if self._random.random() < 0.5:
                    client.execute_command("KV.PREFIX.DROP", name)
                elif client.execute_command("KV.PREFIX.EXPLAIN", name)[b"answer"] == b"HIT":
                    client.execute_command("KV.PREFIX.TRUNCATE", name, 0)
                txn = client.execute_command("KV.PREFIX.BEGIN", name, *SCHEMA)
                for layer in range(LAYERS):
                    for side, suffix in enumerate(SIDES):
                        blob = pattern(number, side, layer, 0, rows, self._version)
                        words = (name + suffix, layer, 0, rows, blob, "TXN", txn)
                        client.execute_command("V.STOREBATCH", *words)
                client.execute_command("KV.PREFIX.PUBLISH", txn)
            self.counts["published"] += 1
        except REFUSED:
            self.counts["refused"] += 1

    def _look(self, server: ServerProcess, number: int) -> int:
        """Look at a prefix; its version, 0 for a miss. Raises `WrongRows`."""
        name = name_of(number)
        try:
            with self._connect(server) as client:
                began = time.monotonic()
                answer = client.execute_command("KV.PREFIX.LOOKUP", name)
                self.slowest = max(self.slowest, time.monotonic() - began)
                if answer != b"HIT":
                    self.counts["misses"] += 1
                    return 0
                fields = client.execute_command("KV.PREFIX.EXPLAIN", name)
                rows, generation = int(fields[b"tokens"]), int(fields[b"generation"])
                words = (name + b"_pk", name + b"_pv", 0, rows, "FMT", "RAW", "AT", generation)
                found = client.execute_command("V.FETCHALL", *words) if rows else []
        except REFUSED:
            self.counts["unread"] += 1
            return 0
        return self._check(number, rows, found)

    def _check(self, number: int, rows: int, found: list[bytes]) -> int:
        versions = set()
        for place, raw in enumerate(found):
            layer, side = divmod(place, 2)
            versions.add(version_of(raw, number, side, layer, 0, rows))
            self.counts["rows"] += rows
        if len(versions) > 1 or not versions <= self._versions[number]:
            raise WrongRows(f"name {number} is of versions {versions}, published {self._versions[number]}")
        self.counts["hits"] += 1
        return versions.pop() if versions else 0

    def _settle(self) -> None:
        """Until both servers serve the same version of every name that any serves: hits are back."""
        end = time.monotonic() + SECONDS
        for number in range(NAMES):
            while True:
                one, other = (self._look(server, number) for server in self._servers)
                if one and one == other:
                    break
                if time.monotonic() > end:
                    raise WrongRows(f"name {number} is {one} here and {other} there")
                if not one and not other:
                    self._publish(self._random.choice(self._servers), number)
                time.sleep(0.05)

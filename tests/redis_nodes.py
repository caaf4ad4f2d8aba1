"""redis-server processes for tests and scripts: one, or a cluster of some."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import engines
import redis

SLOTS = 16384
SECONDS = 30


def program(engine: str | None = None) -> str:
    """The server of an engine, as `engines.server` finds it."""
    found = engines.server(engine)
    assert found is not None, "neither valkey-server nor redis-server is here: run `make system peers`"
    return found


def free_port() -> int:
    """A port that nobody has, and whose cluster bus port (10,000 above) exists."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port + 10_000 < 65_536:
            return port


class RedisNode:
    """One redis-server or valkey-server; it keeps nothing on the disk, so a restarted one is empty."""

    def __init__(self, folder: Path, *flags: str, port: int | None = None, engine: str | None = None) -> None:
        self.program = program(engine)
        self.port = port or free_port()
        self.folder = folder
        self.flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def client(self) -> redis.Redis:
        return redis.Redis("127.0.0.1", self.port, socket_timeout=SECONDS)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "no", "--loglevel", "warning", *self.flags]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Until it answers."""
        end = time.monotonic() + SECONDS
        while True:
            try:
                self.client.ping()
                return
            except redis.RedisError:
                assert time.monotonic() < end and self._process and self._process.poll() is None
                time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, such as SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(SECONDS)
            self._process = None


class RedisCluster:
    """A cluster of nodes that share the slots, without replicas.

    Args:
        folder: Where they keep what they know of each other.
        nodes: How many.
        gates: Ports by which clients are to reach them, when it is not their own.
        engine: What they are; see `engines.server`.
    """

    def __init__(
        self, folder: Path, nodes: int = 3, *, gates: Sequence[int] = (), engine: str | None = None
    ) -> None:
        common = (
            "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
            "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no",
        )  # fmt: skip
        self.nodes = []
        for number in range(nodes):
            port = free_port()
            behind = ("--cluster-announce-port", str(gates[number])) if gates else ()
            self.nodes.append(RedisNode(folder / f"node{number}", *common, *behind, port=port, engine=engine))
        self._ports = list(gates) or [node.port for node in self.nodes]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        share = SLOTS // len(self.nodes) + 1
        for number, node in enumerate(self.nodes):
            first, last = number * share, min(SLOTS, (number + 1) * share) - 1
            node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Until every node sees every slot served."""
        end = time.monotonic() + SECONDS
        while not all(self._sees_all(node) for node in self.nodes):
            assert time.monotonic() < end, "the cluster is not whole"
            time.sleep(0.02)

    def _sees_all(self, node: RedisNode) -> bool:
        info = node.client.execute_command("CLUSTER INFO")
        return info["cluster_state"] == "ok" and int(info["cluster_slots_ok"]) == SLOTS

    def all_keys(self) -> list[bytes]:
        """Every key of every node."""
        return [key for node in self.nodes for key in node.client.scan_iter(count=1000)]

    def close(self) -> None:
        for node in self.nodes:
            node.kill()

"""redis-server processes for tests and scripts: one, or a cluster of some."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import engines
import redis
from network import Host

SLOTS = 16384
SECONDS = 30
ATTEMPTS = 5
"""Ports that a node tries: between choosing one and taking it anybody may have it."""


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

    def __init__(
        self,
        folder: Path,
        *flags: str,
        port: int | None = None,
        engine: str | None = None,
        host: Host | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        self.program = program(engine)
        self.port = port or free_port()
        self.folder = folder
        self.flags = flags
        self.address = address if host is None else host.address
        self._host = host
        self._attempts = ATTEMPTS if port is None else 1
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{self.address}:{self.port}"

    @property
    def client(self) -> redis.Redis:
        if self._host is not None:
            return redis.Redis(unix_socket_path=self._host.socket("redis"), socket_timeout=SECONDS)
        return redis.Redis(self.address, self.port, socket_timeout=SECONDS)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; the first time on another port if somebody has taken this one meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in reversed(range(self._attempts)):
            self._launch()
            if self._is_up():
                break
            assert left, "it ends as soon as it is started"
            self.port = free_port()
        self._attempts = 1

    def _launch(self) -> None:
        inside: tuple[str, ...] = ()
        command = [self.program, "--port", str(self.port), "--bind", self.address, "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "no", "--loglevel", "warning", *self.flags]
        if self._host is not None:
            inside = self._host.inside
            command += ["--unixsocket", self._host.socket("redis"), "--protected-mode", "no"]
        self._process = subprocess.Popen(
            [*inside, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _is_up(self) -> bool:
        """Wait until it answers, and not somebody else in its place; False when it has ended."""
        end = time.monotonic() + SECONDS
        while self._process is not None and self._process.poll() is None:
            with suppress(redis.RedisError):
                if self.client.info("server")["process_id"] == self.pid:
                    return True
            assert time.monotonic() < end, "it does not answer"
            time.sleep(0.01)
        return False

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
        hosts: Where they run; by default here.
        addresses: Addresses of this machine that they have, all with the same port; by default the usual one.
        flags: Further flags of each.
        engine: What they are; see `engines.server`.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        gates: Sequence[int] = (),
        hosts: Sequence[Host] = (),
        addresses: Sequence[str] = (),
        flags: Sequence[str] = (),
        engine: str | None = None,
    ) -> None:
        port = free_port() if addresses else None
        common = (
            "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
            "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no",
            "--cluster-allow-replica-migration", "no", *flags,
        )  # fmt: skip
        self.nodes = []
        for number in range(nodes):
            behind = ("--cluster-announce-port", str(gates[number])) if gates else ()
            host = hosts[number] if hosts else None
            where = folder / f"node{number}"
            address = addresses[number] if addresses else "127.0.0.1"
            behind += ("--bind-source-addr", address) if addresses else ()
            node = RedisNode(where, *common, *behind, port=port, engine=engine, host=host, address=address)
            self.nodes.append(node)
        self._gates = gates

    @property
    def url(self) -> str:
        ports = self._gates or [node.port for node in self.nodes]
        listed = zip(self.nodes, ports, strict=True)
        return "redis+cluster://" + ",".join(f"{node.address}:{port}" for node, port in listed)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        share = SLOTS // len(self.nodes) + 1
        for number, node in enumerate(self.nodes):
            first, last = number * share, min(SLOTS, (number + 1) * share) - 1
            node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.client.execute_command("CLUSTER", "MEET", self.nodes[0].address, self.nodes[0].port)
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

    def move(self, source: int, target: int) -> None:
        """Give all slots of one node to another; their keys are lost."""
        giver, taker = self.nodes[source].client, self.nodes[target]
        giver.flushall()
        mine = giver.execute_command("CLUSTER", "MYID").decode()
        name = taker.client.execute_command("CLUSTER", "MYID").decode()
        ranges = taker.client.execute_command("CLUSTER NODES")
        held = next(node["slots"] for node in ranges.values() if node["node_id"] == mine)
        # Of two nodes that claim a slot the one with the newer epoch has it.
        taker.client.execute_command("CLUSTER", "BUMPEPOCH")
        for node in (taker, *(each for each in self.nodes if each is not taker)):
            with node.client.pipeline(transaction=False) as together:
                for first, last in held:
                    for slot in range(int(first), int(last) + 1):
                        together.execute_command("CLUSTER", "SETSLOT", slot, "NODE", name)
                together.execute()

    def all_keys(self) -> list[bytes]:
        """Every key of every node."""
        return [key for node in self.nodes for key in node.client.scan_iter(count=1000)]

    def close(self) -> None:
        for node in self.nodes:
            node.kill()

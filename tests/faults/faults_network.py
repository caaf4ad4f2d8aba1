"""Faults of the network between a tier and its servers: links are cut and mended again, in namespaces.

Nobody is told of a cut: what was sent is lost, and what is sent comes to nothing. Else as `faults_tier`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import redis
from faults_rows import connect
from faults_tier import FLAGS, TierLoop
from network import Host, Network
from redis_nodes import RedisCluster
from server_process import ServerProcess

SHARDS, SERVERS = 3, 2


class NetworkLoop(TierLoop):
    """Rounds of cuts. As `TierLoop`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._network = Network(SHARDS + SERVERS)
        super().__init__(folder, seed)

    def close(self) -> None:
        """Nothing is left running, and no namespace."""
        super().close()
        self._network.close()

    def _made_cluster(self, folder: Path) -> RedisCluster:
        return RedisCluster(folder, SHARDS, hosts=self._network.hosts[:SHARDS])

    def _made_faults(self) -> dict[str, Callable[[], Callable[[], None]]]:
        shards, servers = self._network.hosts[:SHARDS], self._network.hosts[SHARDS:]
        return {
            "shard cut off": lambda: self._cut_off([self._random.choice(shards)]),
            "server cut off": lambda: self._cut_off([self._random.choice(servers)]),
            "all shards cut off": lambda: self._cut_off(shards),
        }

    def _made_server(self, name: str) -> ServerProcess:
        host = self._network.hosts[SHARDS + len(self._servers)]
        flags = ("--tier", self._cluster.url, *FLAGS, "--unix-socket", host.socket("pionkv"))
        program = (*host.inside, sys.executable, "-m", "pionkv.server")
        return ServerProcess(self._folder / name, *flags, program=program)

    def _connect(self, server: ServerProcess) -> redis.Redis:
        host = self._network.hosts[SHARDS + self._servers.index(server)]
        return connect(unix=host.socket("pionkv"))

    def _cut_off(self, hosts: list[Host]) -> Callable[[], None]:
        for host in hosts:
            self._network.cut(host)

        def heal() -> None:
            for host in hosts:
                self._network.mend(host)

        return heal

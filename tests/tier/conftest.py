"""Servers on one tier: real processes, and a cluster of three real shards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess

sys.path.insert(0, str(Path(__file__).parent))

from redis_nodes import RedisCluster, RedisNode  # noqa: E402
from tier_clients import Peer  # noqa: E402


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three shards that the tests of a module share."""
    made = RedisCluster(tmp_path_factory.mktemp("cluster"))
    made.start()
    yield made
    made.close()


@pytest.fixture
def cluster(shared_cluster: RedisCluster) -> RedisCluster:
    """The same, empty."""
    for node in shared_cluster.nodes:
        node.client.flushall()
    return shared_cluster


FLAGS = ("--tier-check", "0", "--tier-deadline", "5000")
"""Versions are asked for each time, and a busy machine is no reason to do without the tier."""


@pytest.fixture(scope="module")
def shared_pair(
    shared_cluster: RedisCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Peer, Peer]]:
    """Two servers on the cluster that the tests of a module share."""
    folder = tmp_path_factory.mktemp("pair")
    servers = [
        ServerProcess(folder / f"data{number}", "--tier", shared_cluster.url, *FLAGS) for number in (0, 1)
    ]
    for server in servers:
        server.start()
    one, other = (Peer(server) for server in servers)
    yield one, other
    for server in servers:
        server.close()


@pytest.fixture
def pair(shared_pair: tuple[Peer, Peer], cluster: RedisCluster) -> Iterator[tuple[Peer, Peer]]:
    """The same, empty."""
    for each in shared_pair:
        each.client = each.connect()
        each.command("FLUSHALL")
        each.command("CONFIG", "RESETSTAT")
    yield shared_pair
    for each in shared_pair:
        each.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RedisNode]:
    """A single server of the tier."""
    made = RedisNode(tmp_path / "node")
    made.start()
    yield made
    made.kill()


@pytest.fixture
def peer(start_server: Callable[..., ServerProcess]) -> Iterator[Callable[..., Peer]]:
    """Starts a server on a tier and connects to it."""
    peers: list[Peer] = []

    def start(url: str, *flags: str) -> Peer:
        made = Peer(start_server("--tier", url, *FLAGS, *flags))
        peers.append(made)
        return made

    yield start
    for each in peers:
        each.close()

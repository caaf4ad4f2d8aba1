"""The tier on each engine that is here beside the machine's own; the whole of these tests runs on one of them
with `PIONKV_TEST_ENGINE=valkey-8.1 pytest tests/tier`.
"""

from __future__ import annotations

import sys

import engines
import pytest
from prefix_rows import expected, publish, whole
from redis_nodes import RedisCluster, RedisNode

NAMES = [f"n{number}" for number in range(12)]
"""Enough that each of a few shards has some of them."""

FETCHED = [name for name in engines.ENGINES if engines.server(name)]


@pytest.mark.skipif(not FETCHED, reason="`make peers` fetches engines, where Debian's mirror can be reached")
@pytest.mark.parametrize("shards", [1, 2], ids=["alone", "cluster"])
@pytest.mark.parametrize("engine", FETCHED[:1])
def test_two_servers_share_growing_prefixes_and_drops_on_another_engine(
    peer, tmp_path, request, engine, shards
) -> None:
    if shards == 1:
        tier = RedisNode(tmp_path / "node", engine=engine)
        request.addfinalizer(tier.kill)
    else:
        tier = RedisCluster(tmp_path / "nodes", shards, engine=engine)
        request.addfinalizer(tier.close)
    tier.start()
    one, other = peer(tier.url), peer(tier.url)
    publish(one, "n", 1, 0, 40)
    one.written("n")
    assert other.lookup("n") == "HIT", other.tier()
    publish(one, "n", 2, 40, 50)
    one.written("n")
    assert other.lookup("n") == "HIT", other.tier()
    assert whole(other, "n", 50) == expected((1, 0, 40), (2, 40, 50))
    assert other.command("KV.PREFIX.DROP", "n") == 1
    assert one.lookup("n") == "MISS"


@pytest.mark.parametrize(
    "preferred, addresses",
    [("hostname", ["127.0.0.1", "127.0.0.2", "127.0.0.3"]), ("unknown-endpoint", [])],
    ids=["the address counts", "the address that was asked counts"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="all of 127.0.0.0/8 is this machine's own on Linux alone")
def test_shards_that_have_no_name_are_reached_by_their_addresses(
    peer, tmp_path, request, preferred, addresses
) -> None:
    """As in containers, where all have one port and say `?` for their names, or behind one address."""
    flags = ("--cluster-preferred-endpoint-type", preferred)
    tier = RedisCluster(tmp_path / "nodes", addresses=addresses, flags=flags)
    request.addfinalizer(tier.close)
    tier.start()
    one, other = peer(tier.url), peer(tier.url)
    for number, name in enumerate(NAMES):
        publish(one, name, number, 0, 40)
        one.written(name)
        assert other.lookup(name) == "HIT", other.tier()
        assert whole(other, name, 40) == expected((number, 0, 40))
    assert all(node.client.dbsize() for node in tier.nodes)
    tier.move(0, 2)
    for number, name in enumerate(NAMES, 100):
        publish(one, name + "'", number, 0, 40)
        one.written(name + "'")
        assert other.lookup(name + "'") == "HIT", other.tier()
    assert not tier.nodes[0].client.dbsize()
    for each in (one, other):
        assert "never retrieved" not in each.server.errors.read_text()

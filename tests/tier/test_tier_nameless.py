"""Shards whose cluster does not say their names: they are reached by what it says instead."""

from __future__ import annotations

import sys

import pytest
from prefix_rows import expected, publish, whole
from redis_nodes import RedisCluster

NAMES = [f"n{number}" for number in range(12)]
"""Enough that each of a few shards has some of them."""


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

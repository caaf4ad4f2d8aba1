"""The tier on each engine that is here beside the machine's own; the whole of these tests runs on one of them
with `PIONKV_TEST_ENGINE=valkey-8.1 pytest tests/tier`.
"""

from __future__ import annotations

import engines
import pytest
from prefix_rows import expected, publish, whole
from redis_nodes import RedisCluster, RedisNode

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

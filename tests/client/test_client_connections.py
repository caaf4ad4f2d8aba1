"""A large prefix over several connections at once: the same bits, and nothing worse when one fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import redis
from client_peers import Fault, Proxy
from pionkv.client import PionPromptCache, fetching
from pionkv.client.deadline import Deadline
from pionkv.client.endpoint import Endpoint
from pionkv.client.errors import NotStored
from pionkv.client.lane import Lane, Traffic
from pionkv.client.prefix import restore
from pionkv.client.reuse import find
from pionkv.client.route import Route

Tiny = Callable[..., Any]
IDS = [(7 * number) % 300 for number in range(90)]
SLACK = 5.0


@pytest.fixture(autouse=True)
def every_prefix_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "BYTES_A_CONNECTION", 1)


def cache_at(port: int, model: Any, connections: int, **options: Any) -> PionPromptCache:
    patience = {"deadline": 60, "silence": 60, "connect_timeout": 60}
    options = {"lane": "tcp", "background": False, "always_fetch": True, **patience, **options}
    return PionPromptCache(model, port=port, connections=connections, **options)


def bits(caches: list[Any]) -> list[bytes]:
    arrays = [array for cache in caches for array in (cache.keys, cache.values)]
    parts = [part for each in arrays for part in (each if isinstance(each, tuple | list) else (each,))]
    return [np.array(mx.contiguous(part[:, :, : len(IDS)]).view(mx.uint8)).tobytes() for part in parts]


@pytest.mark.parametrize(
    "options",
    [{}, {"vquant": "mlx4g32"}, {"kv_bits": 4, "kv_group_size": 32}],
    ids=["same", "packed", "attached"],
)
def test_shares_of_the_layers_are_put_together(tiny: Tiny, store_port: int, options: dict[str, Any]) -> None:
    model = tiny("float16", layers=5)
    alone = cache_at(store_port, model, 1, **options)
    alone.get_or_prefill(IDS)
    expected = bits(alone.get_or_prefill(IDS))
    assert alone.stats()["hits"] >= 1, alone.stats()
    for connections in (1, 2, 3, 4, 9):
        cache = cache_at(store_port, model, connections, **options)
        for _ in range(2):
            assert bits(cache.get_or_prefill(IDS)) == expected
        stats = cache.stats()
        assert (stats["hits"], stats["connections"]) == (2, min(connections, 5))
        assert stats["bytes_received"] > 2 * sum(map(len, expected)) / 4


def test_layers_are_cut_by_their_bytes() -> None:
    assert fetching._cuts([100, 100, 100, 100], 2) == [0, 1, 2]
    assert fetching._cuts([900, 0, 50, 0, 50, 0], 2) == [0, 1, 3]
    assert fetching._cuts([50, 0, 50, 0, 900, 0], 3) == [0, 1, 2, 3]
    for count in range(1, 9):
        cuts = fetching._cuts([8, 4] * 8, count)
        assert (cuts[0], cuts[-1]) == (0, 8)
        assert all(first < last for first, last in pairwise(cuts))


@pytest.mark.parametrize("action", ["stall", "close"])
def test_one_of_them_may_fail_after_any_byte(proxy: Proxy, tiny: Tiny, action: str) -> None:
    model = tiny(layers=3)
    expected = bits(cache_at(proxy.port, model, 1).get_or_prefill(IDS))
    before = proxy.passed
    assert bits(cache_at(proxy.port, model, 3).get_or_prefill(IDS)) == expected
    length = proxy.passed - before
    for part in (0.01, 0.02, 0.05, 0.2, 0.5, 0.7, 0.9, 0.99):
        proxy.fault = Fault(proxy.passed + int(length * part), action)
        cache = cache_at(proxy.port, model, 3, silence=0.15, connect_timeout=0.15, deadline=1.0)
        begin = time.monotonic()
        assert bits(cache.get_or_prefill(IDS)) == expected
        assert time.monotonic() - begin < 1 + SLACK
        proxy.fault = None
        cache.close()


def test_a_connection_that_ended_meanwhile_is_replaced(tiny: Tiny, store_port: int) -> None:
    model = tiny(layers=3)
    cache = cache_at(store_port, model, 3)
    expected = bits(cache.get_or_prefill(IDS))
    assert bits(cache.get_or_prefill(IDS)) == expected
    with redis.Redis(port=store_port) as control:
        ours = [each["id"] for each in control.client_list() if "v.fetchall" in each["cmd"].lower()]
        assert len(ours) >= 3
        control.client_kill_filter(_id=max(ours, key=int))
    before = cache.stats()
    assert bits(cache.get_or_prefill(IDS)) == expected
    after = cache.stats()
    assert (after["hits"], after["misses"], after["connections"]) == (before["hits"] + 1, before["misses"], 3)


def test_a_server_that_takes_no_more_connections_sends_over_one(
    start_server: Callable[..., Any], tiny: Tiny
) -> None:
    model = tiny(layers=3)
    server = start_server("--max-clients", "1")
    cache = cache_at(server.port, model, 3)
    expected = bits(cache.get_or_prefill(IDS))
    assert bits(cache.get_or_prefill(IDS)) == expected
    assert (cache.stats()["hits"], cache.stats()["connections"]) == (1, 1)


def test_rows_of_another_generation_are_a_miss(tiny: Tiny, store_port: int) -> None:
    model = tiny(layers=3)
    cache = cache_at(store_port, model, 1)
    cache.get_or_prefill(IDS)
    shape = cache.shape
    assert shape is not None
    deadline, endpoint = Deadline(60, 60), Endpoint(port=store_port)
    for connections in (1, 3):
        lane = Lane.open(endpoint, deadline, Traffic())
        found = find(lane, deadline, cache.model_digest, IDS, whole=False)
        assert found is not None
        asked = (lane, deadline, found.namespace, shape, IDS, Route.of("tcp", endpoint, connections), None)
        assert len(restore(*asked, found.generation)) == 3
        with pytest.raises(NotStored, match="replaced"):
            restore(*asked, found.generation + 1)
        assert len(restore(*asked, found.generation)) == 3
        lane.close()


def test_fewer_than_one_is_refused(tiny: Tiny) -> None:
    with pytest.raises(ValueError, match="connections is 0, it must be at least 1"):
        PionPromptCache(tiny(), connections=0)

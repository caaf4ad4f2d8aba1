"""Never slower than prefilling: what a slow link would bring is prefilled. Time is made up here."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from client_peers import Clock
from pionkv.client import PionPromptCache
from pionkv.client.pace import PROBE, Pace, Watch

Tiny = Callable[..., Any]
ROW = 4 * 2 * 512 * 4  # layers, sides, elements, bytes
TOKENS_A_SECOND = 100


class Slow:
    """A cache whose clock goes by what its link brings and its model prefills."""

    def __init__(self, model: Any, port: int, bytes_a_second: float, **options: Any) -> None:
        self.model = model
        self.prefilling = 0.0
        self.rate = bytes_a_second
        forever = {"deadline": 1e9, "silence": 1e9, "connect_timeout": 1e9}
        self.throttled_after, self.throttled_rate = 1 << 60, bytes_a_second
        self.cache: PionPromptCache | None = None
        self.cache = PionPromptCache(
            model, port=port, lane="tcp", clock=self.clock, background=False, **forever, **options
        )

    def clock(self) -> float:
        received = 0 if self.cache is None else self.cache._link.traffic.received
        slow = max(0, received - self.throttled_after)
        return self.prefilling + (received - slow) / self.rate + slow / self.throttled_rate

    def throttle(self, after: int, bytes_a_second: float) -> None:
        """Become slow once so many more bytes have come."""
        assert self.cache is not None
        self.throttled_after = self.cache._link.traffic.received + after
        self.throttled_rate = bytes_a_second

    def ask(self, ids: list[int]) -> tuple[Any, ...]:
        """How many tokens were restored, prefilled, and fetches declined by this; the logits after it."""
        assert self.cache is not None
        names = ("tokens_restored", "tokens_prefilled", "fetches_declined")
        before = self.cache.stats()

        def progress(done: int, total: int) -> None:
            self.prefilling += total / TOKENS_A_SECOND

        caches = self.cache.get_or_prefill(ids, prompt_progress_callback=progress)
        after = self.cache.stats()
        logits = np.array(self.model(mx.array([[7, 8]]), cache=caches)).tobytes()
        return (*(int(after[name] or 0) - int(before[name] or 0) for name in names), logits)


@pytest.fixture
def ids(request: pytest.FixtureRequest) -> list[int]:
    seed = list(request.node.nodeid.encode())
    return [int(token) for token in np.random.default_rng(seed).integers(2, 300, 120)]


def test_a_slow_link_is_left_out_and_tried_again(tiny: Tiny, store_port: int, ids: list[int]) -> None:
    slow = Slow(tiny(kv_heads=4, head_dim=128), store_port, bytes_a_second=ROW * 10)
    cache, start = slow.cache, ids[:100]
    assert cache is not None
    *counts, expected = slow.ask(start)
    assert counts == [0, 100, 0]
    assert slow.ask(start) == (100, 0, 0, expected), "not measured yet"
    assert cache.stats()["prefill_tokens_per_second"] == pytest.approx(TOKENS_A_SECOND)
    assert cache.stats()["link_bytes_per_second"] == pytest.approx(ROW * 10, rel=0.05)
    sent = int(cache.stats()["bytes_sent"] or 0)
    assert slow.ask(start) == (0, 100, 1, expected)
    assert "100 tokens would take" in str(cache.stats()["last_miss"])
    # What is new is published all the same, without what is stored.
    assert slow.ask(ids)[:3] == (0, 120, 1)
    assert cache.stats()["stores"] == 2
    assert 20 * ROW < int(cache.stats()["bytes_sent"] or 0) - sent < 22 * ROW
    for _ in range(PROBE - 2):
        assert slow.ask(start) == (0, 100, 1, expected)
    slow.rate = ROW * 1e6
    for _ in range(2):
        assert slow.ask(start) == (100, 0, 0, expected), "the link has become fast"


@pytest.mark.parametrize("options", [{}, {"always_fetch": True}])
def test_a_fast_link_is_used(tiny: Tiny, store_port: int, ids: list[int], options: dict[str, bool]) -> None:
    rate = ROW * 10 if options else ROW * 1000
    link = Slow(tiny(kv_heads=4, head_dim=128), store_port, rate, **options)
    expected = link.ask(ids)[-1]
    for _ in range(3):
        assert link.ask(ids) == (120, 0, 0, expected)


def test_small_things_are_not_measured() -> None:
    pace = Pace()
    pace.prefilled(15, 0.001)
    pace.fetched((1 << 20) - 1, 100)
    assert (pace.prefill, pace.link) == (None, None)
    pace.prefilled(100, 1)
    pace.fetched(1 << 20, 10)
    assert pace.objection(100, (1 << 20) - 1) is None
    assert pace.objection(100, 1 << 20) == "100 tokens would take 10 s to fetch, 1 s to prefill"
    pace.fetched(1 << 20, 1)
    assert pace.link == pytest.approx((0.7 * 0.1 + 0.3 * 1) * (1 << 20))


@pytest.mark.parametrize("throttled, restored", [(10, 512), (110, 1000)])
def test_a_link_that_becomes_slow_brings_a_beginning(
    tiny: Tiny, store_port: int, monkeypatch: pytest.MonkeyPatch, throttled: int, restored: int
) -> None:
    """Its rate, in tokens a second, is below that of prefilling, or above."""
    monkeypatch.setattr("pionkv.client.pace.RUN_BYTES", 256 * ROW)
    ids = [int(token) for token in np.random.default_rng(throttled).integers(2, 300, 1000)]
    link = Slow(tiny(kv_heads=4, head_dim=128), store_port, ROW * 1000)
    expected = link.ask(ids)[-1]
    link.throttle(300 * ROW, ROW * throttled)
    assert link.ask(ids) == (restored, 1000 - restored, 0, expected)
    assert link.cache is not None and link.cache.stats()["fetches_cut"] == (restored < 1000)
    assert link.cache.stats()["stores"] == 1


def test_what_would_not_come_in_time_is_not_waited_for() -> None:
    clock = Clock()
    watch = Watch(Pace(), ROW, 1000, clock)
    clock.now += 1
    assert not watch.stops(400, left=1.6)
    clock.now += 1
    assert watch.stops(600, left=1.9)
    clock.now += 9
    assert not watch.stops(990, left=0.01), "a handful of tokens"

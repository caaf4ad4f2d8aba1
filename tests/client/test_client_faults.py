"""Whatever the server does, `get_or_prefill` returns the right caches, in bounded time."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from client_peers import Clock, Fault, Peer, Proxy
from pionkv.client import PionPromptCache

Tiny = Callable[..., Any]

IDS = [int(token) for token in np.random.default_rng(4).integers(0, 300, 100)]
DEADLINE, SILENCE, CONNECT = 1.0, 0.15, 0.15
SLACK = 5.0
"""Seconds on top of what the deadlines add up to: prefilling the small model on a busy machine."""


@pytest.fixture(scope="session")
def model(tiny: Tiny) -> Any:
    return tiny()


@pytest.fixture(scope="session")
def expected(model: Any) -> bytes:
    """What the model says after the prefix when there is no cache."""
    return said(model, PionPromptCache(model, port=1, background=False).get_or_prefill(IDS, "n"))


def said(model: Any, caches: list[Any]) -> bytes:
    return np.array(model(mx.array([7, 8, 9])[None], cache=caches)).tobytes()


def cache_at(port: int, model: Any, **options: Any) -> PionPromptCache:
    options = {"deadline": DEADLINE, "silence": SILENCE, "connect_timeout": CONNECT, "lane": "tcp", **options}
    return PionPromptCache(model, port=port, **{"background": False, **options})


def patient(port: int, model: Any) -> PionPromptCache:
    """For the steps that have to succeed, on a busy machine too."""
    return cache_at(port, model, deadline=60, silence=60, connect_timeout=60)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds + SLACK


def reply_length(proxy: Proxy, model: Any, namespace: str) -> int:
    """Bytes that the server sends for a connection and one restore of a published prefix."""
    patient(proxy.port, model).get_or_prefill(IDS, namespace)
    before = proxy.passed
    cache = patient(proxy.port, model)
    cache.get_or_prefill(IDS, namespace)
    assert cache.stats()["hits"] == 1
    return proxy.passed - before


@pytest.mark.parametrize("action", ["stall", "close", "flip", "drip"])
def test_a_restore_may_fail_after_any_byte(
    proxy: Proxy, model: Any, expected: bytes, namespace: str, action: str
) -> None:
    length = reply_length(proxy, model, namespace)
    slow = [0, 14, length // 2]
    all_over = [0, 1, 5, 7, 8, 12, 13, 14, 40, 120, 300, 600, length // 2, length - 3, length - 1]
    for after in slow if action == "drip" else all_over:
        proxy.fault = Fault(proxy.passed + after, action)
        cache = cache_at(proxy.port, model)
        with within(DEADLINE + CONNECT):
            caches = cache.get_or_prefill(IDS, namespace)
        stats = cache.stats()
        assert (stats["hits"], stats["unavailable"] + stats["bad_replies"] > 0) == (0, True)  # type: ignore[operator]
        assert said(model, caches) == expected
        proxy.fault = None


@pytest.mark.parametrize("action", ["stall", "close"])
def test_a_publication_may_fail_after_any_reply(
    proxy: Proxy, model: Any, expected: bytes, namespace: str, action: str
) -> None:
    for after in range(0, 90, 8):
        name = f"{namespace}{after}"
        cache = cache_at(proxy.port, model, connect_timeout=60)
        assert not cache.lookup(name)
        # The lookup's connection is kept: what follows are the miss of the restore, then the publication.
        proxy.fault = Fault(proxy.passed + len("+MISS\r\n") + after, action)
        with within(2 * DEADLINE):
            assert said(model, cache.get_or_prefill(IDS, name)) == expected
        proxy.fault = None
        # The server still takes the stalled client for the one that computes.
        unwaiting = {"deadline": 60, "silence": 60, "connect_timeout": 60, "wait_for_others": 0}
        other = cache_at(proxy.port, model, **unwaiting)
        assert said(model, other.get_or_prefill(IDS, name)) == expected
        assert said(model, other.get_or_prefill(IDS, name)) == expected
        assert other.stats()["hits"] >= 1


def test_a_black_hole_costs_the_connection_timeout_once(model: Any, expected: bytes, clock: Clock) -> None:
    # A listener whose backlog is full drops what comes, as a firewall does.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        fill = [socket.socket() for _ in range(3)]
        for each in fill:
            each.setblocking(False)
            each.connect_ex(address)
        cache = cache_at(address[1], model, deadline=1000, silence=1000)
        with within(CONNECT):
            assert said(model, cache.get_or_prefill(IDS, "n")) == expected
        for _ in range(3):
            assert said(model, cache.get_or_prefill(IDS, "n")) == expected
        assert cache.stats()["unavailable"] >= 1
        assert cache.stats()["not_asked"] >= 1
        for each in fill:
            each.close()


def test_a_dead_server_is_asked_again_only_after_a_pause(
    play: Callable[..., Peer], model: Any, expected: bytes, clock: Clock
) -> None:
    hang_up = [lambda connection: None] * 3
    peer = play(*hang_up)
    cache = cache_at(peer.port, model, clock=clock)
    for _ in range(5):
        assert said(model, cache.get_or_prefill(IDS, "n")) == expected
    assert peer.connections == 1
    assert (cache.stats()["unavailable"], cache.stats()["not_asked"]) == (1, 9)
    clock.now += 1
    cache.get_or_prefill(IDS, "n")
    assert peer.connections == 2


def test_a_server_that_is_killed_and_started_again(
    start_server: Callable[..., Any], model: Any, expected: bytes, clock: Clock, tmp_path: Any
) -> None:
    server = start_server("--unix-socket", str(tmp_path / "s"))
    cache = PionPromptCache(model, unix_socket_path=str(tmp_path / "s"), clock=clock, background=False)
    assert said(model, cache.get_or_prefill(IDS, "n")) == expected
    server.kill()
    assert said(model, cache.get_or_prefill(IDS, "n")) == expected
    assert cache.stats()["unavailable"] == 1
    server.start()
    clock.now += 60
    assert said(model, cache.get_or_prefill(IDS, "n")) == expected
    assert cache.stats()["hits"] == 1
    server.stop()
    server.start()
    # The kept connection ended with the old process: this call finds out and opens another.
    assert said(model, cache.get_or_prefill(IDS, "n")) == expected
    assert cache.stats()["hits"] == 2


def test_a_stopped_server_costs_one_silence(
    emptied_process: Any, model: Any, expected: bytes, clock: Clock
) -> None:
    patient(emptied_process.port, model).get_or_prefill(IDS, "n")
    cache = cache_at(emptied_process.port, model, deadline=1000, connect_timeout=60)
    assert cache.lookup("n")
    os.kill(emptied_process.pid, signal.SIGSTOP)
    try:
        with within(SILENCE):
            assert said(model, cache.get_or_prefill(IDS, "n")) == expected
        fresh = cache_at(emptied_process.port, model, deadline=1000, silence=1000)
        with within(CONNECT):
            assert said(model, fresh.get_or_prefill(IDS, "n")) == expected
        assert (cache.stats()["unavailable"], fresh.stats()["unavailable"]) == (1, 1)
    finally:
        os.kill(emptied_process.pid, signal.SIGCONT)
    again = patient(emptied_process.port, model)
    assert said(model, again.get_or_prefill(IDS, "n")) == expected
    assert again.stats()["hits"] == 1


def test_a_server_killed_in_the_middle_of_a_reply(start_server: Callable[..., Any], tiny: Tiny) -> None:
    # Long enough that no socket buffer holds the half that is missing.
    model, ids = tiny(kv_heads=4, head_dim=128), IDS * 20
    server = start_server()
    first = PionPromptCache(model, port=server.port, background=False)
    expected = said(model, first.get_or_prefill(ids, "n"))
    length = int(first.stats()["bytes_sent"] or 0)
    assert length > 32e6
    proxy = Proxy(server.port, Fault(length // 2, "kill", server.kill))
    cache = cache_at(proxy.port, model, deadline=60, silence=60, connect_timeout=60, clock=lambda: 0.0)
    with within(10):
        assert said(model, cache.get_or_prefill(ids, "n")) == expected
    assert (cache.stats()["hits"], cache.stats()["unavailable"]) == (0, 1)
    proxy.close()


def test_a_full_server_costs_only_the_publication(
    start_server: Callable[..., Any], model: Any, expected: bytes
) -> None:
    server = start_server("--max-bytes", "64kb")
    cache = PionPromptCache(model, port=server.port, background=False)
    for _ in range(2):
        assert said(model, cache.get_or_prefill(IDS, "n")) == expected
    assert str(cache.stats()["last_unpublished"]).startswith("OOM")
    assert cache.stats()["not_asked"] == 0


def test_a_wrong_password_means_prefill(
    start_server: Callable[..., Any], model: Any, expected: bytes
) -> None:
    server = start_server("--password", "right")
    for password, hits in (("wrong", 0), (None, 0), ("right", 1)):
        cache = PionPromptCache(model, port=server.port, password=password, background=False)
        for _ in range(2):
            assert said(model, cache.get_or_prefill(IDS, "n")) == expected
        assert cache.stats()["hits"] == hits


def test_a_mistake_of_ours_is_counted_and_means_prefill(
    store_port: int, model: Any, expected: bytes, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PionPromptCache(model, port=store_port, background=False)
    cache.get_or_prefill(IDS, namespace)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("no")

    with monkeypatch.context() as patched:
        patched.setattr("pionkv.client.prefix.landings", broken)
        assert said(model, cache.get_or_prefill(IDS, namespace)) == expected
    assert (cache.stats()["errors"], cache.stats()["last_miss"]) == (1, "ZeroDivisionError: no")
    assert said(model, cache.get_or_prefill(IDS, namespace)) == expected
    assert cache.stats()["hits"] == 1

"""Publications beside the generation: bounded, from copies, not lost when a process ends, not waited for."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from pionkv.client import PionPromptCache
from pionkv.client.background import Store, StoreQueue
from small_models import MODELS, build

Tiny = Callable[..., Any]
CHUNK = 64
LONG = {"deadline": 60, "silence": 60, "connect_timeout": 60}


def cache_for(model: Any, port: int, **options: Any) -> PionPromptCache:
    return PionPromptCache(model, port=port, prefill_chunk_size=CHUNK, lane="tcp", **{**LONG, **options})


@pytest.fixture
def ids(request: pytest.FixtureRequest) -> list[int]:
    """100 tokens that no other test has."""
    seed = list(request.node.nodeid.encode())
    return [int(token) for token in np.random.default_rng(seed).integers(2, 300, 100)]


def answer(model: Any, caches: list[Any], tokens: int = 12) -> list[int]:
    steps = generate_step(mx.array([5, 17, 200]), model, prompt_cache=caches, max_tokens=tokens)
    return [int(token) for token, _ in steps]


def uncached(model: Any, ids: list[int], **options: Any) -> list[int]:
    return answer(model, cache_for(model, 1, connect_timeout=0.1, **options).get_or_prefill(ids))


@contextmanager
def stopping(pid: int) -> Iterator[Callable[..., None]]:
    """Stops a process when called, and lets it go on at the end."""

    def stop(*_: object) -> None:
        os.kill(pid, signal.SIGSTOP)

    try:
        yield stop
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3-next", "mamba", "packed"])
def test_what_is_written_meanwhile_is_not_stored(emptied_process: Any, kind: str, ids: list[int]) -> None:
    """The server stands still until the caches have been written to."""
    model = build(MODELS["llama" if kind == "packed" else kind])
    options: dict[str, Any] = {"kv_bits": 8} if kind == "packed" else {}
    expected = uncached(model, ids, **options)
    first = cache_for(model, emptied_process.port, **options)
    with stopping(emptied_process.pid) as stop:
        caches = first.get_or_prefill(ids, prompt_progress_callback=lambda done, all: done < all or stop())
        assert first.stats()["stores_waiting"] == 1
        assert answer(model, caches) == expected
        assert first.stats()["stores"] == 0
    assert first.flush()
    assert (first.stats()["stores"], first.stats()["stores_waiting"]) == (1, 0)
    second = cache_for(model, emptied_process.port, **options)
    assert answer(model, second.get_or_prefill(ids)) == expected
    assert second.stats()["tokens_restored"] == len(ids)


def test_a_wedged_server_does_not_hold_up_generation(
    emptied_process: Any, tiny: Tiny, ids: list[int]
) -> None:
    model = tiny()
    cache = cache_for(model, emptied_process.port, deadline=0.4, silence=0.2)
    other = ids[::-1]
    with stopping(emptied_process.pid) as stop:
        caches = cache.get_or_prefill(ids, prompt_progress_callback=lambda done, all: done < all or stop())
        assert answer(model, caches) == uncached(model, ids)
        for each in (ids, other):
            assert answer(model, cache.get_or_prefill(each)) == uncached(model, each)
        assert cache.flush()
        stats = cache.stats()
        assert (stats["stores"], int(stats["unavailable"] or 0) > 0) == (0, True)
        assert stats["last_unpublished"] is not None
    with cache_for(model, emptied_process.port) as again:
        assert answer(model, again.get_or_prefill(other)) == uncached(model, other)
    assert again.stats()["stores"] == 1


def test_closing_gives_up_what_a_wedged_server_does_not_take(
    emptied_process: Any, tiny: Tiny, ids: list[int]
) -> None:
    model = tiny()
    cache = cache_for(model, emptied_process.port, deadline=1)
    caches = cache.get_or_prefill(ids[:50])
    assert cache.flush()
    with stopping(emptied_process.pid) as stop:
        stop()
        longer = [*ids[:50], *range(20, 60)]
        mx.eval(model(mx.array(longer[50:])[None], cache=caches))
        assert cache.keep(longer, caches)
        assert cache.keep(longer[:70], caches), "it waits behind the other"
        cache.close()
        assert cache.stats()["stores"] == 1
        assert cache.flush()
    stats = cache.stats()
    assert sum(int(stats[name] or 0) for name in ("stores_skipped", "unavailable", "not_asked")) == 2


def test_a_conversation_sends_and_computes_only_what_is_new(
    tiny: Tiny, store_port: int, ids: list[int]
) -> None:
    model, said = tiny(), list(ids)
    row = 4 * 2 * 64 * 4  # layers, sides, elements, bytes
    with cache_for(model, store_port) as cache:
        for turn in range(5):
            said += [20 + turn] * 20
            caches = cache.get_or_prefill(said)
            said += [30 + turn] * 20
            mx.eval(model(mx.array(said[-20:])[None], cache=caches))
            assert cache.keep(said, caches)
    stats = cache.stats()
    assert (stats["stores"], stats["stores_skipped"]) == (10, 0)
    assert stats["tokens_prefilled"] == len(ids) + 5 * 20
    assert int(stats["bytes_sent"] or 0) < (len(said) + 60) * row
    second = cache_for(model, store_port)
    assert answer(model, second.get_or_prefill(said)) == uncached(model, said)
    assert second.stats()["tokens_restored"] == len(said)


def test_rows_whose_beginning_is_gone_are_not_stored(
    emptied_process: Any, tiny: Tiny, ids: list[int]
) -> None:
    model, server = tiny(), emptied_process
    cache = cache_for(model, server.port)
    caches = cache.get_or_prefill(ids[:60])
    assert cache.flush()
    cache._link.exchange(lambda lane, deadline: (lane.send(("FLUSHALL",), deadline), lane.receive(deadline)))
    mx.eval(model(mx.array(ids[60:])[None], cache=caches))
    assert cache.keep(ids, caches)
    assert cache.flush()
    assert cache.stats()["last_unpublished"] == "its first 60 tokens are not stored any more"
    assert cache.explain(ids)["stored"] == 0
    assert cache.keep(ids, caches), "now all of them are sent"
    assert cache.flush()
    assert cache.explain(ids)["stored"] == 100


def test_what_does_not_fit_is_skipped_and_counted(tiny: Tiny, store_port: int, ids: list[int]) -> None:
    model = tiny()
    cache = cache_for(model, store_port, waiting_bytes=1000)
    assert answer(model, cache.get_or_prefill(ids)) == uncached(model, ids)
    stats = cache.stats()
    assert (stats["stores"], stats["stores_skipped"], stats["stores_waiting"]) == (0, 1, 0)
    held = 100 * 4 * 2 * 64 * 4
    assert stats["last_unpublished"] == f"{held} bytes on top of 0 that wait, at most 1000 may"
    # Nobody waits for what will not come.
    other = cache_for(model, store_port)
    other.get_or_prefill(ids)
    assert other.stats()["tokens_prefilled"] == 100


def test_the_queue_is_bounded_in_order_and_survives_a_mistake() -> None:
    go, seen = threading.Event(), []
    queue = StoreQueue(most_bytes=10, most_items=3)

    def store(name: str, nbytes: int = 1) -> Store:
        def work() -> None:
            go.wait()
            seen.append(name)
            if name == "b":
                raise RuntimeError("a mistake")

        return Store(list(name.encode()), nbytes, work, lambda: seen.append(f"{name} done"))

    assert queue.put(store("a", 8)) is None
    assert queue.put(store("x", 3)) == "3 bytes on top of 8 that wait, at most 10 may"
    assert [queue.put(store(name)) for name in "bc"] == [None, None]
    assert queue.put(store("d", 0)) == "3 stores wait, at most 3 may"
    assert not queue.flush(0) and not queue.wait_for(list(b"ab"), 0)
    assert queue.wait_for(list(b"zz"), 0)
    go.set()
    assert queue.flush()
    assert seen == ["a", "a done", "b", "b done", "c", "c done"]
    go.clear()
    seen.clear()
    assert [queue.put(store(name)) for name in "efg"] == [None, None, None]
    assert queue.close(0) == 2
    assert seen == ["f done", "g done"], "given up"
    go.set()
    assert queue.flush()
    assert seen == ["f done", "g done", "e", "e done"]


SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pionkv.client import PionPromptCache
from small_models import build, plain
cache = PionPromptCache(build(plain), port=int(sys.argv[2]), prefill_chunk_size=64)
cache.get_or_prefill(json.loads(sys.argv[3]))
"""


def test_a_process_that_ends_stores_what_waits(store_port: int, ids: list[int]) -> None:
    arguments = (str(Path(__file__).parent), str(store_port), str(ids))
    subprocess.run([sys.executable, "-c", SCRIPT, *arguments], check=True, timeout=120)
    assert cache_for(build(MODELS["llama"]), store_port).explain(ids)["stored"] == len(ids)

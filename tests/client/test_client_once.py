"""Processes that want the same prefix at a time: one prefills, the others restore what it publishes."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pionkv.client import PionPromptCache, StoreClient
from server_process import ServerProcess

Tiny = Callable[..., Any]
IDS = [int(token) for token in np.random.default_rng(9).integers(0, 300, 160)]
PROCESSES = 10

SCRIPT = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from pionkv.client import PionPromptCache, StoreClient
from small_models import build, plain
port, ids, name = int(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
chunk = 32 if len(ids) < 1000 else 256
cache = PionPromptCache(build(plain), port=port, prefill_chunk_size=chunk, background=False)
cache.model_digest
def work(done, total):
    # What a large model takes for a chunk.
    time.sleep(0.2)
    print(json.dumps({"chunk": done}), flush=True)
    if len(sys.argv) > 5 and done >= 64:
        sys.stdin.readline()
print("ready", flush=True)
sys.stdin.readline()
caches = cache.get_or_prefill(ids, name, prompt_progress_callback=work)
total = float(sum(each.keys[:, :, : each.offset].sum() for each in caches))
print(json.dumps({**cache.stats(), "total": total}), flush=True)
"""


class Process:
    """A model process that waits to be told to go."""

    def __init__(self, port: int, name: str | None, *flags: str, ids: list[int] = IDS) -> None:
        arguments = (str(Path(__file__).parent), str(port), json.dumps(ids), json.dumps(name), *flags)
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, Any]:
        while True:
            found: dict[str, Any] = json.loads(self.line())
            if "total" in found:
                return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def processes() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(port: int, name: str | None = None, *flags: str, **options: Any) -> Process:
        started.append(Process(port, name, *flags, **options))
        return started[-1]

    yield start
    for process in started:
        process.close()


def test_ten_processes_prefill_once(processes: Callable[..., Process], store_port: int) -> None:
    started = [processes(store_port) for _ in range(PROCESSES)]
    assert [process.line() for process in started] == ["ready"] * PROCESSES
    for process in started:
        process.go()
    results = [process.result() for process in started]
    assert sorted(result["tokens_prefilled"] for result in results) == [0] * (PROCESSES - 1) + [160]
    assert sum(result["stores"] for result in results) == 1
    assert len({result["total"] for result in results}) == 1


def test_ten_prompts_prefill_what_they_share_once(processes: Callable[..., Process], store_port: int) -> None:
    shared = [int(token) for token in np.random.default_rng(10).integers(0, 300, 1000)]
    started = [
        processes(store_port, ids=[*shared, *([290 + number] * (20 + number))]) for number in range(PROCESSES)
    ]
    assert [process.line() for process in started] == ["ready"] * PROCESSES
    for process in started:
        process.go()
    results = [process.result() for process in started]
    alone = [result["tokens_prefilled"] - 1000 for result in results if not result["tokens_restored"]]
    tails = [20 + number for number in range(PROCESSES)]
    assert len(alone) == 1
    assert sorted([*alone, *(r["tokens_prefilled"] for r in results if r["tokens_restored"])]) == tails
    assert {r["tokens_restored"] for r in results} == {0, 1000}


def test_nobody_waits_for_a_beginning_that_is_less_than_half(
    processes: Callable[..., Process], emptied_process: ServerProcess
) -> None:
    from small_models import build, plain

    port = emptied_process.port
    ids = [int(token) for token in np.random.default_rng(11).integers(0, 300, 999)]
    first = processes(port, None, "stops half-way", ids=ids)
    first.go()
    while first.line() != '{"chunk": 64}':
        pass
    cache = PionPromptCache(build(plain), port=port, prefill_chunk_size=256, background=False)
    cache.get_or_prefill([*ids[:300], *ids[301:]])
    assert cache.stats()["tokens_prefilled"] == 998 and first.process.poll() is None


@pytest.mark.parametrize("name", [None, "once"])
def test_the_next_takes_over_when_the_first_dies(
    processes: Callable[..., Process], emptied_process: ServerProcess, name: str | None
) -> None:
    from small_models import build, plain

    port = emptied_process.port
    first = processes(port, name, "stops half-way")
    assert first.line() == "ready"
    first.go()
    assert [first.line(), first.line()] == ['{"chunk": 32}', '{"chunk": 64}']
    cache = PionPromptCache(build(plain), port=port, prefill_chunk_size=32, background=False)
    steps: list[int] = []

    def note(done: int, total: int) -> None:
        steps.append(done)

    second = threading.Thread(
        target=lambda: cache.get_or_prefill(IDS, name, prompt_progress_callback=note), daemon=True
    )
    second.start()
    second.join(1.5)
    assert second.is_alive() and not steps, "it waits as long as the first one lives"
    first.process.kill()
    second.join(30)
    assert not second.is_alive() and steps[-1] == 160
    assert (cache.stats()["tokens_prefilled"], cache.stats()["stores"]) == (160, 1)


def test_nobody_waits_longer_than_asked(
    processes: Callable[..., Process], emptied_process: ServerProcess
) -> None:
    from small_models import build, plain

    port = emptied_process.port
    first = processes(port, None, "stops half-way")
    first.go()
    while first.line() != '{"chunk": 64}':
        pass
    cache = PionPromptCache(
        build(plain), port=port, prefill_chunk_size=32, wait_for_others=0.2, background=False
    )
    cache.get_or_prefill(IDS)
    assert cache.stats()["tokens_prefilled"] == 160
    never = PionPromptCache(
        build(plain), port=port, prefill_chunk_size=32, wait_for_others=0, background=False
    )
    never.get_or_prefill([1, *IDS])
    assert never.stats()["tokens_prefilled"] == 161


def test_threads_that_share_an_object_prefill_once(emptied_process: ServerProcess) -> None:
    from small_models import build, plain

    cache = PionPromptCache(build(plain), port=emptied_process.port, prefill_chunk_size=32, background=False)
    other_missed = threading.Event()

    def note(done: int, total: int) -> None:
        while cache.stats()["misses"] == 1:
            other_missed.wait(0.01)

    threads = [
        threading.Thread(target=cache.get_or_prefill, args=(IDS,), kwargs={"prompt_progress_callback": note})
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (cache.stats()["tokens_prefilled"], cache.stats()["tokens_restored"]) == (160, 160)


def test_a_claimer_that_is_slower_than_this_process_is_not_waited_for(
    emptied_process: ServerProcess,
) -> None:
    from pionkv.client.reuse import name_of
    from small_models import build, plain

    port = emptied_process.port
    cache = PionPromptCache(build(plain), port=port, prefill_chunk_size=32, background=False)
    with StoreClient(port=port) as holder:
        assert holder.redis.execute_command("KV.PREFIX.CLAIM", name_of(cache.model_digest, IDS), 600_000)
        # As if it had been measured: these tokens take a twentieth of a second here.
        cache.prefilled(160, 0.05)
        begin = time.monotonic()
        cache.get_or_prefill(IDS)
        assert time.monotonic() - begin < 30, "it waits for twice what prefilling takes, not for a minute"
    assert cache.stats()["tokens_prefilled"] == 320

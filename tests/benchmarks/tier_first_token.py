"""Time to the first token with a prefix that another server has published; a part of `bench_tier.py`.

Each measurement is a process of its own, which has loaded the real model and nothing else: SmolLM2 answers
after a prefix that it prefills (cold) or gets from a server of the tier through `PionPromptCache`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness import Peer, Row, Spread, short

SUFFIX = 16
COLD, PUBLISH, RESTORE = "cold", "publish", "restore"
FIRST, THROUGH, AGAIN = "the server that published", "another server, read through", "that server again"
SECONDS = 600


def rows(port: int, other: int, forget: Callable[[], None], length: int, rounds: int) -> list[Row]:
    """Rows of a prefix of so many tokens.

    Args:
        port: The server that publishes.
        other: Another server of the tier.
        forget: Has that one forget everything.
        length: Tokens of the prefix.
        rounds: How often, after a first round that only publishes.
    """
    expected, _ = _measured(PUBLISH, port, length)
    seconds: dict[str, list[float]] = {COLD: [], FIRST: [], THROUGH: [], AGAIN: []}
    for _ in range(rounds):
        forget()
        for name, kind, where in (
            (THROUGH, RESTORE, other),
            (AGAIN, RESTORE, other),
            (FIRST, RESTORE, port),
            (COLD, COLD, port),
        ):
            tokens, taken = _measured(kind, where, length)
            assert tokens == expected, f"{name} generates {tokens} instead of {expected}"
            seconds[name].append(taken)
    work = f"first token after {length} tokens of SmolLM2, "
    spreads = {name: Spread.of(found) for name, found in seconds.items()}
    pairs = ((THROUGH, COLD), (AGAIN, COLD), (THROUGH, FIRST), (AGAIN, FIRST))
    return [
        Row(work + name, "s", spreads[name], Peer.of(peer, spreads[peer]),
            short(spreads[peer].median / spreads[name].median))
        for name, peer in pairs
    ]  # fmt: skip


def _measured(kind: str, port: int, length: int) -> tuple[list[int], float]:
    """The tokens that a process of its own generates, and how long the first of them takes."""
    command = [sys.executable, str(Path(__file__)), kind, str(port), str(length)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return found["tokens"], found["seconds"]


def main() -> None:
    """Measure one; the last line of what is printed is the result."""
    from pionkv.kernels.blas import preload_blas

    preload_blas()

    from pionkv.client import PionPromptCache
    from pionkv.client.demo import conversation, smollm
    from pionkv.client.demo.greedy import answer
    from pionkv.client.prefill import default_chunk, prefill

    kind, port, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    loaded = smollm.load()
    ids = conversation.prefix_ids(loaded.tokenizer)
    ids = ids * ((length + SUFFIX) // len(ids) + 1)
    prefix, suffix = ids[:length], ids[length : length + SUFFIX]
    cache = PionPromptCache(loaded.model, port=port, lane="tcp", background=False, always_fetch=True)
    cache.model_digest  # noqa: B018
    answer(loaded.model, prefill(loaded.model, prefix[:32], 32), suffix, tokens=1)
    begin = time.perf_counter()
    if kind == RESTORE:
        caches = cache.get_or_prefill(prefix)
        assert cache.stats()["misses"] == 0, cache.stats()["last_miss"]
    else:
        caches = prefill(loaded.model, prefix, default_chunk())
    seconds = time.perf_counter() - begin
    if kind == PUBLISH:
        cache.keep(prefix, caches, seconds * 1000)
    begin = time.perf_counter()
    tokens = answer(loaded.model, caches, suffix, tokens=1).tokens
    seconds += time.perf_counter() - begin
    print(json.dumps({"tokens": tokens, "seconds": seconds}))


if __name__ == "__main__":
    main()

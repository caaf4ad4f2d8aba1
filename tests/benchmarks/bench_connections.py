"""A large prefix restored over one connection and over several at once.

K/V of the shape of Llama 3.1 8B (32 layers, 8 heads of 128, float16 rows, random; the model is not run):
until its caches are there. Servers of one worker and of four; TCP and a Unix socket. What it brings depends
on the cores: on a machine of two a client opens no second connection unless it is told to.

    python tests/benchmarks/bench_connections.py [--tokens 512 2048] [--workers 1 4] [--rounds 9]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from pionkv.kernels.blas import preload_blas

preload_blas()

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from harness import Row, interleaved, rate_row, write_results  # noqa: E402
from mlx_lm.models.cache import KVCache  # noqa: E402
from pionkv.client import PionPromptCache  # noqa: E402

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "client")]

import small_models  # noqa: E402
from server_process import ServerProcess  # noqa: E402

LLAMA = {"num_hidden_layers": 32, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
CONNECTIONS = (1, 2, 4)
GB = 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    rows: list[Row] = []
    for workers in options.workers:
        with tempfile.TemporaryDirectory(prefix="pionkv-bench-") as folder:
            path = str(Path(folder) / "s")
            flags = ("--workers", str(workers), "--unix-socket", path)
            with closing(ServerProcess(Path(folder) / "data", *flags)) as server:
                server.start()
                for tokens in options.tokens:
                    rows += _compare(tokens, workers, server.port, path, options.rounds)
    write_results("connections", rows)


def _compare(tokens: int, workers: int, port: int, path: str, rounds: int) -> list[Row]:
    model = small_models.build(lambda: small_models.plain(**LLAMA), "float16")
    random = np.random.default_rng(tokens)
    shape = (1, LLAMA["num_key_value_heads"], tokens, LLAMA["head_dim"])
    sides = [
        mx.array(random.standard_normal(shape, np.float32).astype(np.float16))
        for _ in range(2 * LLAMA["num_hidden_layers"])
    ]
    ids = [int(token) for token in random.integers(0, small_models.VOCABULARY, tokens)]
    places: dict[str, dict[str, Any]] = {"tcp": {"port": port}, "unix": {"unix_socket_path": path}}
    arms = {f"{lane}, {count}": (lane, count) for lane in places for count in CONNECTIONS}
    caches = {
        name: PionPromptCache(
            model, lane=lane, connections=count, background=False, always_fetch=True, **places[lane]
        )
        for name, (lane, count) in arms.items()
    }
    pairs = zip(sides[::2], sides[1::2], strict=True)
    caches["tcp, 1"].keep(ids, [KVCache.from_state((keys, values, tokens)) for keys, values in pairs], 1e6)
    for name, cache in caches.items():
        restored = cache.get_or_prefill(ids)
        assert (cache.stats()["hits"], cache.stats()["connections"]) == (1, arms[name][1]), cache.stats()
        arrays = [array for each in restored for array in (each.keys, each.values)]
        for array, side in zip(arrays, sides, strict=True):
            assert mx.array_equal(array[:, :, :tokens], side), name

    def restoring(cache: PionPromptCache) -> Callable[[], object]:
        return lambda: mx.eval([each.state for each in cache.get_or_prefill(ids)])

    seconds = interleaved({name: restoring(cache) for name, cache in caches.items()}, rounds)
    amount = sum(side.nbytes for side in sides) / GB
    for cache in caches.values():
        cache.close()
    work = f"{tokens} tokens, {amount * 1000:.0f} MB, {workers} worker{'s' * (workers > 1)}"
    return [
        rate_row(
            f"{work}: {name} connections",
            "GB/s",
            amount,
            seconds[name],
            ("one connection", seconds[f"{lane}, 1"]),
        )
        for name, (lane, count) in arms.items()
        if count > 1
    ]


if __name__ == "__main__":
    main()

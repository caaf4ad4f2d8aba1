"""Time to the first token with a prefix that is kept somewhere: here, and where people keep them today.

For each length the prefix is prefilled once and kept in every place. Then each round goes through all arms:
prefill it again (cold), copy caches of this process (the ideal), restore it through this project's client out
of files, over a Unix socket and over TCP, load mlx-lm's prompt cache file, and load safetensors that are kept
in Redis. A round of an arm begins with nothing but the model and ends with the first token of a 16-token
suffix. Before any time is looked at, all arms must have generated the same tokens.

Restoring alone is compared, too: until the caches are there, and until they have taken the next 16 tokens,
since caches without room for them are copied then. All arrays are evaluated, and all places hold the same
elements: the file and Redis those of the prefix, this project's pages, too, and its caches room besides. This
is also done for rows stored in 16 bits, which are converted for the model's caches (compared by value), and
for K/V of the shape of Llama 3.2 1B (16 layers, 8 heads of 64, random float16): the model itself is not
needed for that, and not run. With `--stock` the published client, in an environment of its own that
`make conformance` makes, restores from the same server (to caches; its 16-bit rows are half of the others'
bytes).

    python tests/benchmarks/bench_client.py [--quick] [--stock] [--prefixes 256 1024 4096] [--rounds 7]
        [--token-rounds 15]
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from pionkv.kernels.blas import preload_blas

BLAS = preload_blas()

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
import redis  # noqa: E402
import safetensors.numpy  # noqa: E402
from harness import RESULTS, Peer, Row, Spread, interleaved, write_results  # noqa: E402
from mlx_lm.models.cache import KVCache, load_prompt_cache, save_prompt_cache  # noqa: E402
from pionkv.client import PionPromptCache  # noqa: E402
from pionkv.client.demo import conversation, smollm  # noqa: E402
from pionkv.client.demo.greedy import answer  # noqa: E402
from pionkv.client.prefill import default_chunk, prefill  # noqa: E402

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "client"), str(TESTS / "conformance")]

import peers  # noqa: E402
import small_models  # noqa: E402
from server_process import ServerProcess  # noqa: E402

SUFFIX = 16
COMPARED_TOKENS = 8
REDIS_SECONDS = 20
IDEAL, FILE, REDIS = "caches of this process, copied", "mlx-lm's prompt cache file", "safetensors in Redis"
MAP, UNIX, TCP = "map", "unix", "tcp"
STOCK = "pion-vllm-mlx 0.1.6"
HALF = "tcp, stored in 16 bits"
FIRST_TOKEN, RESTORED = "s to first token", "s to restored caches"
USED = f"s to caches that took {SUFFIX} tokens"
LLAMA = {"num_hidden_layers": 16, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
NEAR = round(1 / 1.15, 3)
TARGETS = {
    FIRST_TOKEN: ((MAP, FILE, 1.0), (MAP, IDEAL, NEAR), (TCP, REDIS, None)),
    RESTORED: ((MAP, FILE, 1.0), (TCP, REDIS, 2.0), (TCP, STOCK, 2.0), (HALF, STOCK, None)),
    USED: ((MAP, FILE, 1.0), (MAP, IDEAL, NEAR), (TCP, REDIS, 2.0)),
}
"""Arm, peer, and how many times faster the arm is to be. The first token includes the model's own work on the
suffix, which is the same in all arms."""

Restore = Callable[[], list[Any]]


@dataclass
class Places:
    """Where the prefixes are kept.

    Attributes:
        folder: A folder for files.
        port: This project's server.
        unix: Its Unix socket.
        redis: A client of a Redis server.
    """

    folder: Path
    port: int
    unix: Path
    redis: redis.Redis


def main() -> None:
    options = _options()
    loaded = smollm.load()
    tokens = _tokens(loaded.tokenizer, max(options.prefixes) + SUFFIX)
    print(f"{BLAS.note}; prefixes of {options.prefixes} tokens, {options.rounds} rounds", flush=True)
    rows: list[Row] = []
    with _places() as places:
        for length in options.prefixes:
            rows += _compare(loaded.model, tokens[:length], tokens[length : length + SUFFIX], places, options)
            rows += _compare_shape(length, places, options)
    write_results(
        "client",
        rows,
        directory=Path(options.results)
        if options.results
        else Path(__file__).parents[2] / "docs" / "results",
        model="SmolLM2-135M-Instruct, float32",
        suffix_tokens=SUFFIX,
        prefill_chunk=default_chunk(),
        cold_rounds=options.cold_rounds,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefixes", type=int, nargs="+", default=[256, 1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=7, help="of restoring")
    parser.add_argument(
        "--token-rounds", type=int, default=15, help="to the first token, which takes a fifth more or less"
    )
    parser.add_argument(
        "--cold-rounds", type=int, default=2, help="prefilling takes a minute for 4,096 tokens"
    )
    parser.add_argument("--stock", action="store_true", help="the published client, too")
    parser.add_argument("--quick", action="store_true", help="one short prefix, two rounds")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results file")
    options = parser.parse_args()
    if options.quick:
        options.prefixes, options.rounds, options.token_rounds, options.cold_rounds = [256], 2, 2, 1
    return options


def _tokens(tokenizer: Any, count: int) -> list[int]:
    """So many tokens of the handbook, from its beginning again and again."""
    ids = conversation.prefix_ids(tokenizer)
    return (ids * (count // len(ids) + 1))[:count]


@contextmanager
def _places() -> Iterator[Places]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pionkv-bench-")))
        server = stack.enter_context(
            closing(ServerProcess(folder / "data", "--unix-socket", str(folder / "s")))
        )
        server.start()
        yield Places(folder, server.port, folder / "s", stack.enter_context(_redis(folder / "r")))


@contextmanager
def _redis(socket: Path) -> Iterator[redis.Redis]:
    """A Redis server that keeps everything in memory, on a Unix socket and a TCP port of its own."""
    flags = ("--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no")
    process = Popen(["redis-server", *flags], cwd=socket.parent, stdout=DEVNULL)
    try:
        end = time.monotonic() + REDIS_SECONDS
        while not socket.exists() and time.monotonic() < end:
            time.sleep(0.05)
        with redis.Redis(unix_socket_path=str(socket)) as control:
            control.config_set("port", _free_port())
            port = int(control.config_get("port")["port"])
        with redis.Redis(port=port) as client:
            client.ping()
            yield client
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _compare(
    model: Any, prefix: list[int], suffix: list[int], places: Places, options: argparse.Namespace
) -> list[Row]:
    cold_seconds: list[float] = []
    answer(model, prefill(model, prefix[:32], 32), suffix, tokens=1)

    def prefilled() -> list[Any]:
        return prefill(model, prefix, default_chunk())

    for _ in range(options.cold_rounds):
        begin = time.perf_counter()
        caches = prefilled()
        cold_tokens = answer(model, copy.deepcopy(caches), suffix, tokens=1).tokens
        cold_seconds.append(time.perf_counter() - begin)
        print(f"{len(prefix)} tokens, cold: {cold_seconds[-1]:.2f} s", flush=True)
    arms = _arms(model, prefix, caches, places, cold_seconds[-1] * 1000)
    expected = answer(model, copy.deepcopy(caches), suffix, tokens=COMPARED_TOKENS).tokens
    assert expected[:1] == cold_tokens
    for name, restore in arms.items():
        found = answer(model, restore(), suffix, tokens=COMPARED_TOKENS).tokens
        assert found == expected, f"{name} generates {found} instead of {expected}"
    first = interleaved(
        {name: _to_first_token(model, restore, suffix) for name, restore in arms.items()},
        rounds=options.token_rounds,
    )
    work = f"{len(prefix)} tokens"
    half = _half(model, prefix, caches, places)
    with _stock(prefix, places) if options.stock else nullcontext({}) as stock:
        restoring = _restoring(work, arms, {HALF: _to_caches(half), **stock}, options.rounds)
    return [
        *_rows(work, FIRST_TOKEN, {"cold": cold_seconds, **first}),
        _ratio(work, FIRST_TOKEN, MAP, "cold", first[MAP], cold_seconds, None),
        *restoring,
    ]


def _half(model: Any, prefix: list[int], caches: list[Any], places: Places) -> Restore:
    """Restores the same prefix from 16-bit rows, into caches of the model's own elements."""
    cache = PionPromptCache(model, "fp16", port=places.port, lane="tcp", background=False, always_fetch=True)
    cache.keep(prefix, caches, 1e6)
    restore = _ours(cache, prefix)
    for ours, exact in zip(restore(), map(_exact, caches), strict=True):
        for one, other in ((ours.keys, exact.keys), (ours.values, exact.values)):
            assert mx.array_equal(one[:, :, : len(prefix)], other.astype(mx.float16).astype(other.dtype))
    return restore


def _compare_shape(length: int, places: Places, options: argparse.Namespace) -> list[Row]:
    """Restoring alone, of random K/V in the shape of Llama 3.2 1B."""
    model = small_models.build(lambda: small_models.plain(**LLAMA), "float16")
    random = np.random.default_rng(length)
    shape = (1, LLAMA["num_key_value_heads"], length, LLAMA["head_dim"])

    def side() -> Any:
        return mx.array(random.standard_normal(shape, np.float32).astype(np.float16))

    caches = [KVCache.from_state((side(), side(), length)) for _ in range(LLAMA["num_hidden_layers"])]
    prefix = [int(token) for token in random.integers(0, small_models.VOCABULARY, length)]
    arms = _arms(model, prefix, caches, places, 1e6)
    for name, restore in arms.items():
        for ours, stored in zip(restore(), caches, strict=True):
            for one, other in ((ours.keys, stored.keys), (ours.values, stored.values)):
                assert mx.array_equal(one[:, :, :length], other), name
    return _restoring(f"{length} tokens, Llama 3.2 1B's shape", arms, {}, options.rounds)


def _restoring(
    work: str, arms: dict[str, Restore], more: dict[str, Callable[[], object]], rounds: int
) -> list[Row]:
    restored = interleaved({**{name: _to_caches(each) for name, each in arms.items()}, **more}, rounds)
    used = interleaved({name: _to_used_caches(each) for name, each in arms.items()}, rounds)
    return [*_rows(work, RESTORED, restored), *_rows(work, USED, used)]


@contextmanager
def _stock(prefix: list[int], places: Places) -> Iterator[dict[str, Callable[[], object]]]:
    """An arm for the published client, which restores in a process and an environment of its own."""
    driver = [str(peers.stock_python()), str(peers.DRIVERS / "stock_timing.py")]
    process = Popen([*driver, str(places.port), "smollm-float32"], stdin=PIPE, stdout=PIPE, text=True)

    def ask(line: str) -> str:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    try:
        assert ask(json.dumps(prefix)) == "ready"
        yield {STOCK: lambda: float(ask(""))}
    finally:
        process.kill()
        process.wait()


def _to_first_token(model: Any, restore: Restore, suffix: list[int]) -> Callable[[], object]:
    return lambda: answer(model, restore(), suffix, tokens=1)


def _to_caches(restore: Restore) -> Callable[[], object]:
    return lambda: mx.eval([cache.state for cache in restore()])


def _to_used_caches(restore: Restore) -> Callable[[], object]:
    def run() -> None:
        caches = restore()
        for cache in caches:
            shape = (1, cache.keys.shape[1], SUFFIX, cache.keys.shape[3])
            cache.update_and_fetch(*(mx.ones(shape, cache.keys.dtype) for _ in range(2)))
        mx.eval([cache.state for cache in caches])

    return run


def _arms(
    model: Any, prefix: list[int], caches: list[Any], places: Places, milliseconds: float
) -> dict[str, Restore]:
    name = f"{len(prefix)} of {len(caches)} layers"
    file = places.folder / f"{name}.safetensors"
    save_prompt_cache(str(file), [_exact(cache) for cache in caches])
    places.redis.set(name, _safetensors(caches))
    lanes = {
        MAP: PionPromptCache(model, port=places.port, lane="map", background=False, always_fetch=True),
        UNIX: PionPromptCache(
            model, unix_socket_path=str(places.unix), lane="unix", background=False, always_fetch=True
        ),
        TCP: PionPromptCache(model, port=places.port, lane="tcp", background=False, always_fetch=True),
    }
    lanes[TCP].keep(prefix, caches, milliseconds)
    return {
        IDEAL: lambda: copy.deepcopy(caches),
        **{lane: _ours(cache, prefix) for lane, cache in lanes.items()},
        FILE: lambda: load_prompt_cache(str(file)),
        REDIS: lambda: _from_redis(places.redis, name),
    }


def _ours(cache: PionPromptCache, prefix: list[int]) -> Restore:
    """Restore on a new connection."""
    cache.model_digest  # noqa: B018

    def restore() -> list[Any]:
        cache.close()
        found = cache.get_or_prefill(prefix)
        assert cache.stats()["misses"] == 0, cache.stats()["last_miss"]
        return found

    return restore


def _exact(cache: KVCache) -> KVCache:
    """Without the room for more, which mlx-lm's file would hold, too."""
    keys, values = (mx.contiguous(side[:, :, : cache.offset]) for side in (cache.keys, cache.values))
    return KVCache.from_state((keys, values, cache.offset))


def _safetensors(caches: list[KVCache]) -> bytes:
    sides = {
        f"{side}.{layer}": np.array(array)
        for layer, cache in enumerate(map(_exact, caches))
        for side, array in (("k", cache.keys), ("v", cache.values))
    }
    return safetensors.numpy.save(sides)


def _from_redis(client: redis.Redis, key: str) -> list[KVCache]:
    data: Any = client.get(key)
    sides = {name: mx.array(array) for name, array in safetensors.numpy.load(data).items()}
    layers = range(len(sides) // 2)
    return [
        KVCache.from_state((sides[f"k.{layer}"], sides[f"v.{layer}"], sides[f"k.{layer}"].shape[2]))
        for layer in layers
    ]


def _rows(work: str, unit: str, seconds: dict[str, list[float]]) -> list[Row]:
    """Each arm, and those that have a peer against it."""
    arms = [Row(f"{work}: {name}", unit, Spread.of(each)) for name, each in seconds.items()]
    return arms + [
        _ratio(work, unit, arm, peer, seconds[arm], seconds[peer], target)
        for arm, peer, target in TARGETS[unit]
        if peer in seconds
    ]


def _ratio(
    work: str,
    unit: str,
    arm: str,
    peer: str,
    ours: list[float],
    theirs: list[float],
    target: float | None,
) -> Row:
    mine, other = Spread.of(ours), Spread.of(theirs)
    ratio = round(other.median / mine.median, 3)
    holds = None if target is None else ratio >= target
    return Row(f"{work}: {arm} against {peer}", unit, mine, Peer.of(peer, other), ratio, target, holds)


if __name__ == "__main__":
    main()

"""Every class of mlx-lm's caches, restored: the same tokens, and the same bits, as a run without a store."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step, maybe_quantize_kv_cache
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache
from pionkv.client import PionPromptCache
from pionkv.client.cache_states import dump, load
from pionkv.client.errors import BadReply, NotStored
from small_models import MODELS, VOCABULARY, WINDOW, build, plain, sliding

CHUNK = 50
IDS = [int(token) for token in np.random.default_rng(5).integers(0, VOCABULARY, 300)]
SUFFIX = [5, 17, 200]


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    return {name: build(make) for name, make in MODELS.items()}


def prefilled(model: Any, ids: list[int], chunk: int = CHUNK) -> list[Any]:
    caches = make_prompt_cache(model)
    for start in range(0, len(ids), chunk):
        mx.eval(model(mx.array(ids[start : start + chunk])[None], cache=caches))
    return caches


def quantised(model: Any, ids: list[int], bits: int, group: int) -> list[Any]:
    """As mlx-lm prefills with `kv_bits`."""
    caches = make_prompt_cache(model)
    for start in range(0, len(ids), CHUNK):
        model(mx.array(ids[start : start + CHUNK])[None], cache=caches)
        maybe_quantize_kv_cache(caches, 0, group, bits)
        mx.eval([cache.state for cache in caches])
    return caches


def answer(model: Any, caches: list[Any], tokens: int = 64) -> list[tuple[int, bytes]]:
    steps = generate_step(mx.array(SUFFIX), model, prompt_cache=caches, max_tokens=tokens)
    return [(int(token), np.array(logprobs.astype(mx.float32)).tobytes()) for token, logprobs in steps]


def tokens(run: list[tuple[int, bytes]]) -> list[int]:
    return [token for token, _ in run]


def cache_for(model: Any, port: int, **options: Any) -> PionPromptCache:
    return PionPromptCache(model, port=port, prefill_chunk_size=CHUNK, **{"background": False, **options})


@pytest.mark.parametrize("name", MODELS)
def test_64_tokens_after_a_restore_are_those_of_a_run_without_it(
    built: dict[str, Any], store_port: int, name: str
) -> None:
    model, ids = built[name], IDS[:150]
    expected = answer(model, prefilled(model, ids))
    assert len(set(tokens(expected))) > 20
    cache_for(model, store_port).get_or_prefill(ids)
    second = cache_for(model, store_port)
    restored = second.get_or_prefill(ids)
    stats = second.stats()
    assert (stats["hits"], stats["tokens_restored"], stats["tokens_prefilled"]) == (1, 150, 0)
    assert [type(cache) for cache in restored] == [type(cache) for cache in make_prompt_cache(model)]
    assert answer(model, restored) == expected


@pytest.mark.parametrize("name", MODELS)
def test_a_longer_prompt_continues_a_stored_one(built: dict[str, Any], store_port: int, name: str) -> None:
    model, head = built[name], [1, 2, 3, *IDS[:97]]
    cache_for(model, store_port).get_or_prefill(head)
    second = cache_for(model, store_port)
    longer = [*head, *IDS[100:180]]
    continued = second.get_or_prefill(longer)
    assert (second.stats()["tokens_restored"], second.stats()["tokens_prefilled"]) == (100, 80)
    assert answer(model, continued) == answer(model, prefilled(model, longer))
    third = cache_for(model, store_port)
    third.get_or_prefill(longer)
    assert third.stats()["tokens_restored"] == 180


@pytest.mark.parametrize("name", sorted({*MODELS} - {"llama"}))
def test_a_state_is_of_no_use_before_its_position(built: dict[str, Any], store_port: int, name: str) -> None:
    model, ids = built[name], [4, 5, *IDS[:98]]
    cache_for(model, store_port).get_or_prefill(ids, f"{name} named")
    second = cache_for(model, store_port)
    for name_given in (None, f"{name} named"):
        shorter = second.get_or_prefill(ids[:70], name_given)
        assert answer(model, shorter, 8) == answer(model, prefilled(model, ids[:70]), 8)
    stats = second.stats()
    assert (stats["tokens_restored"], stats["misses"], stats["stores"]) == (0, 2, 1)
    assert stats["last_miss"] == "the name stands for 100 tokens, which is of no use after 70"


@pytest.mark.parametrize("chunk", [CHUNK, 300])
@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 257])
def test_windows_around_their_size(built: dict[str, Any], store_port: int, length: int, chunk: int) -> None:
    model, ids = built["gemma3"], [chunk % VOCABULARY, *IDS[: length - 1]]
    options: dict[str, Any] = {"port": store_port, "prefill_chunk_size": chunk, "publish_after": 1}
    PionPromptCache(model, **{"background": False, **options}).get_or_prefill(ids)
    second = PionPromptCache(model, **{"background": False, **options})
    restored = second.get_or_prefill(ids)
    assert second.stats()["tokens_restored"] == length
    assert restored[0].keys.shape[2] == min(length, WINDOW)
    assert tokens(answer(model, restored)) == tokens(answer(model, prefilled(model, ids, chunk)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (8, 64)])
def test_packed_caches_are_attached_as_they_are(store_port: int, dtype: str, bits: int, group: int) -> None:
    model, ids = build(plain, dtype), IDS[:130]
    options: dict[str, Any] = {"kv_bits": bits, "kv_group_size": group}
    first = cache_for(model, store_port, **options)
    cold = first.get_or_prefill(ids)
    assert first.stats()["stores"] == 1, first.stats()
    second = cache_for(model, store_port, **options)
    warm = second.get_or_prefill(ids)
    assert second.stats()["tokens_restored"] == 130
    for ours, theirs in zip(warm, cold, strict=True):
        assert type(ours) is QuantizedKVCache and (ours.bits, ours.group_size) == (bits, group)
        for one, other in zip((*ours.keys, *ours.values), (*theirs.keys, *theirs.values), strict=True):
            assert one.dtype == other.dtype and mx.array_equal(one, other[..., :130, :])
    assert answer(model, warm) == answer(model, quantised(model, ids, bits, group))


def test_packed_rows_are_those_of_a_plain_session(store_port: int) -> None:
    """What a server packed from 16-bit rows is what mlx-lm packs."""
    model, ids = build(plain, "float16"), [9, *IDS[:90]]
    PionPromptCache(
        model, "mlx4g64", port=store_port, prefill_chunk_size=100, background=False
    ).get_or_prefill(ids, "packed")
    attached = PionPromptCache(model, port=store_port, kv_bits=4, prefill_chunk_size=100, background=False)
    warm = attached.get_or_prefill(ids, "packed")
    assert attached.stats()["hits"] == 1
    for ours, plain_cache in zip(warm, prefilled(model, ids, 100), strict=True):
        theirs = plain_cache.to_quantized(group_size=64, bits=4)
        for one, other in zip((*ours.keys, *ours.values), (*theirs.keys, *theirs.values), strict=True):
            assert mx.array_equal(one, other[..., :91, :])


def filled(cache: Any, steps: list[int]) -> Any:
    """The cache after so many rows at once, for each step."""
    for step in steps:
        rows = mx.random.normal((1, 2, step, 32))
        cache.update_and_fetch(rows, rows + 1)
    return cache


def kept(cache: Any) -> Iterator[np.ndarray[Any, Any]]:
    """What further rows see."""
    for array in cache.update_and_fetch(mx.zeros((1, 2, 1, 32)), mx.zeros((1, 2, 1, 32))):
        yield np.sort(np.array(array.astype(mx.float32)), axis=2)


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("steps", [[5], [16], [40], [7, 20], [10, *[1] * 13], [40, *[1] * 5], [1] * 60])
def test_a_ring_in_any_state_goes_on_as_before(steps: list[int], keep: int) -> None:
    ring = filled(RotatingKVCache(max_size=16, keep=keep), steps)
    again = load(dump(ring, sum(steps)), "RotatingKVCache", sum(steps))
    assert (again.offset, again.keep, again.max_size) == (sum(steps), keep, 16)
    for ours, theirs in zip(kept(again), kept(ring), strict=True):
        assert np.array_equal(ours, theirs)


def test_lists_within_lists() -> None:
    inner = CacheList(filled(KVCache(), [30]), filled(RotatingKVCache(16), [30]))
    cache = CacheList(inner, filled(QuantizedKVCache(32, 8), [30]), KVCache())
    again = load(dump(cache, 30), "CacheList", 30)
    assert [type(child) for child in again.caches] == [CacheList, QuantizedKVCache, KVCache]
    assert mx.array_equal(again[0][0].keys, inner[0].keys[:, :, :30])
    assert again[2].empty() and again[1].bits == 8


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint32", "int8"])
def test_any_bits_come_back(dtype: str) -> None:
    keys = mx.random.randint(0, 255, (1, 1, 3, 8)).astype(mx.uint8).view(mx.uint8)
    cache = KVCache.from_state((mx.repeat(keys, 8, axis=3).view(getattr(mx, dtype)), keys, 2))
    again = load(dump(CacheList(cache), 2), "CacheList", 2)[0]
    assert again.keys.dtype == getattr(mx, dtype)
    assert mx.array_equal(again.keys.view(mx.uint8), cache.keys[:, :, :2].view(mx.uint8))


def test_damaged_and_other_states_are_told_apart() -> None:
    blob = dump(filled(RotatingKVCache(16), [30]), 30)
    for kind, count in (("ArraysCache", 30), ("RotatingKVCache", 29)):
        with pytest.raises(NotStored, match="a RotatingKVCache after 30 tokens"):
            load(blob, kind, count)
    for damaged in (b"", blob[:3], blob[:40], blob[:-1], b"\xff" * 50):
        with pytest.raises(BadReply):
            load(damaged, "RotatingKVCache", 30)


def test_a_sliding_model_still_generates_when_the_server_is_gone(built: dict[str, Any]) -> None:
    cache = PionPromptCache(build(sliding), port=1, prefill_chunk_size=CHUNK, background=False)
    assert answer(built["gemma3"], cache.get_or_prefill(IDS[:99]), 8) == answer(
        built["gemma3"], prefilled(built["gemma3"], IDS[:99]), 8
    )

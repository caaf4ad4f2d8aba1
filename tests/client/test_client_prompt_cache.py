"""`PionPromptCache` with small models on a real server: the same bits, no aliasing, and what it reports."""

import hashlib
import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, make_prompt_cache
from pionkv.client import PionPromptCache, StoreClient
from pionkv.kernels import FORMATS, FormatError, LayerSpec, UnknownFormat

Tiny = Callable[..., Any]

IDS = [int(token) for token in np.random.default_rng(3).integers(0, 300, 150)]
SUFFIX = [5, 17, 200]
FORMATS_BY_NAME = [name for name, known in FORMATS.items() if known.family != "rope" and known.group <= 64]


def logits(model: Any, caches: list[Any], ids: list[int] = SUFFIX) -> mx.array:
    return model(mx.array(ids)[None], cache=caches)


def same_bits(one: mx.array, other: mx.array) -> bool:
    return one.dtype == other.dtype and bool(mx.array_equal(one.view(mx.uint8), other.view(mx.uint8)))


def used(caches: list[KVCache]) -> list[mx.array]:
    return [
        mx.contiguous(side[:, :, : cache.offset, :])
        for cache in caches
        for side in (cache.keys, cache.values)
    ]


def pair(model: Any, port: int, **options: Any) -> tuple[PionPromptCache, PionPromptCache]:
    options.setdefault("prefill_chunk_size", 64)
    options.setdefault("lane", "tcp")
    return PionPromptCache(model, port=port, **{"background": False, **options}), PionPromptCache(
        model, port=port, **{"background": False, **options}
    )


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 150])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_restored_prefix_has_the_same_bits(
    tiny: Tiny, store_port: int, namespace: str, dtype: str, tokens: int
) -> None:
    model = tiny(dtype)
    first, second = pair(model, store_port)
    cold = first.get_or_prefill(IDS[:tokens], namespace)
    assert second.lookup(namespace)
    warm = second.get_or_prefill(IDS[:tokens], namespace)
    assert (first.stats()["hits"], second.stats()["hits"]) == (0, 1)
    for ours, theirs in zip(used(warm), used(cold), strict=True):
        assert same_bits(ours, theirs)
    assert [type(cache) for cache in warm] == [KVCache] * 4
    assert [cache.offset for cache in warm] == [tokens] * 4
    assert all(cache.is_trimmable() for cache in warm)
    assert same_bits(logits(model, warm), logits(model, cold))


def test_a_restored_prefix_generates_what_a_run_without_the_cache_does(
    tiny: Tiny, store_port: int, namespace: str
) -> None:
    model = tiny()
    plain = make_prompt_cache(model)
    for start in range(0, len(IDS), 64):
        mx.eval(model(mx.array(IDS[start : start + 64])[None], cache=plain))
    first, second = pair(model, store_port)
    first.get_or_prefill(IDS, namespace)
    warm = second.get_or_prefill(IDS, namespace)

    def run(caches: list[Any]) -> list[tuple[int, bytes]]:
        steps = generate_step(mx.array(SUFFIX), model, prompt_cache=caches, max_tokens=20)
        return [(int(token), np.array(logprobs).tobytes()) for token, logprobs in steps]

    assert run(warm) == run(plain)


def test_restores_share_no_memory(tiny: Tiny, store_port: int, namespace: str) -> None:
    model = tiny()
    first, second = pair(model, store_port)
    first.get_or_prefill(IDS, namespace)
    expected = logits(model, second.get_or_prefill(IDS, namespace))
    caches = [second.get_or_prefill(IDS, namespace) for _ in range(2)]
    for cache in caches[0]:
        cache.trim(100)
    mx.eval(logits(model, caches[0], IDS[:90]))
    assert same_bits(logits(model, caches[1]), expected)
    assert same_bits(logits(model, second.get_or_prefill(IDS, namespace)), expected)


@pytest.mark.parametrize("protect", [0, 1])
@pytest.mark.parametrize("vquant", FORMATS_BY_NAME)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_format_restores_what_the_server_decodes(
    tiny: Tiny, store_port: int, namespace: str, dtype: str, vquant: str, protect: int
) -> None:
    model = tiny(dtype)
    first, second = pair(model, store_port, vquant=vquant, boundary_protect=protect)
    first.get_or_prefill(IDS, namespace)
    assert first.stats()["last_unpublished"] is None
    warm = second.get_or_prefill(IDS, namespace)
    assert second.stats()["hits"] == 1
    with StoreClient(port=store_port) as client:
        stored = client.fetch_all(namespace, 0, len(IDS))
    for cache, sides in zip(warm, stored, strict=True):
        for array, rows in zip((cache.keys, cache.values), sides, strict=True):
            assert array.dtype == getattr(mx, dtype)
            expected = mx.array(rows).reshape(len(IDS), 2, 32).transpose(1, 0, 2)[None].astype(array.dtype)
            assert same_bits(mx.contiguous(array[:, :, : len(IDS)]), mx.contiguous(expected))


@pytest.mark.parametrize("vquant", ["kivi4", "kivi2"])
@pytest.mark.parametrize("lane", ["auto", "tcp"])
def test_groups_of_tokens_are_restored_with_their_tail(
    tiny: Tiny, store_port: int, namespace: str, vquant: str, lane: str
) -> None:
    """Rows in closed groups come back as they are decoded, the newest ones with the bits they had."""
    ids, model = IDS * 2, tiny("float16")
    first, second = pair(model, store_port, vquant=vquant, lane=lane)
    cold = first.get_or_prefill(ids, namespace)
    warm = second.get_or_prefill(ids, namespace)
    assert first.stats()["last_unpublished"] is None and second.stats()["hits"] == 1
    with StoreClient(port=store_port) as client:
        stored = client.fetch_all(namespace, 0, len(ids))
    for before, cache, sides in zip(cold, warm, stored, strict=True):
        arrays = ((before.keys, cache.keys), (before.values, cache.values))
        for (exact, array), rows in zip(arrays, sides, strict=True):
            expected = mx.array(rows).reshape(len(ids), 2, 32).transpose(1, 0, 2)[None].astype(array.dtype)
            assert same_bits(mx.contiguous(array[:, :, : len(ids)]), mx.contiguous(expected))
            assert same_bits(mx.contiguous(array[:, :, 160:300]), mx.contiguous(exact[:, :, 160:300]))
            difference = mx.abs(array[:, :, :160] - exact[:, :, :160]).max().item()
            assert 0 < difference < mx.abs(exact).max().item()


def test_keys_and_values_of_other_shapes(tiny: Tiny, store_port: int, namespace: str) -> None:
    model = tiny("float16", layers=3, kv_heads=1, head_dim=48)
    first, second = pair(model, store_port)
    cold = first.get_or_prefill(IDS, namespace)
    assert same_bits(logits(model, second.get_or_prefill(IDS, namespace)), logits(model, cold))


def test_long_runs_are_cut_to_what_a_bulk_string_holds(
    tiny: Tiny, store_port: int, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pionkv.client.shape.BULK_BYTES", 40 * 256)
    model = tiny()
    for vquant in ("auto", "mlx4g32"):
        first, second = pair(model, store_port, vquant=vquant)
        first.get_or_prefill(IDS, namespace + vquant)
        cut = second.get_or_prefill(IDS, namespace + vquant)
        assert (first.stats()["stores"], second.stats()["hits"]) == (1, 1)
        monkeypatch.undo()
        whole = second.get_or_prefill(IDS, namespace + vquant)
        assert all(map(same_bits, used(cut), used(whole)))
        monkeypatch.setattr("pionkv.client.shape.BULK_BYTES", 40 * 256)


def test_a_shorter_prefix_of_a_stored_one_is_restored_and_a_longer_one_is_not(
    tiny: Tiny, store_port: int, namespace: str
) -> None:
    model = tiny()
    first, second = pair(model, store_port)
    first.get_or_prefill(IDS[:64], namespace)
    assert [cache.offset for cache in second.get_or_prefill(IDS[:40], namespace)] == [40] * 4
    longer = second.get_or_prefill(IDS[:65], namespace)
    assert second.stats()["last_miss"] == "only 64 of 65 rows are stored on the K side"
    assert [cache.offset for cache in longer] == [65] * 4
    assert second.stats()["stores"] == 1
    third = PionPromptCache(model, port=store_port, background=False)
    assert [cache.offset for cache in third.get_or_prefill(IDS[:65], namespace)] == [65] * 4
    assert third.stats()["hits"] == 1


def test_rows_of_another_format_are_a_miss_with_a_reason(tiny: Tiny, store_port: int, namespace: str) -> None:
    first, _ = pair(tiny("float16"), store_port)
    first.get_or_prefill(IDS, namespace)
    other, _ = pair(tiny("bfloat16"), store_port)
    assert [cache.keys.dtype for cache in other.get_or_prefill(IDS, namespace)] == [mx.bfloat16] * 4
    stats = other.stats()
    assert stats["last_miss"] == "K of layer 0 is stored as fp16 of 64, asked bf16 of 64"
    assert str(stats["last_unpublished"]).startswith("SCHEMAMISMATCH")
    assert (stats["misses"], stats["refused"], stats["stores"]) == (1, 1, 0)


def test_a_prefix_of_another_depth_is_a_miss(tiny: Tiny, store_port: int, namespace: str) -> None:
    pair(tiny(layers=4), store_port)[0].get_or_prefill(IDS, namespace)
    other = pair(tiny(layers=3), store_port)[0]
    other.get_or_prefill(IDS, namespace)
    assert other.stats()["last_miss"] == "stored with 4 layers, asked 3"


@pytest.mark.parametrize("missing", ["all", "values", "last layer", "last row"])
def test_a_prefix_that_is_not_whole_is_a_miss_and_is_completed(
    tiny: Tiny, store_port: int, namespace: str, missing: str
) -> None:
    model = tiny()
    layers = 3 if missing == "last layer" else 4
    rows = np.ones((len(IDS) - (missing == "last row"), 64), np.float32)
    with StoreClient(port=store_port) as client:
        client.register(namespace, LayerSpec("fp32", 64))
        for side in {"all": "", "values": "k"}.get(missing, "kv"):
            for layer in range(layers):
                client.store(f"{namespace}_p{side}", layer, 0, rows)
    first, second = pair(model, store_port)
    cold = first.get_or_prefill(IDS, namespace)
    assert (first.stats()["misses"], first.stats()["stores"]) == (1, 1)
    assert same_bits(logits(model, second.get_or_prefill(IDS, namespace)), logits(model, cold))
    assert second.stats()["hits"] == 1


def test_a_value_that_no_row_can_hold_costs_only_the_publication(
    tiny: Tiny, store_port: int, namespace: str
) -> None:
    model = tiny()
    model.layers[2].self_attn.v_proj.weight = model.layers[2].self_attn.v_proj.weight * 1e9
    cache = pair(model, store_port, vquant="fp16")[0]
    assert len(cache.get_or_prefill(IDS, namespace)) == 4
    assert "beyond" in str(cache.stats()["last_unpublished"])
    assert not cache.lookup(namespace)
    assert len(cache.get_or_prefill(IDS, namespace + "2")) == 4


def test_a_prefix_is_published_at_the_miss_that_reaches_the_threshold(
    tiny: Tiny, store_port: int, namespace: str
) -> None:
    cache = pair(tiny(), store_port, admission_threshold=2)[0]
    for expected in ((1, 0), (1, 1), (1, 1)):
        cache.get_or_prefill(IDS, namespace)
        assert (cache.stats()["admission_skips"], cache.stats()["stores"]) == expected
    assert cache.stats()["hits"] == 1


def test_the_report(tiny: Tiny, store_port: int, namespace: str) -> None:
    cache = pair(tiny(), store_port)[0]
    before = cache.stats()
    assert (before["hit_rate"], before["admission_threshold"], before["bytes_sent"]) == (0, 1, 0)
    for _ in range(4):
        cache.get_or_prefill(IDS, namespace)
    stats = cache.stats()
    assert (stats["hits"], stats["misses"], stats["hit_rate"]) == (3, 1, 0.75)
    moved = len(IDS) * 4 * 2 * 64 * 4
    assert moved < int(stats["bytes_sent"] or 0) < moved * 1.05
    assert 3 * moved < int(stats["bytes_received"] or 0) < 3 * moved * 1.05
    assert min(stats[name] for name in ("fetch_ms_total", "store_ms_total", "last_prefill_ms")) > 0  # type: ignore[type-var]
    assert (stats["last_miss"], stats["last_unpublished"], stats["unsupported"]) == ("not stored", None, None)


def test_prefilling_is_cut_into_chunks_and_says_how_far_it_is(
    tiny: Tiny, store_port: int, namespace: str
) -> None:
    cache = pair(tiny(), store_port, prefill_chunk_size=60)[0]
    steps: list[tuple[int, int]] = []
    for _ in range(2):
        cache.get_or_prefill(IDS, namespace, prompt_progress_callback=lambda *step: steps.append(step))
    assert steps == [(60, 150), (120, 150), (150, 150)]


@pytest.mark.parametrize("name", ["n", None])
def test_a_model_that_cannot_be_stored_is_prefilled(tiny: Tiny, name: str | None) -> None:
    class Odd(KVCache):
        pass

    model = tiny(layers=2)
    model.make_cache = lambda: [Odd(), KVCache()]
    cache = PionPromptCache(model, port=1, prefill_chunk_size=64, background=False)
    caches = cache.get_or_prefill(IDS, name)
    assert [each.offset for each in caches] == [150, 150]
    stats = cache.stats()
    assert str(stats["unsupported"]).startswith("layer 0 keeps a Odd, stored can be KVCache")
    assert (stats["unavailable"], stats["misses"]) == (0, 0)


def test_an_empty_prefix_asks_nobody(tiny: Tiny) -> None:
    cache = PionPromptCache(tiny(), port=1, background=False)
    assert [each.empty() for each in cache.get_or_prefill([], "n")] == [True] * 4
    assert cache.stats()["unavailable"] == 0


def test_many_threads_share_one_object(tiny: Tiny, store_port: int, namespace: str) -> None:
    model = tiny()
    pair(model, store_port)[0].get_or_prefill(IDS, namespace)
    cache = pair(model, store_port)[0]
    found: list[list[Any]] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.get_or_prefill(IDS, namespace))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert cache.stats()["hits"] == 8
    expected = used(found[0])
    for caches in found[1:]:
        assert all(map(same_bits, used(caches), expected))


def test_a_namespace_is_a_hash_of_its_parts() -> None:
    assert PionPromptCache.make_namespace("a", "bé") == hashlib.sha256("a|bé".encode()).hexdigest()[:32]


def test_the_constructor_takes_what_the_original_takes_in_its_order(tiny: Tiny) -> None:
    with pytest.warns(UserWarning, match="stage2"):
        cache = PionPromptCache(tiny(), "fp16", "127.0.0.1", 1, True, 2, 1, 32, True, background=False)
    assert cache.stats()["admission_threshold"] == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"vquant": "turbo9"}, UnknownFormat),
        ({"boundary_protect": -1}, ValueError),
        ({"admission_threshold": 0}, ValueError),
        ({"prefill_chunk_size": 0}, ValueError),
        ({"port": 70_000}, ValueError),
        ({"url": "redis://h:0"}, ValueError),
        ({"deadline": 0}, ValueError),
    ],
)
def test_mistakes_are_refused_by_the_constructor(
    tiny: Tiny, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        PionPromptCache(tiny(), **{"port": 1, "background": False, **options})
    with pytest.raises(FormatError, match="16"):
        PionPromptCache(tiny(kv_heads=1, head_dim=16), "mlx4g32", port=1, background=False)


def test_without_a_model_only_lookup_works(store_port: int) -> None:
    with PionPromptCache(port=store_port, background=False) as cache:
        assert not cache.lookup("nothing of that name")
        with pytest.raises(RuntimeError, match="without a model|needs a model"):
            cache.get_or_prefill(IDS, "n")


@pytest.mark.parametrize("place", [0, 77, 149])
def test_a_name_that_was_kept_for_other_tokens_is_a_miss(
    tiny: Tiny, store_port: int, namespace: str, place: int
) -> None:
    model = tiny()
    first, second = pair(model, store_port)
    expected = logits(model, first.get_or_prefill(IDS, namespace))
    edited = [*IDS[:place], 299, *IDS[place + 1 :]]
    plain = PionPromptCache(model, port=1, prefill_chunk_size=64, background=False).get_or_prefill(
        edited, "n"
    )
    assert same_bits(logits(model, second.get_or_prefill(edited, namespace)), logits(model, plain))
    stats = second.stats()
    reason = f"the name stands for other tokens: {IDS[place]} at {place}, asked 299"
    assert (stats["hits"], stats["last_miss"], stats["last_unpublished"]) == (0, reason, reason)
    assert same_bits(logits(model, second.get_or_prefill(IDS, namespace)), expected)
    assert (stats["stores"], second.stats()["hits"]) == (0, 1)


def test_a_prefix_that_was_stored_without_its_tokens_is_trusted(
    tiny: Tiny, store_port: int, namespace: str
) -> None:
    rows = np.ones((len(IDS), 64), np.float32)
    with StoreClient(port=store_port) as client:
        client.register(namespace, LayerSpec("fp32", 64))
        for side in "kv":
            for layer in range(4):
                client.store(f"{namespace}_p{side}", layer, 0, rows)
    cache = PionPromptCache(tiny(), port=store_port, background=False)
    assert float(cache.get_or_prefill(IDS, namespace)[3].values[:, :, : len(IDS)].min()) == 1
    assert cache.stats()["hits"] == 1

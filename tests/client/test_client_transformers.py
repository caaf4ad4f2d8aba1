"""`TransformersCache` on models of transformers with random weights; runs where torch is installed.

What does not need torch, the bits and the wire, is in test_client_head_rows.py.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install pionkv[transformers]")

import transformers  # noqa: E402
from pionkv.client import TransformersCache  # noqa: E402
from pionkv.client import buffers as buffering  # noqa: E402
from pionkv.client.digest import differences  # noqa: E402
from pionkv.client.torch_model import generate, identify  # noqa: E402
from transformers import DynamicCache  # noqa: E402

Store = Callable[..., TransformersCache]
DTYPES = ["float32", "float16", "bfloat16"]
SIZES = {
    "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "max_position_embeddings": 512,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def llama(dtype: str = "float32", seed: int = 5, **changes: Any) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(**{**SIZES, "initializer_range": 0.3, **changes})
    return transformers.LlamaForCausalLM(config).eval().to(getattr(torch, dtype))


@pytest.fixture
def store(store_port: int) -> Store:
    def make(model: Any, **options: Any) -> TransformersCache:
        return TransformersCache(
            model, url=f"redis://127.0.0.1:{store_port}", **{"background": False, **options}
        )

    return make


@pytest.fixture
def ids(request: pytest.FixtureRequest) -> list[int]:
    """90 tokens that no other test has."""
    generator = torch.Generator().manual_seed(sum(request.node.nodeid.encode()))
    return [int(token) for token in torch.randint(3, 300, (90,), generator=generator)]


def generated(model: Any, ids: list[int], cache: Any, tokens: int = 20) -> list[int]:
    found = generate(model, ids, cache, {"max_new_tokens": tokens, "do_sample": False})
    return [int(token) for token in found[0]]


def bits(cache: Any) -> list[Any]:
    return [
        tensor.contiguous().view(torch.uint8).numpy().tobytes()
        for layer in cache.layers
        for tensor in (layer.keys, layer.values)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_process_restores_the_same_bits(dtype: str, store: Store, ids: list[int]) -> None:
    first = store(llama(dtype))
    assert first.restore(ids) == (None, 0)
    filled = first.get_or_prefill(ids[:-1])
    assert first.stats()["stores"] == 1
    # As another process has it: the same weights, another object.
    model = llama(dtype)
    second = store(model)
    assert second.model_digest == first.model_digest
    restored, tokens = second.restore(ids)
    assert tokens == len(ids) - 1 and isinstance(restored, DynamicCache)
    assert bits(restored) == bits(filled)
    assert generated(model, ids, restored) == generated(model, ids, DynamicCache(config=model.config))


def test_memory_of_restored_rows_never_shows_in_another_cache(
    store: Store, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffering, "WORTH_BYTES", 1)
    first = store(llama())
    wanted = bits(first.get_or_prefill(ids))
    caches = [first.restore(ids)[0] for _ in range(3)]
    assert first.buffers.kept > 0
    for layer in caches[0].layers:
        layer.keys.zero_()
    del caches[0]
    caches.append(first.restore(ids)[0])
    assert all(bits(each) == wanted for each in caches)
    first.close()
    assert first.buffers.kept == 0
    with pytest.raises(ValueError, match="at least 0"):
        store(llama(), kept_bytes=-1)


def test_a_longer_prompt_shares_what_is_stored(store: Store, ids: list[int]) -> None:
    model = llama("bfloat16")
    with store(model, background=True) as cache:
        cache.get_or_prefill(ids[:40])
        assert cache.flush(10)
        longer = cache.get_or_prefill(ids)
        assert longer.get_seq_length() == len(ids) and cache.flush(10)
    stats = cache.stats()
    assert (stats["tokens_restored"], stats["tokens_prefilled"], stats["stores"]) == (40, 90, 2)
    shorter, tokens = store(model).restore([*ids[:60], 299, 298])
    assert tokens == 60 and shorter is not None and shorter.get_seq_length() == 60


def test_two_that_miss_the_same_compute_it_once(store: Store, ids: list[int]) -> None:
    model, begun, go = llama(), threading.Event(), threading.Event()
    first, second = store(model, prefill_chunk_size=32), store(model)

    def hold(done: int, total: int) -> None:
        begun.set()
        assert go.wait(60)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first.get_or_prefill, ids, prompt_progress_callback=hold)
        assert begun.wait(60)
        other = pool.submit(second.get_or_prefill, ids)
        while not second.stats()["misses"]:
            begun.wait(0.01)
        go.set()
        assert bits(one.result()) == bits(other.result())
    assert (first.stats()["tokens_prefilled"], second.stats()["tokens_prefilled"]) == (90, 0)
    assert second.stats()["tokens_restored"] == 90


def test_a_conversation_goes_on_where_it_ended(store: Store, ids: list[int]) -> None:
    model = llama()
    cache = store(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = cache.generate(ids, max_new_tokens=20, do_sample=False)
    assert answer[0].tolist() == generated(model, ids, DynamicCache(config=model.config))
    later = store(model)
    turn = [*answer[0].tolist(), 7, 8, 9]
    again = later.generate(turn, max_new_tokens=5, do_sample=False)
    assert again[0].tolist() == generated(model, turn, DynamicCache(config=model.config), 5)
    assert later.stats()["tokens_restored"] == len(ids) + 19
    with pytest.raises(ValueError, match="empty"):
        cache.generate([])


def test_what_is_computed_sooner_than_fetched_is_not_fetched(store_port: int) -> None:
    # 3,000 rows of 3 layers are over a mebibyte; each look at the clock is a second later than the last.
    ticks = iter(range(1_000_000))
    model, long = llama(), [int(token) for token in torch.randint(3, 300, (3000,))]
    url = f"redis://127.0.0.1:{store_port}"
    options = {
        "url": url, "background": False, "wait_for_others": 0,
        "deadline": 1e6, "silence": 1e6, "connect_timeout": 1e6,
    }  # fmt: skip
    cache = TransformersCache(model, clock=lambda: float(next(ticks)), **options)
    cache.get_or_prefill(long)
    assert cache.restore(long)[1] == 3000
    stats = cache.stats()
    assert stats["prefill_tokens_per_second"] == 3000 and stats["link_bytes_per_second"]
    cache.get_or_prefill(long)
    stats = cache.stats()
    assert (stats["fetches_declined"], stats["tokens_prefilled"]) == (1, 6000)
    assert "to fetch, 1 s to prefill" in str(stats["last_miss"])
    always = TransformersCache(model, clock=lambda: float(next(ticks)), always_fetch=True, **options)
    always.get_or_prefill([*long, 7])
    always.get_or_prefill(long)
    assert always.stats()["fetches_declined"] == 0


def test_a_server_that_is_not_there(ids: list[int]) -> None:
    cache = TransformersCache(llama(), url="redis://127.0.0.1:1", background=False)
    assert cache.get_or_prefill(ids).get_seq_length() == len(ids)
    assert cache.stats()["unavailable"] and not cache.stats()["stores"]


def test_layers_of_another_kind_are_refused_by_name(store: Store, ids: list[int]) -> None:
    torch.manual_seed(1)
    sliding = transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=16)).eval()
    cache = store(sliding)
    assert cache.stats()["unsupported"] == (
        "layer 0 keeps a DynamicSlidingWindowLayer, stored can be DynamicLayer"
    )
    assert cache.get_or_prefill(ids).get_seq_length() == len(ids) and cache.model_digest == ""


def test_a_cache_that_is_not_the_models_is_not_stored(store: Store, ids: list[int]) -> None:
    cache = store(llama())
    other = store(llama("float16")).get_or_prefill(ids)
    assert not cache.keep(ids, other)
    assert cache.stats()["last_unpublished"] == "the cache is that of another model"
    held = cache.get_or_prefill(ids[:30])
    assert not cache.keep(ids, held)
    assert cache.stats()["last_unpublished"] == "the cache holds 30 tokens, not 90"
    held.batch_repeat_interleave(2)
    assert not cache.keep(ids[:30], held)
    assert cache.stats()["last_unpublished"] == "the cache is of 2 sequences, stored can be 1"


class Tokenizer:
    def __init__(self, template: str, **words: int) -> None:
        self.chat_template = template
        self._words = words

    def get_vocab(self) -> dict[str, int]:
        return self._words


def adapted(model: Any) -> Any:
    model.peft_config = {"default": {"r": 4, "target_modules": {"q_proj", "v_proj"}}}
    return model


def test_every_change_is_told_by_its_field() -> None:
    def digest(model: Any, **options: Any) -> str:
        return identify(
            model, **{"tokenizer": Tokenizer("t", a=1), "caches": 1, "format": 1, **options}
        ).digest

    base = digest(llama())
    assert digest(llama()) == base
    changed = {
        "weights": digest(llama(seed=6)),
        "rope": digest(llama(rope_parameters={"rope_type": "default", "rope_theta": 5e5})),
        "architecture": digest(llama(rms_norm_eps=1e-5)),
        "adapter": digest(adapted(llama())),
        "tokenizer": digest(llama(), tokenizer=Tokenizer("t", a=2)),
        "template": digest(llama(), tokenizer=Tokenizer("u", a=1)),
        "caches": digest(llama(), caches=2),
        "format": digest(llama(), format=2),
    }
    for field, found in changed.items():
        assert differences(base, found) == (field,), field
    assert differences(base, digest(llama("float16"))) == ("weights",)
    moved = llama()
    with torch.no_grad():
        moved.model.embed_tokens.weight[17, 13] = 9.0
    assert differences(digest(moved, full=True), digest(llama(), full=True)) == ("weights",)

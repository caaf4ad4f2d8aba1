"""Where mlx-lm's attention is replaced: only there, only as long as asked, and never when it has moved."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx_lm.models.base as base
import pytest
from mlx_lm.models import gemma2, gemma3_text, gpt_oss, llama
from mlx_lm.models.cache import KVCache
from pionkv.client import PionPromptCache, PrefixAttention, SeamMoved, UnsupportedModel
from pionkv.client.attended_cache import AttendedCache
from pionkv.client.attention_check import hooked
from pionkv.client.attention_seam import NAME, check_seam
from small_models import MODELS, VOCABULARY, build, plain

ORIGINAL = base.scaled_dot_product_attention
GEMMA2 = {
    "model_type": "gemma2", "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
}  # fmt: skip


def cache_of(model: Any, **options: Any) -> PionPromptCache:
    return PionPromptCache(model, port=1, **options)


def test_every_module_that_imported_it_gets_it_and_gives_it_back() -> None:
    late = ModuleType("made_by_somebody_else")
    setattr(late, NAME, ORIGINAL)
    sys.modules[late.__name__] = late
    try:
        with hooked():
            ours = base.scaled_dot_product_attention
            assert ours is not ORIGINAL
            for module in (llama, gemma3_text, late):
                assert vars(module)[NAME] is ours
            with hooked():
                assert vars(llama)[NAME] is ours
            assert vars(llama)[NAME] is ours
        for module in (base, llama, gemma3_text, late):
            assert vars(module)[NAME] is ORIGINAL
    finally:
        del sys.modules[late.__name__]


def test_it_is_given_back_after_an_error_and_other_caches_do_not_notice() -> None:
    model = build(plain)
    expected = model(mx.array([[1, 2, 3]]))
    with pytest.raises(KeyError), hooked():
        assert mx.array_equal(model(mx.array([[1, 2, 3]])), expected)
        raise KeyError
    assert vars(llama)[NAME] is ORIGINAL


@pytest.mark.parametrize(
    ("there", "text"),
    [
        (None, "there is no mlx_lm.models.base.scaled_dot_product_attention of mlx-lm "),
        (len, "is a builtin_function_or_method, not a function"),
        (lambda queries, keys, values, cache, scale, mask, sinks=None: None, "has been replaced by .*lambda"),
    ],
)
def test_what_moved_is_named_and_nothing_is_changed(
    there: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there is None:
        monkeypatch.delattr(base, NAME)
    else:
        monkeypatch.setattr(base, NAME, there)
    with pytest.raises(SeamMoved, match=text), hooked():
        pytest.fail("it was entered")
    assert vars(llama)[NAME] is ORIGINAL


def test_other_parameters_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(queries: Any, keys: Any, values: Any, scale: float, mask: Any) -> None: ...

    moved.__module__ = base.__name__
    monkeypatch.setattr(base, NAME, moved)
    with pytest.raises(SeamMoved, match="takes queries, keys, values, scale, mask; known is queries, keys"):
        check_seam()


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (plain, {"kv_bits": 8}, "kv_bits=8: quantised caches"),
        (MODELS["mamba"], {}, "no layer keeps rows, all keep ArraysCache"),
        (lambda: gemma2.Model(gemma2.ModelArgs(**GEMMA2)), {}, "layer 0 calls mlx-lm's attention 0 times"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(make: Any, options: Any, text: str) -> None:
    with pytest.raises(UnsupportedModel, match=text):
        PrefixAttention(cache_of(build(make), **options))
    assert base.scaled_dot_product_attention is ORIGINAL


def test_sinks_are_refused_by_name() -> None:
    arguments = gpt_oss.ModelArgs(
        model_type="gpt_oss", num_hidden_layers=2, hidden_size=32, intermediate_size=32, head_dim=16,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=2, num_experts_per_tok=1,
        vocab_size=VOCABULARY, layer_types=["sliding_attention", "full_attention"], sliding_window=16,
    )  # fmt: skip
    with pytest.raises(UnsupportedModel, match="layer 1 attends to sinks"):
        PrefixAttention(cache_of(gpt_oss.Model(arguments)))


def test_layers_that_share_keys_are_refused_by_name() -> None:
    class Sharing(llama.Model):
        def make_cache(self) -> Any:
            return [KVCache()]

        def __call__(self, inputs: Any, cache: Any = None, input_embeddings: Any = None) -> Any:
            return super().__call__(inputs, cache * 2)

    with pytest.raises(UnsupportedModel, match="2 layers have 1 caches: some share keys and values"):
        PrefixAttention(cache_of(Sharing(plain().args)))


class Nowhere:
    """A prefix of no rows at all."""

    tokens = 3
    rows = None


def test_what_its_caches_cannot_do_they_say() -> None:
    cache = AttendedCache(Nowhere(), 5, 0)  # type: ignore[arg-type]
    assert cache.offset == 3 and not cache.empty() and cache.trim(2) == 0 and cache.nbytes == 0
    with pytest.raises(UnsupportedModel, match="kv_bits=4"):
        cache.to_quantized(bits=4)
    with pytest.raises(UnsupportedModel, match="a batch of 2"):
        AttendedCache.merge([cache, cache])
    with pytest.raises(UnsupportedModel, match="layer 5 keeps a KVCache and attends within a window"):
        cache.make_mask(2, window_size=8)
    rows = mx.zeros((2, 2, 1, 8))
    with pytest.raises(UnsupportedModel, match="2 sequences at once"):
        cache.attention(ORIGINAL, rows, rows, rows, 1.0, None, None)
    one = rows[:1]
    with pytest.raises(UnsupportedModel, match="a mask of its own"):
        cache.attention(ORIGINAL, one, one, one, 1.0, mx.zeros((1, 1)), None)


def test_outside_of_the_context_nothing_is_given() -> None:
    attention = PrefixAttention(cache_of(build(plain)))
    with pytest.raises(RuntimeError, match="enter the context first"):
        attention.get_or_prefill([1, 2, 3])

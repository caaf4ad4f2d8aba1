"""Prefixes that nobody named: the longest stored one is restored, the rest prefilled and published."""

import warnings
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tokenizers
from mlx_lm.generate import generate_step, stream_generate
from mlx_lm.models.cache import make_prompt_cache
from pionkv.client import PionPromptCache, PromptStore, StoreClient
from pionkv.client.reuse import name_of
from server_process import ServerProcess
from transformers import PreTrainedTokenizerFast

Tiny = Callable[..., Any]
CHUNK = 64
BOS, EOS = 0, 1


@pytest.fixture
def ids(request: pytest.FixtureRequest) -> list[int]:
    """150 tokens that no other test has."""
    seed = list(request.node.nodeid.encode())
    return [int(token) for token in np.random.default_rng(seed).integers(2, 300, 150)]


def cache_for(model: Any, port: int, **options: Any) -> PionPromptCache:
    return PionPromptCache(model, port=port, prefill_chunk_size=CHUNK, **{"background": False, **options})


def answer(model: Any, caches: list[Any], tokens: int = 12) -> list[int]:
    steps = generate_step(mx.array([5, 17, 200]), model, prompt_cache=caches, max_tokens=tokens)
    return [int(token) for token, _ in steps]


def plain(model: Any, ids: list[int]) -> list[Any]:
    caches = make_prompt_cache(model)
    for start in range(0, len(ids), CHUNK):
        mx.eval(model(mx.array(ids[start : start + CHUNK])[None], cache=caches))
    return caches


def reuse(cache: PionPromptCache) -> tuple[Any, ...]:
    stats = cache.stats()
    return stats["tokens_restored"], stats["tokens_prefilled"], stats["stores"]


@pytest.mark.parametrize("shared", [1, 63, 64, 65, 128, 149, 150])
def test_what_is_shared_is_restored_and_the_rest_prefilled(
    tiny: Tiny, store_port: int, ids: list[int], shared: int
) -> None:
    model = tiny()
    cache_for(model, store_port).get_or_prefill(ids)
    asked = [*ids[:shared], *(299 - token for token in ids[:60])]
    second = cache_for(model, store_port)
    caches = second.get_or_prefill(asked)
    common = next((i for i in range(len(ids)) if ids[i] != asked[i]), len(ids))
    assert reuse(second) == (common, len(asked) - common, 1)
    assert [each.offset for each in caches] == [len(asked)] * 4
    assert answer(model, caches) == answer(model, plain(model, asked))
    third = cache_for(model, store_port)
    third.get_or_prefill(asked)
    assert reuse(third) == (len(asked), 0, 0)


@pytest.mark.parametrize("length", [1, 2, 64, 149])
def test_a_shorter_prompt_than_the_stored_one(
    tiny: Tiny, store_port: int, ids: list[int], length: int
) -> None:
    model = tiny()
    cache_for(model, store_port).get_or_prefill(ids)
    second = cache_for(model, store_port)
    assert answer(model, second.get_or_prefill(ids[:length])) == answer(model, plain(model, ids[:length]))
    assert reuse(second) == (length, 0, 0)


def test_an_empty_prompt_asks_nobody(tiny: Tiny) -> None:
    cache = cache_for(tiny(), 1)
    assert all(each.empty() for each in cache.get_or_prefill([]))
    assert cache.stats()["unavailable"] == 0


def test_few_new_tokens_are_not_published(tiny: Tiny, store_port: int, ids: list[int]) -> None:
    model = tiny()
    cache_for(model, store_port, publish_after=16).get_or_prefill(ids[:100])
    second = cache_for(model, store_port, publish_after=16)
    second.get_or_prefill(ids[:115])
    assert reuse(second) == (100, 15, 0)
    assert second.stats()["last_unpublished"] == "only 15 of 115 tokens were new, publish_after is 16"
    second.get_or_prefill(ids[:116])
    assert reuse(second) == (200, 31, 1)


def test_token_types_make_no_difference(tiny: Tiny, store_port: int, ids: list[int]) -> None:
    model = tiny()
    cache_for(model, store_port).get_or_prefill(ids)
    for kind in (np.array(ids, np.int64), np.array(ids, np.uint16), mx.array(ids), tuple(ids)):
        second = cache_for(model, store_port)
        second.get_or_prefill(kind)
        assert reuse(second)[0] == 150


def test_another_model_misses_with_a_reason(
    tiny: Tiny, emptied_process: ServerProcess, ids: list[int]
) -> None:
    model, store_port = tiny(), emptied_process.port
    cache_for(model, store_port).get_or_prefill(ids)
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[1].mlp.up_proj.weight * 1.5
    other = cache_for(model, store_port)
    other.get_or_prefill(ids)
    assert other.stats()["last_miss"] == "150 of 150 tokens are stored of another model: weights"
    int8 = cache_for(tiny(), store_port, vquant="int8")
    int8.get_or_prefill(ids[:80])
    assert int8.stats()["last_miss"] == "80 of 80 tokens are stored of another model: format"
    new = cache_for(tiny(), store_port)
    new.get_or_prefill([299, 298])
    assert new.stats()["last_miss"] == "not stored"


def test_a_prefix_that_is_dropped_or_half_there_is_not_found(
    tiny: Tiny, store_port: int, ids: list[int]
) -> None:
    model = tiny()
    first = cache_for(model, store_port)
    first.get_or_prefill(ids)
    name = name_of(first.model_digest, ids)
    with StoreClient(port=store_port) as client:
        client.redis.execute_command("V.DROP", f"{name}_pv")
        second = cache_for(model, store_port)
        second.get_or_prefill(ids)
        assert reuse(second) == (0, 150, 1)
        client.drop_prefix(name)
    third = cache_for(model, store_port, admission_threshold=2)
    third.get_or_prefill(ids)
    assert reuse(third) == (0, 150, 0) and third.stats()["admission_skips"] == 1


def test_a_named_prefix_is_found_by_its_tokens_too(tiny: Tiny, store_port: int, ids: list[int]) -> None:
    model = tiny()
    cache_for(model, store_port).get_or_prefill(ids, "named by somebody")
    second = cache_for(model, store_port)
    second.get_or_prefill([*ids, 7])
    assert reuse(second) == (150, 1, 0)


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    """Words w2 to w299, <s> and </s>; a text gets <s> first."""
    vocabulary = {"<s>": BOS, "</s>": EOS, **{f"w{number}": number for number in range(2, 300)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="</s>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    tokenizer.decoder = tokenizers.decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        chat_template="<s> {% for m in messages %}{{ m['content'] }} {% endfor %}w9",
    )


def text(ids: list[int]) -> str:
    return " ".join(f"w{token}" for token in ids)


def test_a_store_generates_what_mlx_lm_does(tiny: Tiny, store_port: int, words: Any, ids: list[int]) -> None:
    model = tiny()
    expected = [r.token for r in stream_generate(model, words, [BOS, *ids], max_tokens=10)]
    for round_, restored in enumerate((0, 150)):
        with PromptStore(model, words, port=store_port, prefill_chunk_size=2048, background=False) as store:
            assert [r.token for r in store.stream(text(ids), max_tokens=10)] == expected
            assert reuse(store.cache)[0] == restored, round_
    with PromptStore(model, words, port=store_port, prefill_chunk_size=2048, background=False) as store:
        said = store.generate([BOS, *ids, 44], max_tokens=10)
        assert reuse(store.cache)[:2] == (150, 1), "the last token is never restored"
        assert said == "".join(r.text for r in stream_generate(model, words, [BOS, *ids, 44], max_tokens=10))
        messages = [{"role": "user", "content": text(ids)}]
        assert store.tokens(messages) == [BOS, *ids, 9]


def test_short_prompts(tiny: Tiny, words: Any) -> None:
    store = PromptStore(tiny(), words, port=1, background=False)
    assert [r.token for r in store.stream([7], max_tokens=3)] == [
        r.token for r in stream_generate(tiny(), words, [7], max_tokens=3)
    ]
    assert store.cache.stats()["unavailable"] == 0
    with pytest.raises(ValueError, match="the prompt is empty"):
        next(store.stream([]))


def test_special_tokens_are_put_once(tiny: Tiny, words: Any) -> None:
    store = PromptStore(tiny(), words, port=1, background=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.tokens("w5 w6") == store.tokens("<s> w5 w6") == [BOS, 5, 6]
        assert store.tokens("w5 w6", prefix=[BOS, 4]) == [BOS, 4, 5, 6]
        assert store.tokens([5, 6], prefix=np.array([BOS, 4])) == [BOS, 4, 5, 6]
    with pytest.warns(UserWarning, match="begins with BOS twice"):
        assert store.tokens([BOS, BOS, 5]) == [BOS, BOS, 5]
    with pytest.warns(UserWarning, match="after the prefix begins with BOS"):
        assert store.tokens([BOS, 5], prefix=[BOS, 4]) == [BOS, 4, BOS, 5]


def sent(cache: PionPromptCache) -> int:
    return int(cache.stats()["bytes_sent"] or 0)


def test_what_is_stored_already_is_not_sent_again(tiny: Tiny, store_port: int, ids: list[int]) -> None:
    model = tiny()
    row = 4 * 2 * 64 * 4  # layers, sides, elements, bytes
    first, second = cache_for(model, store_port), cache_for(model, store_port)
    first.get_or_prefill(ids[:100])
    assert 100 * row < sent(first) < 115 * row
    second.get_or_prefill(ids)
    assert second.stats()["stores"] == 1 and 50 * row < sent(second) < 65 * row
    with StoreClient(port=store_port) as client:
        client.drop_prefix(name_of(first.model_digest, ids[:100]))
    third = cache_for(model, store_port)
    assert answer(model, third.get_or_prefill(ids)) == answer(model, plain(model, ids))
    assert reuse(third)[0] == 150


def test_a_parent_that_goes_before_the_child_is_published(
    tiny: Tiny, store_port: int, ids: list[int]
) -> None:
    model = tiny()
    first, second = cache_for(model, store_port), cache_for(model, store_port)
    first.get_or_prefill(ids[:100])

    def drop(done: int, total: int) -> None:
        with StoreClient(port=store_port) as client:
            client.drop_prefix(name_of(first.model_digest, ids[:100]))

    second.get_or_prefill(ids, prompt_progress_callback=drop)
    assert second.stats()["stores"] == 1
    third = cache_for(model, store_port)
    assert answer(model, third.get_or_prefill(ids)) == answer(model, plain(model, ids))
    assert reuse(third)[0] == 150


def test_a_conversation_sends_and_computes_only_what_is_new(
    tiny: Tiny, store_port: int, words: Any, ids: list[int]
) -> None:
    """Ten turns: each prompt is all that was said, and a few words more."""
    model = tiny()
    said = list(ids)
    for turn in range(10):
        before = len(said)
        said += [20 + turn] * 20
        expected = stream_generate(model, words, said, max_tokens=20, prefill_step_size=CHUNK)
        with PromptStore(model, words, port=store_port, prefill_chunk_size=CHUNK, background=False) as store:
            answers = [r.token for r in store.stream(said, max_tokens=20)]
            assert answers == [r.token for r in expected]
            if turn:
                assert reuse(store.cache) == (before, 19, 2)
                assert sent(store.cache) < 50 * 4 * 2 * 64 * 4
        said += answers


@pytest.mark.parametrize("length", [20, 40])
def test_an_answer_is_kept_with_its_prompt(
    tiny: Tiny, store_port: int, words: Any, ids: list[int], length: int
) -> None:
    model = tiny()
    with PromptStore(model, words, port=store_port, background=False) as store:
        answers = [r.token for r in store.stream(ids, max_tokens=length)]
    with PromptStore(model, words, port=store_port, background=False) as store:
        store.cache.get_or_prefill([*ids, *answers])
        assert reuse(store.cache)[:2] == (150 + len(answers), 0)
    with PromptStore(model, words, port=store_port, keep_answers=False, background=False) as store:
        list(store.stream([299, *ids], max_tokens=length))
        assert store.cache.stats()["stores"] == 1


def test_an_explanation_says_what_is_stored_and_changes_nothing(
    tiny: Tiny, emptied_process: ServerProcess, ids: list[int]
) -> None:
    model, port = tiny(), emptied_process.port
    cache = cache_for(model, port)
    assert cache.explain(ids)["reason"] == "not stored"
    cache.get_or_prefill(ids[:100])
    found = cache.explain(ids)
    assert (found["tokens"], found["stored"], found["reason"], found["others"]) == (150, 100, "", [])
    assert found["namespace"] == name_of(cache.model_digest, ids[:100])
    other = cache_for(model, port, vquant="int8").explain(ids)
    assert (other["stored"], other["others"]) == (0, [{"stored": 100, "differs": ["format"]}])
    assert cache.explain([])["reason"] == "no tokens"
    assert cache_for(model, 1).explain(ids)["reason"].startswith("[Errno")
    assert cache.stats()["stores"] == 1


def test_restoring_without_prefilling(tiny: Tiny, store_port: int, ids: list[int]) -> None:
    model = tiny()
    cache = cache_for(model, store_port)
    assert cache.restore(ids) == (None, 0)
    caches = plain(model, ids)
    assert not cache.keep([*ids, 7], caches)
    assert cache.stats()["last_unpublished"] == "caches hold 150 tokens, not 151"
    assert not cache.keep(ids, caches[:1])
    cache.prefilled(150, 0.3)
    assert cache.keep(ids, caches)
    restored, tokens = cache.restore([*ids, 7], beyond=149)
    assert restored is not None and tokens == 150
    assert answer(model, restored) == answer(model, plain(model, ids))
    assert cache.restore([*ids, 7], beyond=150) == (None, 0)
    assert cache.stats()["last_miss"] == "150 of 151 tokens are stored, more than 150 were asked"
    assert cache.stats()["tokens_restored"] == 150

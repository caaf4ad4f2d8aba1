"""Generation with mlx-lm while the prefix stays in a real server: the tokens of the un-cached run, always."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models import gemma3_text
from mlx_lm.models.cache import make_prompt_cache
from pionkv.client import PionPromptCache, PrefixAttention, StoreClient
from pionkv.client.attended_cache import AttendedCache
from server_process import ServerProcess
from small_models import MODELS, VOCABULARY, WINDOW, build, plain

Start = Callable[..., ServerProcess]
PREFIX = [(7 * token + 3) % VOCABULARY for token in range(150)]
SUFFIX = [5, 9, 200, 17, 3]
TOKENS = 24


def grouped() -> Any:
    return plain(num_attention_heads=8, num_key_value_heads=2, head_dim=32, num_hidden_layers=3)


def scaled() -> Any:
    """Its scores are not scaled by the root of the head dim, and its windows are short."""
    return gemma3_text.Model(
        gemma3_text.ModelArgs(
            model_type="gemma3_text", hidden_size=32, num_hidden_layers=4, intermediate_size=64,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, vocab_size=VOCABULARY,
            sliding_window=WINDOW, sliding_window_pattern=2, query_pre_attn_scalar=7,
        )
    )  # fmt: skip


KINDS = {name: MODELS[name] for name in ("llama", "gemma3", "qwen3-next", "llama4")}
KINDS |= {"grouped": grouped, "scaled": scaled}


def answer(model: Any, caches: list[Any], suffix: Sequence[int] = SUFFIX, tokens: int = TOKENS) -> list[int]:
    return list(steps(model, caches, suffix, tokens))


def steps(model: Any, caches: list[Any], suffix: Sequence[int], tokens: int = TOKENS) -> Iterator[int]:
    found = generate_step(mx.array(list(suffix)), model, prompt_cache=caches, max_tokens=tokens)
    return (int(token) for token, _ in found)


def uncached(model: Any, suffix: Sequence[int] = SUFFIX) -> list[int]:
    caches = make_prompt_cache(model)
    model(mx.array([PREFIX]), cache=caches)
    return answer(model, caches, suffix)


def stored(model: Any, server: ServerProcess, ids: Sequence[int] = PREFIX, **options: Any) -> PionPromptCache:
    """A client whose prefix is published."""
    cache = PionPromptCache(model, port=server.port, always_fetch=True, background=False, **options)
    cache.get_or_prefill(ids)
    assert cache.stats()["stores"] == 1
    return cache


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_are_those_of_the_un_cached_run(kind: str, emptied_process: ServerProcess) -> None:
    model = build(KINDS[kind])
    expected = uncached(model)
    cache = stored(model, emptied_process)
    with PrefixAttention(cache) as attention:
        caches = attention.get_or_prefill(PREFIX)
        assert any(isinstance(each, AttendedCache) for each in caches)
        assert answer(model, caches) == expected
    layers = sum(isinstance(each, AttendedCache) for each in caches)
    assert (attention.attended, attention.local) == (1, 0)
    assert cache.attend_query_calls == layers * (TOKENS + 2) and len(set(expected)) > 5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_logits_in_half_precision(dtype: str, emptied_process: ServerProcess) -> None:
    model = build(grouped, dtype)
    whole = model(mx.array([PREFIX + SUFFIX]))[:, len(PREFIX) :].astype(mx.float32)
    with PrefixAttention(stored(model, emptied_process)) as attention:
        caches = attention.get_or_prefill(PREFIX)
        found = model(mx.array([SUFFIX]), cache=caches).astype(mx.float32)
        assert caches[0].attention is not None and caches[0].offset == len(PREFIX) + len(SUFFIX)
    scale = float(mx.abs(whole).max())
    room = 0.02 if dtype == "float16" else 0.1
    assert float(mx.abs(found - whole).max()) < room * scale


def test_a_shorter_prefix_is_attended_to_and_the_rest_prefilled(emptied_process: ServerProcess) -> None:
    model = build(grouped)
    cache = stored(model, emptied_process, PREFIX[:100])
    with PrefixAttention(cache) as attention:
        caches = attention.get_or_prefill(PREFIX)
        assert [each.offset for each in caches] == [len(PREFIX)] * 3 and attention.attended == 1
        assert answer(model, caches) == uncached(model)


def test_nothing_stored_is_prefilled_and_published(emptied_process: ServerProcess) -> None:
    model = build(grouped)
    cache = PionPromptCache(model, port=emptied_process.port, background=False)
    with PrefixAttention(cache) as attention:
        assert answer(model, attention.get_or_prefill(PREFIX)) == uncached(model)
        assert (attention.attended, attention.local, attention.last_local) == (0, 1, "not stored")
        assert answer(model, attention.get_or_prefill(PREFIX)) == uncached(model)
        assert (attention.attended, attention.local) == (1, 1)


def test_a_named_prefix_is_not_attended_to_as_its_rows_may_become_others(
    emptied_process: ServerProcess,
) -> None:
    model = build(grouped)
    cache = PionPromptCache(model, port=emptied_process.port, background=False, always_fetch=True)
    cache.get_or_prefill(PREFIX, "named")
    with PrefixAttention(cache) as attention:
        assert answer(model, attention.get_or_prefill(PREFIX)) == uncached(model)
    assert attention.local == 1 and "does not stand for its tokens" in str(attention.last_local)
    assert cache.stats()["hits"] == 1


def test_copies_and_trimmed_caches_go_on_by_themselves(emptied_process: ServerProcess) -> None:
    model = build(grouped)
    with PrefixAttention(stored(model, emptied_process)) as attention:
        caches = attention.get_or_prefill(PREFIX)
        twin = copy.deepcopy(caches)
        assert answer(model, caches) == uncached(model)
        assert [each.trim(1000) for each in caches] == [len(SUFFIX) + TOKENS] * 3
        other = [8, 100, 44]
        assert answer(model, caches, other) == answer(model, twin, other) == uncached(model, other)
        mx.eval([each.state for each in caches])


def test_caches_are_not_used_up_outside_of_the_context(emptied_process: ServerProcess) -> None:
    model = build(grouped)
    attention = PrefixAttention(stored(model, emptied_process))
    with attention:
        caches = attention.get_or_prefill(PREFIX)
        with pytest.raises(RuntimeError, match="entered already"):
            attention.__enter__()
    with pytest.raises(RuntimeError, match="go on within PrefixAttention"):
        model(mx.array([SUFFIX]), cache=caches)
    with attention:
        assert answer(model, caches) == uncached(model)


@pytest.mark.parametrize("kind", ["grouped", "gemma3", "llama4"])
def test_a_server_that_is_killed_in_the_middle_of_an_answer(kind: str, start_server: Start) -> None:
    model, server = build(KINDS[kind]), start_server()
    cache = stored(model, server)
    with PrefixAttention(cache) as attention:
        caches = attention.get_or_prefill(PREFIX)
        going = steps(model, caches, SUFFIX)
        found = [next(going) for _ in range(6)]
        server.kill()
        found += going
    assert found == uncached(model)
    assert (attention.attended, attention.local) == (1, 1) and attention.last_local
    twice = copy.deepcopy(caches)
    assert all(each.offset == len(PREFIX) + len(SUFFIX) + TOKENS for each in twice)


def test_a_server_that_hangs_in_the_middle_of_an_answer(start_server: Start) -> None:
    model, server = build(grouped), start_server()
    cache = stored(model, server, deadline=3.0)
    with PrefixAttention(cache) as attention:
        going = steps(model, attention.get_or_prefill(PREFIX), SUFFIX)
        found = [next(going) for _ in range(6)]
        assert server._process is not None
        server._process.send_signal(signal.SIGSTOP)
        found += going
        server._process.send_signal(signal.SIGCONT)
    assert found == uncached(model) and attention.local == 1


def test_rows_are_fetched_where_the_server_only_declines_to_attend(start_server: Start) -> None:
    model, server = build(grouped), start_server("--password", "pw")
    owner = stored(model, server, password="pw")
    with StoreClient(port=server.port, password="pw") as admin:
        rules = ("on", ">pw", "~*", "+@all", "-attend.prefix.query")
        admin.redis.execute_command("ACL", "SETUSER", "eve", *rules)
    cache = PionPromptCache(model, port=server.port, username="eve", password="pw", always_fetch=True)
    with PrefixAttention(cache) as attention:
        assert answer(model, attention.get_or_prefill(PREFIX)) == uncached(model)
    assert attention.local == 1 and "NOPERM" in str(attention.last_local)
    stats = cache.stats()
    assert (stats["tokens_restored"], stats["tokens_prefilled"]) == (len(PREFIX), 0)
    owner.close()


def test_a_prefix_that_is_dropped_in_the_middle_is_prefilled(emptied_process: ServerProcess) -> None:
    model = build(grouped)
    cache = stored(model, emptied_process)
    with PrefixAttention(cache) as attention, StoreClient(port=emptied_process.port) as other:
        going = steps(model, attention.get_or_prefill(PREFIX), SUFFIX)
        found = [next(going) for _ in range(6)]
        other.redis.execute_command("FLUSHALL")
        found += going
    assert found == uncached(model) and attention.local == 1


def test_queries_cross_the_wire_instead_of_rows(emptied_process: ServerProcess) -> None:
    model = build(grouped)
    ids = PREFIX * 8
    stored(model, emptied_process, ids).close()
    cache = PionPromptCache(model, port=emptied_process.port, always_fetch=True, lane="tcp")
    with PrefixAttention(cache) as attention:
        caches = attention.get_or_prefill(ids)
        model(mx.array([[3]]), cache=caches)
        mx.eval([each.state for each in caches])
    moved = cache.stats()
    rows = len(ids) * 3 * 2 * 64 * 4
    assert attention.attended == 1
    assert int(moved["bytes_received"] or 0) + int(moved["bytes_sent"] or 0) < rows / 20

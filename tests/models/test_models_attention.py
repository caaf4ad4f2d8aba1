"""The real model over a prefix that stays in the server: the answers of the un-cached run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from pionkv.client import PionPromptCache, PrefixAttention
from pionkv.client.demo.conversation import prefix_ids, questions, suffix_ids
from pionkv.client.prefill import default_chunk, prefill
from server_process import ServerProcess

if TYPE_CHECKING:
    from pionkv.client.demo.smollm import Loaded

TOKENS = 12


def steps(model: Any, caches: list[Any], suffix: list[int]) -> Iterator[int]:
    found = generate_step(mx.array(suffix), model, prompt_cache=caches, max_tokens=TOKENS)
    return (int(token) for token, _ in found)


@pytest.mark.parametrize("killed", [False, True])
def test_greedy_answers(
    killed: bool, loaded: Loaded, short_prompt: str, start_server: Callable[..., ServerProcess]
) -> None:
    model, server = loaded.model, start_server()
    ids = prefix_ids(loaded.tokenizer, short_prompt)
    suffix = suffix_ids(loaded.tokenizer, questions()[0], short_prompt)
    expected = list(steps(model, prefill(model, ids, default_chunk()), suffix))
    cache = PionPromptCache(model, tokenizer=loaded.tokenizer, port=server.port, background=False)
    cache.get_or_prefill(ids)
    with PrefixAttention(cache) as attention:
        going = steps(model, attention.get_or_prefill(ids), suffix)
        found = [next(going) for _ in range(4)]
        if killed:
            server.kill()
        found += going
    assert found == expected and len(set(found)) > 5
    assert (attention.attended, attention.local) == (1, int(killed))

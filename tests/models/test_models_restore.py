"""The main job on a real model: what one process prefilled, another restores, and says the same."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from pionkv.client import PionPromptCache
from pionkv.client.demo.conversation import prefix_ids, questions, suffix_ids
from pionkv.client.demo.greedy import Answer, answer
from pionkv.client.demo.processes import ProcessFailed, run_worker
from pionkv.client.demo.smollm import Loaded
from pionkv.client.demo.worker import Job, Result
from pionkv.client.prefill import CPU_CHUNK, prefill

ASKED = (questions()[3], questions()[5], questions()[8])
TOKENS = 16


@pytest.fixture(scope="module")
def uncached(loaded: Loaded, short_prompt: str) -> list[Answer]:
    """Answers of a run that knows no cache, prefilled in the same chunks."""
    prefix = prefix_ids(loaded.tokenizer, short_prompt)
    assert CPU_CHUNK < len(prefix) <= 512
    return [
        ask(loaded, prefill(loaded.model, prefix, CPU_CHUNK), question, short_prompt) for question in ASKED
    ]


def ask(loaded: Loaded, caches: list[Any], question: str, prompt: str) -> Answer:
    suffix = suffix_ids(loaded.tokenizer, question, prompt)
    end = loaded.tokenizer.eos_id
    return answer(loaded.model, caches, suffix, tokens=TOKENS, end=end, keep_logprobs=True)


@pytest.fixture(scope="module")
def in_other_process(store_port: int, short_prompt: str) -> Callable[[str, str], Result]:
    def run(vquant: str, namespace: str) -> Result:
        job = Job(store_port, vquant, namespace, ASKED, TOKENS, short_prompt)
        return run_worker(job, lambda event: None)

    return run


@pytest.mark.parametrize(("vquant", "row_bytes"), [("auto", 768), ("fp16", 384)])
def test_a_second_process_says_what_an_uncached_run_says(
    uncached: list[Answer], in_other_process: Callable[[str, str], Result], vquant: str, row_bytes: int
) -> None:
    expected = [each.tokens for each in uncached]
    cold, warm = (in_other_process(vquant, f"second-{vquant}") for _ in range(2))
    assert (cold.restored, warm.restored) == (False, True)
    assert cold.problem is None
    assert cold.answers == expected
    assert warm.answers == expected
    moved = warm.prefix_tokens * 30 * 2 * row_bytes
    assert moved < warm.bytes_received < moved * 1.01
    assert warm.prefix_seconds < cold.prefix_seconds


def test_an_exact_restore_has_the_same_log_probabilities(
    loaded: Loaded,
    short_prompt: str,
    uncached: list[Answer],
    in_other_process: Callable[[str, str], Result],
    store_port: int,
) -> None:
    assert not in_other_process("auto", "exact").restored
    cache = PionPromptCache(loaded.model, port=store_port, background=False)
    prefix = prefix_ids(loaded.tokenizer, short_prompt)
    for question, expected in zip(ASKED, uncached, strict=True):
        found = ask(loaded, cache.get_or_prefill(prefix, "exact"), question, short_prompt)
        assert found.tokens == expected.tokens
        for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
            assert np.array_equal(np.array(ours).view(np.uint32), np.array(theirs).view(np.uint32))
    assert cache.stats()["hits"] == len(ASKED)


def test_the_comparison_can_fail(loaded: Loaded, short_prompt: str, uncached: list[Answer]) -> None:
    """Zeroes instead of the restored rows change what the model says."""
    caches = prefill(loaded.model, prefix_ids(loaded.tokenizer, short_prompt), CPU_CHUNK)
    for cache in caches:
        cache.keys, cache.values = mx.zeros_like(cache.keys), mx.zeros_like(cache.values)
    assert ask(loaded, caches, ASKED[0], short_prompt).tokens != uncached[0].tokens


def test_a_worker_that_cannot_do_its_job_says_why(store_port: int) -> None:
    with pytest.raises(ProcessFailed, match="turbo9"):
        run_worker(Job(store_port, "turbo9", "n", ASKED, 1), lambda event: None)

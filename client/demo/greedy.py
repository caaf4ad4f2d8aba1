"""Greedy generation from filled caches, and how long its first token takes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step


@dataclass(frozen=True, slots=True)
class Answer:
    """Generated tokens.

    Attributes:
        tokens: Token ids; the token that ends the answer is the last, if it came.
        logprobs: The log-probabilities of all tokens at each step, if they were asked for.
        first_seconds: From the call to the first token.
    """

    tokens: list[int]
    logprobs: list[mx.array]
    first_seconds: float


def answer(
    model: Any,
    caches: list[Any],
    suffix: Sequence[int],
    *,
    tokens: int,
    end: int | None = None,
    keep_logprobs: bool = False,
) -> Answer:
    """Generate greedily; the caches are written to.

    Args:
        model: An mlx-lm model.
        caches: Caches that hold what comes before `suffix`.
        suffix: Token ids of the rest of the prompt, at least one.
        tokens: The most tokens to generate.
        end: Token that ends an answer; None goes on to the last.
        keep_logprobs: Keep the log-probabilities.
    """
    found: list[int] = []
    logprobs: list[mx.array] = []
    first = 0.0
    begin = time.perf_counter()
    for token, step in generate_step(
        mx.array(list(suffix)), model, prompt_cache=caches, max_tokens=tokens, prefill_step_size=256
    ):
        if not found:
            first = time.perf_counter() - begin
        found.append(int(token))
        if keep_logprobs:
            logprobs.append(step)
        if token == end:
            break
    return Answer(found, logprobs, first)

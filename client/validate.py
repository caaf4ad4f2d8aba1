"""What each format costs and what it changes, on a real model: the work of `pionkv validate`.

Rounds go through all formats in turn, and each begins with the un-cached run, so that a busy moment of the
machine hits all alike; every round asks another question. Answers are compared before times are looked at.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from .deadline import Deadline
from .demo.greedy import Answer, answer
from .demo.report import first_difference
from .endpoint import Endpoint
from .lane import Lane
from .measured import Spread, short
from .prefill import default_chunk, prefill
from .prompt_cache import PionPromptCache
from .requests import read_lines

SECONDS = 120.0
PREVIEW = 120
"""Characters of an answer that are shown."""

Ids = Sequence[int]
Progress = Callable[[str], None]


@dataclass
class Agreement:
    """Restored answers against un-cached ones, one by one.

    Attributes:
        first_token: Whether the first token is the same.
        identical: Whether all tokens are.
        equal_bits: Whether all log-probabilities are, bit for bit.
        largest_difference: Of log-probabilities, over all answers that are identical.
    """

    first_token: list[bool] = field(default_factory=list)
    identical: list[bool] = field(default_factory=list)
    equal_bits: list[bool] = field(default_factory=list)
    largest_difference: float = 0.0

    def add(self, found: Answer, expected: Answer) -> None:
        """Compare one answer; both have kept their log-probabilities."""
        self.first_token.append(found.tokens[:1] == expected.tokens[:1])
        self.identical.append(first_difference(found.tokens, expected.tokens) is None)
        self.equal_bits.append(_same_bits(found.logprobs, expected.logprobs))
        if self.identical[-1]:
            difference = max(map(_largest_difference, found.logprobs, expected.logprobs))
            self.largest_difference = max(self.largest_difference, difference)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is measured.

    Attributes:
        prefixes: Prefixes, by their token ids; at least two lengths say more than one.
        suffixes: What follows them, in turn.
        formats: Names of formats.
        tokens: Tokens of an answer.
        rounds: Rounds.
    """

    prefixes: Sequence[Ids]
    suffixes: Sequence[Ids]
    formats: Sequence[str]
    tokens: int
    rounds: int


@dataclass
class _Arm:
    """One format on one prefix."""

    format: str
    namespace: str
    cache: PionPromptCache | None = None
    ledger: dict[str, int] = field(default_factory=dict)
    problem: str = ""
    agreement: Agreement = field(default_factory=Agreement)
    first_seconds: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    preview: str = ""


def validate(
    model: Any, decode: Callable[[Ids], str], endpoint: Endpoint, asked: Asked, progress: Progress
) -> list[dict[str, Any]]:
    """Measure; everything that is stored for it is dropped again.

    Args:
        model: An mlx-lm model.
        decode: Makes text of token ids.
        endpoint: The server.
        asked: What is measured.
        progress: Told what is being done.

    Returns:
        A record for each prefix and format: bytes, times, agreement, the answer's beginning.

    Raises:
        StoreError: The server cannot be used.
    """
    records = []
    for prefix in asked.prefixes:
        records += _one(model, decode, endpoint, asked, prefix, progress)
    return records


def _one(
    model: Any,
    decode: Callable[[Ids], str],
    endpoint: Endpoint,
    asked: Asked,
    prefix: Ids,
    progress: Progress,
) -> list[dict[str, Any]]:
    run = secrets.token_hex(8)
    arms = [_Arm(name, f"validate:{run}:{name}") for name in asked.formats]
    lane = Lane.open(endpoint, Deadline(SECONDS, SECONDS))
    try:
        for arm in arms:
            progress(f"{len(prefix)} tokens: storing {arm.format}")
            _publish(arm, model, endpoint, prefix, lane)
        cold: list[float] = []
        for number in range(asked.rounds):
            suffix = asked.suffixes[number % len(asked.suffixes)]
            progress(f"{len(prefix)} tokens: round {number + 1} of {asked.rounds}")
            begin = time.perf_counter()
            caches = prefill(model, prefix, default_chunk())
            seconds = time.perf_counter() - begin
            expected = answer(model, caches, suffix, tokens=asked.tokens, keep_logprobs=True)
            cold.append(seconds + expected.first_seconds)
            for arm in arms:
                _ask(arm, model, decode, prefix, suffix, expected, asked.tokens)
        reference = decode(expected.tokens)[:PREVIEW]
        return [_record(arm, len(prefix), cold, reference) for arm in arms]
    finally:
        for arm in arms:
            lane.send(("KV.PREFIX.DROP", arm.namespace), Deadline(SECONDS, SECONDS))
            lane.receive(Deadline(SECONDS, SECONDS))
        lane.close()


def _publish(arm: _Arm, model: Any, endpoint: Endpoint, prefix: Ids, lane: Lane) -> None:
    try:
        arm.cache = PionPromptCache(model, arm.format, background=False, deadline=SECONDS, **vars(endpoint))
    except ValueError as error:
        arm.problem = str(error)
        return
    arm.cache.get_or_prefill(prefix, arm.namespace)
    stats = arm.cache.stats()
    if stats["stores"] != 1:
        arm.problem = str(stats["unsupported"] or stats["last_unpublished"] or stats["last_miss"])
        return
    deadline = Deadline(SECONDS, SECONDS)
    lane.send(("V.LEDGER", arm.namespace), deadline)
    arm.ledger = {name: int(value) for name, value in read_lines(lane.receive(deadline)).items()}


def _ask(
    arm: _Arm,
    model: Any,
    decode: Callable[[Ids], str],
    prefix: Ids,
    suffix: Ids,
    expected: Answer,
    tokens: int,
) -> None:
    if arm.problem or arm.cache is None:
        return
    begin = time.perf_counter()
    caches = arm.cache.get_or_prefill(prefix, arm.namespace)
    mx.eval([each.state for each in caches])
    restored = time.perf_counter() - begin
    if arm.cache.stats()["hits"] != len(arm.first_seconds) + 1:
        arm.problem = f"not restored: {arm.cache.stats()['last_miss']}"
        return
    begin = time.perf_counter()
    found = answer(model, caches, suffix, tokens=tokens, keep_logprobs=True)
    seconds = time.perf_counter() - begin
    arm.first_seconds.append(restored + found.first_seconds)
    if len(found.tokens) > 1:
        arm.rates.append((len(found.tokens) - 1) / (seconds - found.first_seconds))
    arm.agreement.add(found, expected)
    arm.preview = decode(found.tokens)[:PREVIEW]


def _record(arm: _Arm, tokens: int, cold: list[float], reference: str) -> dict[str, Any]:
    record: dict[str, Any] = {"format": arm.format, "tokens": tokens}
    if arm.problem:
        return {**record, "problem": arm.problem}
    ledger, ours, theirs = arm.ledger, Spread.of(arm.first_seconds), Spread.of(cold)
    agreement = arm.agreement
    return {
        **record,
        "problem": "",
        "fp16_bytes": ledger["rows_as_fp16_bytes"],
        "stored_bytes": ledger["logical_total"],
        "resident_bytes": ledger["resident_bytes"],
        "ratio": short(ledger["rows_as_fp16_bytes"] / max(1, ledger["logical_total"])),
        "first_token_seconds": asdict(ours),
        "first_token_seconds_uncached": asdict(theirs),
        "beyond_noise": ours.exceeds(theirs),
        "tokens_per_second": asdict(Spread.of(arm.rates)) if arm.rates else None,
        "answers": len(agreement.identical),
        "identical": sum(agreement.identical),
        "same_first_token": sum(agreement.first_token),
        "equal_bits": sum(agreement.equal_bits),
        "largest_logprob_difference": agreement.largest_difference,
        "output": arm.preview,
        "output_uncached": reference,
    }


def _bits(array: mx.array) -> np.ndarray[Any, Any]:
    return np.array(array.astype(mx.float32)).view(np.uint32)


def _same_bits(one: list[mx.array], other: list[mx.array]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, map(_bits, one), map(_bits, other)))


def _largest_difference(one: mx.array, other: mx.array) -> float:
    return float(mx.abs(one - other).max())

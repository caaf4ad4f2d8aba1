"""Whether a restored prefix makes a real model say exactly what it says without a cache.

One process prefills the prefix and publishes it. This process prefills it once more, without a cache and in
the same chunks, and answers every question greedily from that. Then it restores the prefix from the server
for every question, and answers again. Compared are all tokens, and the bits of all log-probabilities.

    python tests/benchmarks/bench_validate.py [--questions 20] [--tokens 50]
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

from pionkv.kernels.blas import preload_blas

BLAS = preload_blas()

import mlx.core as mx  # noqa: E402
from harness import Row, Spread, write_results  # noqa: E402
from pionkv.client import PionPromptCache  # noqa: E402
from pionkv.client.demo import conversation, smollm  # noqa: E402
from pionkv.client.demo.greedy import Answer, answer  # noqa: E402
from pionkv.client.demo.processes import run_worker, running_server  # noqa: E402
from pionkv.client.demo.worker import Job  # noqa: E402
from pionkv.client.prefill import default_chunk, prefill  # noqa: E402
from pionkv.client.validate import Agreement  # noqa: E402

FORMATS = ("fp32", "fp16", "mlx4g32")
SAME_TOKENS = ("fp32", "fp16")
SAME_BITS = ("fp32",)

Ask = Callable[[list[Any], str], Answer]


def main() -> None:
    options = _options()
    asked = conversation.questions()[: options.questions]
    loaded = smollm.load()
    prefix = conversation.prefix_ids(loaded.tokenizer)
    print(
        f"{BLAS.note}; {len(prefix)} tokens of prefix, {len(asked)} questions, {options.tokens} tokens each"
    )

    def ask(caches: list[Any], question: str) -> Answer:
        suffix = conversation.suffix_ids(loaded.tokenizer, question)
        return answer(loaded.model, caches, suffix, tokens=options.tokens, keep_logprobs=True)

    uncached = prefill(loaded.model, prefix, default_chunk())
    reference = []
    for question in asked:
        reference.append(ask(copy.deepcopy(uncached), question))
        print(f"un-cached: {len(reference)} of {len(asked)}", flush=True)
    with running_server() as port:
        rows = [
            row
            for vquant in FORMATS
            for row in _rows(vquant, *_compare(loaded.model, prefix, port, vquant, asked, ask, reference))
        ]
    write_results(
        "validate",
        rows,
        model="SmolLM2-135M-Instruct, float32",
        prefix_tokens=len(prefix),
        greedy_tokens=options.tokens,
        prefill_chunk=default_chunk(),
        published_by="another process",
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=50)
    return parser.parse_args()


def _compare(
    model: Any,
    prefix: list[int],
    port: int,
    vquant: str,
    asked: tuple[str, ...],
    ask: Ask,
    reference: list[Answer],
) -> tuple[Agreement, list[float]]:
    published = run_worker(Job(port, vquant, vquant, asked[:1], 1), lambda event: None)
    assert not published.restored and published.problem is None
    cache = PionPromptCache(model, vquant, port=port, background=False)
    found, restore_ms = Agreement(), []
    for question, expected in zip(asked, reference, strict=True):
        begin = time.perf_counter()
        caches = cache.get_or_prefill(prefix, vquant)
        mx.eval([each.state for each in caches])
        restore_ms.append((time.perf_counter() - begin) * 1000)
        restored = ask(caches, question)
        found.add(restored, expected)
        print(
            f"{vquant}: {len(found.identical)} of {len(asked)}, {sum(found.identical)} identical", flush=True
        )
    assert cache.stats()["hits"] == len(asked)
    return found, restore_ms


def _rows(vquant: str, found: Agreement, restore_ms: list[float]) -> list[Row]:
    questions = len(found.identical)
    identical, equal = sum(found.identical), sum(found.equal_bits)
    tokens_target = questions if vquant in SAME_TOKENS else None
    bits_target = questions if vquant in SAME_BITS else None
    return [
        Row(
            f"{vquant}: answers identical to the un-cached run, of {questions}",
            "answers",
            _one(identical),
            target=tokens_target,
            holds=None if tokens_target is None else identical == questions,
            extra={"differing_questions": [n for n, same in enumerate(found.identical) if not same]},
        ),
        Row(
            f"{vquant}: answers whose log-probabilities have the same bits, of {questions}",
            "answers",
            _one(equal),
            target=bits_target,
            holds=None if bits_target is None else equal == questions,
            extra={"largest_logprob_difference": found.largest_difference},
        ),
        Row(f"{vquant}: restoring the prefix", "ms", Spread.of(restore_ms)),
    ]


def _one(value: float) -> Spread:
    return Spread(value, value, value)


if __name__ == "__main__":
    main()

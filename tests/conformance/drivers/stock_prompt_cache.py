"""The published `PionPromptCache`, unmodified, against a server.

Arguments: port, model, `fill` or `answer`, and JSON: lane, questions, tokens, short, options (of the
constructor). Prints one JSON object: the tokens of each answer, and what the client counted.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import stock_models as models

PORT, NAME, WHAT, WISHES = int(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
CLOSED = {"export": (), "batch": ("EXPORT",), "range": ("EXPORT", "BATCH")}
for lane in CLOSED[WISHES["lane"]]:
    os.environ[f"PION_PROMPT_CACHE_NO_{lane}"] = "1"

from pion_vllm_mlx.prompt_cache import PionPromptCache  # noqa: E402


def main() -> None:
    model = models.load(NAME)
    prefix, suffixes = models.prompts(NAME, WISHES["questions"], WISHES["short"])
    client = PionPromptCache(model, port=PORT, **WISHES.get("options", {}))
    namespace = client.make_namespace("conformance", NAME, json.dumps(WISHES.get("options", {})))
    result = fill(client, model, prefix, suffixes, namespace) if WHAT == "fill" else {}
    if WHAT == "answer":
        result["restored"] = answers(model, lambda: client.get_or_prefill(prefix, namespace), suffixes)
        result["digest"] = models.digest(client.get_or_prefill(prefix, namespace), len(prefix))
    result |= client.stats()
    # The client turns a lane off by itself when a reply is not what it expects.
    result |= {
        "prefix": len(prefix),
        "export_off": client._export_disabled,
        "batch_off": client._batch_disabled,
    }
    print(json.dumps(result))


def fill(
    client: Any, model: Any, prefix: list[int], suffixes: list[list[int]], namespace: str
) -> dict[str, Any]:
    """Answers without a store, then the miss that fills it."""
    cold = models.prefill(model, prefix)
    result: dict[str, Any] = {"cold": answers(model, lambda: models.copied(cold), suffixes)}
    # The client's cast to float16 changes nothing where the model computes in it.
    exact = NAME.endswith("-float16") and not NAME.startswith("hybrid")
    result["cold_half"] = (
        result["cold"] if exact else answers(model, lambda: models.rounded_to_half(cold), suffixes)
    )
    result |= {"digest": models.digest(cold, len(prefix))}
    result |= {"digest_half": models.digest(models.rounded_to_half(cold), len(prefix))}
    client.get_or_prefill(prefix, namespace)
    return result


def answers(model: Any, caches: Any, suffixes: list[list[int]]) -> list[list[int]]:
    """The tokens that follow each suffix, from caches made for it alone."""
    return [models.greedy(model, caches(), suffix, WISHES["tokens"]) for suffix in suffixes]


main()

"""The published client's second stage, unmodified: attention over a prefix that stays in the server.

Arguments: port, model, `fill` or `answer`, and JSON: questions, tokens, short, lane (`binary`, `resp`, or
`merge` for its older way of two steps). Prints one JSON object: the tokens of each answer of both stages, and
what the client counted.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import stock_models as models

PORT, NAME, WHAT, WISHES = int(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
if WISHES["lane"] != "binary":
    os.environ["PION_PROMPT_CACHE_NO_BINARY"] = "1"
if WISHES["lane"] == "merge":
    os.environ["PION_DISABLE_FUSED_ATTEND"] = "1"

from pion_vllm_mlx.mlx_lm_patch import (  # noqa: E402
    install_pion_attention_patch,
    make_pion_prompt_cache,
    uninstall_pion_attention_patch,
)
from pion_vllm_mlx.prompt_cache import PionPromptCache  # noqa: E402


def main() -> None:
    model = models.load(NAME)
    prefix, suffixes = models.prompts(NAME, WISHES["questions"], WISHES["short"])
    client = PionPromptCache(model, port=PORT, stage2=True)
    namespace = client.make_namespace("conformance", "attention", NAME)
    if WHAT == "fill":
        client.get_or_prefill(prefix, namespace)
        print(json.dumps(client.stats()))
        return
    first_stage = PionPromptCache(model, port=PORT)
    result: dict[str, Any] = {"found": client.lookup(namespace)}
    result["first"] = answers(model, lambda: first_stage.get_or_prefill(prefix, namespace), suffixes)
    install_pion_attention_patch()
    result["second"] = answers(
        model, lambda: make_pion_prompt_cache(model, namespace, client, len(prefix)), suffixes
    )
    uninstall_pion_attention_patch()
    result |= {"hits": first_stage.stats()["hits"], "queries": client.attend_query_calls}
    # The client turns the lane off by itself at the first answer that is not what it expects.
    result |= {"binary": client._binary is not None, "layers": len(model.layers)}
    print(json.dumps(result))


def answers(model: Any, caches: Any, suffixes: list[list[int]]) -> list[list[int]]:
    """The tokens that follow each suffix, from caches made for it alone."""
    return [models.greedy(model, caches(), suffix, WISHES["tokens"]) for suffix in suffixes]


main()

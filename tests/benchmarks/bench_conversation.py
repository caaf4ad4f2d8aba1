"""What a long conversation writes: `python tests/benchmarks/bench_conversation.py [--turns 50]`.

Each turn adds a question and an answer, and its prompt is all that was said before. Ours publishes both, and
only their new rows. The peer saves mlx-lm's prompt cache to a file after each turn, whole.
Counted are bytes for each new token: all that our client sent, questions to the server included, beside the
sizes of the files. No times are taken. The model is small with random weights; every answer is compared
with that of a run without a cache. A row of a larger model makes what is sent besides rows count for less.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from pionkv.kernels.blas import preload_blas

preload_blas()

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from harness import Peer, Row, Spread, write_results  # noqa: E402
from mlx_lm.generate import generate_step  # noqa: E402
from mlx_lm.models import llama  # noqa: E402
from mlx_lm.models.cache import make_prompt_cache, save_prompt_cache  # noqa: E402
from pionkv.client import PionPromptCache  # noqa: E402
from pionkv.client.demo.processes import running_server  # noqa: E402

TURNS, QUESTION, ANSWER = 50, 24, 16
LAYERS, KV_HEADS, HEAD_DIM = 4, 4, 64
VOCABULARY = 300
TARGET = 10.0
"""How many times fewer bytes than the peer, over 50 turns."""


def model() -> Any:
    """A small llama with random weights."""
    mx.random.seed(7)
    made = llama.Model(
        llama.ModelArgs(
            model_type="llama", hidden_size=64, num_hidden_layers=LAYERS, intermediate_size=128,
            num_attention_heads=KV_HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
            rms_norm_eps=1e-5, vocab_size=VOCABULARY,
        )
    )  # fmt: skip
    mx.eval(made.parameters())
    return made


def answered(model: Any, caches: list[Any], ids: list[int]) -> list[int]:
    """The answer after caches that hold all tokens but the last; then they hold it, too."""
    steps = generate_step(mx.array(ids[-1:]), model, prompt_cache=caches, max_tokens=ANSWER)
    return [int(token) for token, _ in steps]


def uncached(model: Any, ids: list[int], chunk: int = 256) -> tuple[list[int], list[Any]]:
    """The answer of a run without a cache, and what it leaves in its caches."""
    caches = make_prompt_cache(model)
    for start in range(0, len(ids) - 1, chunk):
        mx.eval(model(mx.array(ids[start : min(start + chunk, len(ids) - 1)])[None], cache=caches))
    return answered(model, caches, ids), caches


def converse(turns: int) -> tuple[list[float], list[float], int]:
    """Bytes for each new token of each turn, ours and the peer's; and how many tokens there were."""
    talker, words = model(), np.random.default_rng(3)
    said: list[int] = []
    ours, peers = [], []
    with running_server() as port, tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "cache.safetensors"))
        with PionPromptCache(talker, port=port, publish_after=1, always_fetch=True) as cache:
            sent = 0
            for turn in range(turns):
                said += words.integers(0, VOCABULARY, QUESTION).tolist()
                caches = cache.get_or_prefill(said[:-1])
                answer = answered(talker, caches, said)
                expected, left = uncached(talker, said)
                assert answer == expected, f"turn {turn}: another answer"
                said += answer
                assert cache.keep(said[: caches[0].offset], caches) and cache.flush(60)
                stats = cache.stats()
                assert stats["stores"] == 2 * (turn + 1), stats
                ours.append((int(stats["bytes_sent"] or 0) - sent) / (QUESTION + ANSWER))
                sent = int(stats["bytes_sent"] or 0)
                save_prompt_cache(file, left)
                peers.append(Path(file).stat().st_size / (QUESTION + ANSWER))
    return ours, peers, len(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    turns = parser.parse_args().turns
    ours, peers, tokens = converse(turns)
    row_bytes = LAYERS * 2 * KV_HEADS * HEAD_DIM * 4
    ratio = sum(peers) / sum(ours)
    write_results(
        "conversation",
        [
            Row(
                f"a conversation of {turns} turns, {tokens} tokens",
                "bytes written for a new token",
                Spread.of(ours),
                Peer.of("mlx-lm's file, each turn", Spread.of(peers)),
                round(ratio, 3),
                TARGET,
                ratio >= TARGET,
                extra={
                    "row_bytes": row_bytes,
                    "written_mib": round(sum(ours) * (QUESTION + ANSWER) / 2**20, 2),
                    "peer_written_mib": round(sum(peers) * (QUESTION + ANSWER) / 2**20, 2),
                    "beside_the_rows": round(sum(ours) / turns / row_bytes, 4),
                },
            )
        ],
    )


if __name__ == "__main__":
    main()

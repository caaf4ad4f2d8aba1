"""The published `PionPromptCache`, unmodified: restores a prefix each time that a line is written to it.

Arguments: port, model. The first line holds the prefix as JSON; it is prefilled and stored, then `ready` is
printed. Each further line is answered by the seconds that restoring it took.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path

# A module of ours, by its path: this environment has no pionkv. Without a fast BLAS a prefill takes minutes.
runpy.run_path(str(Path(__file__).resolve().parents[3] / "kernels" / "blas.py"))["preload_blas"]()

import mlx.core as mx  # noqa: E402
import stock_models as models  # noqa: E402
from pion_vllm_mlx.prompt_cache import PionPromptCache  # noqa: E402

PORT, NAME = int(sys.argv[1]), sys.argv[2]


def main() -> None:
    model = models.load(NAME)
    prefix = json.loads(sys.stdin.readline())
    client = PionPromptCache(model, port=PORT)
    namespace = client.make_namespace("timing", NAME, str(len(prefix)))
    client.get_or_prefill(prefix, namespace)
    print("ready", flush=True)
    for _ in sys.stdin:
        hits = client.stats()["hits"]
        begin = time.perf_counter()
        mx.eval([cache.state for cache in client.get_or_prefill(prefix, namespace)])
        seconds = time.perf_counter() - begin
        assert client.stats()["hits"] == hits + 1, client.stats()
        print(seconds, flush=True)


main()

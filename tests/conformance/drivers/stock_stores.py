"""The published `PionPrefixStore` and `HybridRetrievalCache(backend="pion")`, unmodified, against a server.

Arguments: port, what, model. Prints one JSON object. A `…_fill` is followed by a `…_read` in another process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import stock_models as models
from mlx_lm.models.cache import make_prompt_cache
from pion_vllm_mlx.hybrid_retrieval import HybridRetrievalCache
from pion_vllm_mlx.prefix_store import PionPrefixStore, to_mx

PORT, WHAT, NAME = int(sys.argv[1]), sys.argv[2], sys.argv[3]
KEY = ("conformance", NAME)
LONG = [(11 * i + 5) % 512 for i in range(200)]
BRANCH = LONG[:150] + [(13 * i + 1) % 512 for i in range(60)]
ANSWER = list(range(3570, 3590))
SUFFIX = [9, 8, 7]


def prefix_fill() -> dict[str, Any]:
    """Store a conversation, extend it, branch off it, and journal an answer."""
    model, store = models.load(NAME), PionPrefixStore(port=PORT)
    caches = models.prefill(model, LONG)
    stored = [store.store(KEY, LONG[:128], caches), store.store(KEY, LONG, caches)]
    stored.append(store.store(KEY, BRANCH, models.prefill(model, BRANCH)))
    store.journal_put(KEY, "answer", ANSWER)
    store.commit()
    return {
        "stored": stored,
        "digest": models.digest(caches, len(LONG)),
        "tokens": models.greedy(model, caches, SUFFIX, 8),
        "segments": store.stats.segments_created,
        "errors": store.stats.errors,
    }


def prefix_read() -> dict[str, Any]:
    """Find both again in another process; then make room, which drops what was used least lately."""
    model, store = models.load(NAME), PionPrefixStore(port=PORT)
    match = store.lookup(KEY, LONG)
    caches = restored(model, store, match, len(LONG))
    result = {
        "match": match.length,
        "branch": store.lookup(KEY, BRANCH).length,
        "other": store.lookup(KEY, [1, 2, *LONG]).length,
        "digest": models.digest(caches, len(LONG)),
        "tokens": models.greedy(model, caches, SUFFIX, 8),
        "journal": store.journal_get(KEY, "answer") == ANSWER,
    }
    store.journal_drop(KEY, "answer")
    result["journal_dropped"] = store.journal_get(KEY, "answer") is None
    store.budget_bytes = 1
    store.store(KEY, [5] * 128, models.prefill(model, [5] * 128))
    result |= {
        "evictions": store.stats.evictions,
        "after": PionPrefixStore(port=PORT).lookup(KEY, LONG).length,
    }
    result |= {"errors": store.stats.errors, "evicting": store._evict_ok}
    return result


def restored(model: Any, store: Any, match: Any, end: int) -> list[Any]:
    """Caches filled as the published server does it."""
    layout = store._layout(store.model_id(KEY))
    caches = make_prompt_cache(model)
    for cache, (keys, values) in zip(caches, store.fetch_rows(KEY, match, 0, end), strict=True):
        cache.update_and_fetch(to_mx(keys, layout)[None], to_mx(values, layout)[None])
    mx.eval([array for cache in caches for array in models.arrays(cache)])
    return caches


def retrieval_fill() -> dict[str, Any]:
    """Ingest a passage; what follows it without a store."""
    model = models.load(NAME)
    cache = HybridRetrievalCache(model, backend="pion", port=PORT)
    cache.ingest("passage one", LONG)
    return {
        "tokens": models.greedy(model, models.prefill(model, LONG), SUFFIX, 8),
        "has": cache.has("passage one"),
    }


def retrieval_read() -> dict[str, Any]:
    """Continue after the passage in a process that never saw it."""
    model = models.load(NAME)
    cache = HybridRetrievalCache(model, backend="pion", port=PORT)
    caches, suffix = cache.prepare("passage one", SUFFIX, chunk_token_count=len(LONG))
    return {
        "tokens": models.greedy(model, caches, suffix, 8),
        "has": [cache.has("passage one"), cache.has("passage two")],
        "stats": cache.stats(),
    }


ALL: dict[str, Callable[[], dict[str, Any]]] = {
    kind.__name__: kind for kind in (prefix_fill, prefix_read, retrieval_fill, retrieval_read)
}
print(json.dumps(ALL[WHAT]()))

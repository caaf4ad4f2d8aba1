"""Run a model over a prefix, to fill its caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

if TYPE_CHECKING:
    from .plan import Attached

GPU_CHUNK = 2048
CPU_CHUNK = 256
"""On a CPU mlx's attention over a chunk of 256 is two to three times faster than over one of 2,048."""


def on_cpu() -> bool:
    """Whether mlx computes on a CPU."""
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def default_chunk() -> int:
    """Tokens of a chunk that suit the default device."""
    return CPU_CHUNK if on_cpu() else GPU_CHUNK


Progress = Callable[[int, int], None]
"""Called with the tokens done and the tokens in all, as mlx-lm's `prompt_progress_callback`."""


def prefill(
    model: Any,
    ids: Sequence[int],
    chunk: int,
    progress: Progress | None = None,
    *,
    caches: list[Any] | None = None,
    done: int = 0,
    attached: Attached | None = None,
) -> list[Any]:
    """Caches that hold exactly the tokens `ids`.

    The chunks begin at multiples of their size, which never depends on anything else, because the last bits
    of K/V depend on how a prefix was cut: the same size gives the same bits.

    Args:
        model: The model.
        ids: The tokens.
        chunk: Tokens put through the model at once.
        progress: Called after each chunk.
        caches: Caches that hold the first `done` tokens already; they are written to. None for fresh ones.
        done: How many those are.
        attached: Have the rows packed after each chunk, as mlx-lm does with `kv_bits`; None leaves them.
    """
    if caches is None:
        caches = make_prompt_cache(model)
    while done < len(ids):
        end = min(len(ids), (done // chunk + 1) * chunk)
        model(mx.array(list(ids[done:end]))[None], cache=caches)
        if attached is not None:
            caches = [_packed(cache, attached) for cache in caches]
        mx.eval([cache.state for cache in caches])
        mx.clear_cache()
        done = end
        if progress is not None:
            progress(done, len(ids))
    return caches


def _packed(cache: Any, attached: Attached) -> Any:
    if type(cache) is not KVCache:
        return cache
    return cache.to_quantized(group_size=attached.group_size, bits=attached.bits)

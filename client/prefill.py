"""Run a model over a prefix, to fill its caches."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

GPU_CHUNK = 2048
CPU_CHUNK = 256
"""On a CPU mlx's attention over a chunk of 256 is two to three times faster than over one of 2,048."""


def default_chunk() -> int:
    """Tokens of a chunk that suit the default device."""
    return GPU_CHUNK if mx.default_device().type == mx.DeviceType.gpu else CPU_CHUNK


Progress = Callable[[int, int], None]
"""Called with the tokens done and the tokens in all, as mlx-lm's `prompt_progress_callback`."""


def prefill(model: Any, ids: Sequence[int], chunk: int, progress: Progress | None = None) -> list[Any]:
    """Fresh caches that hold exactly the tokens `ids`.

    The chunks begin at token 0 and their size never depends on anything else, because the last bits of K/V
    depend on how a prefix was cut: the same size gives the same bits.
    """
    caches: list[Any] = make_prompt_cache(model)
    for start in range(0, len(ids), chunk):
        model(mx.array(list(ids[start : start + chunk]))[None], cache=caches)
        mx.eval([cache.state for cache in caches])
        mx.clear_cache()
        if progress is not None:
            progress(min(start + chunk, len(ids)), len(ids))
    return caches

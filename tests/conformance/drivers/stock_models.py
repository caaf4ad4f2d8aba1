"""Models for the published client, whose environment this runs in: a real one and tiny random ones."""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def by_path(name: str, path: Path) -> Any:
    """A module of ours, imported by its path: this environment has no pionkv."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def demo(module: str) -> Any:
    """A module of the demonstration, in a package whose own beginning, which needs pionkv, is not run."""
    package = types.ModuleType("our_client")
    package.__path__ = [str(ROOT / "client")]
    sys.modules.setdefault(package.__name__, package)
    return importlib.import_module(f"our_client.demo.{module}")


by_path("blas", ROOT / "kernels" / "blas.py").preload_blas()

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from mlx_lm.generate import generate_step  # noqa: E402
from mlx_lm.models import llama, qwen3_next  # noqa: E402
from mlx_lm.models.cache import make_prompt_cache  # noqa: E402

TINY = {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "rms_norm_eps": 1e-6, "vocab_size": 512, "tie_word_embeddings": False}


def load(name: str) -> Any:
    """A model. The same name is the same weights in every process."""
    kind, _, dtype = name.partition("-")
    if kind == "smollm":
        return demo("smollm").load(getattr(mx, dtype)).model
    mx.random.seed(7)
    model = _hybrid() if kind == "hybrid" else llama.Model(llama.ModelArgs(model_type="llama", **TINY))
    model.set_dtype(getattr(mx, dtype))
    mx.eval(model.parameters())
    return model


def _hybrid() -> Any:
    """Recurrent layers and one of attention in every two, as in Qwen3-Next."""
    linear = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 32}
    linear |= {"linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "full_attention_interval": 2}
    experts = {"num_experts": 0, "num_experts_per_tok": 0, "decoder_sparse_step": 1, "mlp_only_layers": []}
    experts |= {"shared_expert_intermediate_size": 64, "moe_intermediate_size": 64}
    rope = {
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 4096,
        "head_dim": 32,
    }
    return qwen3_next.Model(
        qwen3_next.ModelArgs(model_type="qwen3_next", **TINY, **linear, **experts, **rope)
    )


def prompts(name: str, questions: int, short: bool) -> tuple[list[int], list[list[int]]]:
    """A prefix and what is asked after it, as token ids."""
    if not name.startswith("smollm"):
        return [(7 * i + 3) % 512 for i in range(96)], [[q + 1, 2 * q + 5, 300 + q] for q in range(questions)]
    talk, tokenizer = demo("conversation"), demo("smollm").load().tokenizer
    system = talk.handbook().splitlines()[0] if short else None
    prefix = talk.prefix_ids(tokenizer, system)
    return prefix, [talk.suffix_ids(tokenizer, text, system) for text in talk.questions()[:questions]]


def prefill(model: Any, prefix: list[int]) -> list[Any]:
    """What every run without a store does: the whole prefix at once."""
    caches = make_prompt_cache(model)
    model(mx.array([prefix]), cache=caches)
    mx.eval([array for cache in caches for array in arrays(cache)])
    return caches


def arrays(cache: Any) -> list[Any]:
    """The arrays that one cache holds."""
    held = cache.cache if isinstance(getattr(cache, "cache", None), list) else [cache.keys, cache.values]
    return [array for array in held if array is not None]


def digest(caches: list[Any], rows: int) -> str:
    """One value for everything the caches hold of the first `rows` tokens, whatever their types and slack."""
    found = hashlib.blake2b()
    for cache in caches:
        for array in arrays(cache):
            held = array[..., :rows, :] if hasattr(cache, "keys") else array
            found.update(np.array(held.astype(mx.float32)).tobytes())
    return found.hexdigest()


def copied(caches: list[Any]) -> list[Any]:
    """Caches of their own, so that generation leaves the originals as they are."""
    return copy.deepcopy(caches)


def rounded_to_half(caches: list[Any]) -> list[Any]:
    """The caches as the published client restores them: attention K/V cast to float16."""
    caches = copied(caches)
    for cache in caches:
        if hasattr(cache, "keys"):
            cache.keys, cache.values = cache.keys.astype(mx.float16), cache.values.astype(mx.float16)
    return caches


def greedy(model: Any, caches: list[Any], suffix: list[int], tokens: int) -> list[int]:
    """The next tokens, each the most likely; the caches are written to."""
    steps = generate_step(
        mx.array(suffix), model, prompt_cache=caches, max_tokens=tokens, prefill_step_size=256
    )
    return [int(token) for token, _ in steps]

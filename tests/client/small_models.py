"""mlx-lm's own model classes, small, with random weights: one for each kind of cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import falcon_h1, gemma3_text, llama, llama4, mamba, qwen3_next

VOCABULARY = 300
WINDOW = 64


def plain(**changes: Any) -> Any:
    arguments = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY, **changes,
    }  # fmt: skip
    return llama.Model(llama.ModelArgs(**arguments))


def sliding() -> Any:
    return gemma3_text.Model(
        gemma3_text.ModelArgs(
            model_type="gemma3_text", hidden_size=32, num_hidden_layers=3, intermediate_size=64,
            num_attention_heads=2, num_key_value_heads=1, head_dim=16, vocab_size=VOCABULARY,
            sliding_window=WINDOW, sliding_window_pattern=3,
        )
    )  # fmt: skip


def recurrent() -> Any:
    return mamba.Model(
        mamba.ModelArgs(
            model_type="mamba", vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, state_size=8,
            num_hidden_layers=2, conv_kernel=4, use_bias=False, use_conv_bias=True, time_step_rank=4,
        )
    )  # fmt: skip


def hybrid() -> Any:
    return qwen3_next.Model(
        qwen3_next.ModelArgs(
            model_type="qwen3_next", hidden_size=32, num_hidden_layers=4, intermediate_size=64,
            num_attention_heads=2, num_key_value_heads=1, head_dim=32, vocab_size=VOCABULARY,
            linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=32,
            linear_value_head_dim=32, linear_conv_kernel_dim=4, num_experts=2, num_experts_per_tok=1,
            decoder_sparse_step=1, shared_expert_intermediate_size=32, mlp_only_layers=[],
            moe_intermediate_size=32, rms_norm_eps=1e-5, rope_theta=1e4, partial_rotary_factor=0.5,
            max_position_embeddings=4096,
        )
    )  # fmt: skip


def nested() -> Any:
    return falcon_h1.Model(
        falcon_h1.ModelArgs(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=16, mamba_d_ssm=32, mamba_d_head=16, mamba_n_heads=2,
            mamba_d_state=16, vocab_size=VOCABULARY,
        )
    )  # fmt: skip


def chunked() -> Any:
    text = {
        "attention_bias": False, "attention_chunk_size": WINDOW, "head_dim": 16, "hidden_size": 32,
        "interleave_moe_layer_step": 2, "intermediate_size": 32, "intermediate_size_mlp": 64,
        "max_position_embeddings": 4096, "model_type": "llama4_text", "num_attention_heads": 2,
        "num_experts_per_tok": 1, "num_hidden_layers": 4, "num_key_value_heads": 1, "num_local_experts": 2,
        "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 1e4, "use_qk_norm": True,
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    return llama4.Model(llama4.ModelArgs(text_config=text, model_type="llama4"))


MODELS: dict[str, Callable[[], Any]] = {
    "llama": plain, "gemma3": sliding, "mamba": recurrent, "qwen3-next": hybrid, "falcon-h1": nested,
    "llama4": chunked,
}  # fmt: skip


def build(make: Callable[[], Any], dtype: str = "float32", seed: int = 7) -> Any:
    """The model with its random weights, the same ones each time, large enough for answers that vary."""
    mx.random.seed(seed)
    model = make()
    model.update(tree_map(lambda array: array * 4 if array.ndim == 2 else array, model.parameters()))
    model.set_dtype(getattr(mx, dtype))
    mx.eval(model.parameters())
    return model

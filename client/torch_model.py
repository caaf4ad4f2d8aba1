"""What a model of transformers computes rows with: its caches, its identity. Imports torch."""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

import numpy as np
import torch
from pionkv.kernels.formats import Element
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from .claim import Progress
from .digest import FIELDS, SAMPLES, Identity, digest_of, field_of_setting, vocabulary
from .errors import UnsupportedModel
from .head_rows import Bits, HeadRows
from .shape import ROWS, CacheLayout, LayerLayout, ModelLayout, Shape, SideLayout

ELEMENTS = {torch.float32: Element.F32, torch.float16: Element.F16, torch.bfloat16: Element.BF16}
CHUNK = 2048
"""Tokens put through the model at once."""

_NOT_IDENTITY = frozenset(
    {
        *("_name_or_path", "architectures", "chunk_size_feed_forward", "dtype", "id2label", "label2id"),
        *("output_attentions", "output_hidden_states", "problem_type", "return_dict", "torch_dtype"),
        *("transformers_version", "use_cache"),
    }
)
_INT_BITS = {Element.BF16: torch.int16}


def run(
    model: Any,
    ids: list[int],
    cache: DynamicCache,
    done: int = 0,
    progress: Progress | None = None,
    chunk: int = CHUNK,
) -> None:
    """Put tokens after the first `done`, which the cache holds, through the model.

    Args:
        model: The model.
        ids: The tokens.
        cache: Their rows are in it, and computed, when this returns.
        done: How many it holds.
        progress: Called after each chunk with the tokens done and the tokens in all.
        chunk: Tokens put through the model at once.
    """
    named: dict[str, Any] = {cache_argument(model): cache, "use_cache": True}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        named["logits_to_keep"] = 1
    while done < len(ids):
        end = min(len(ids), done + chunk)
        with torch.no_grad():
            model(input_ids=torch.tensor([ids[done:end]], device=model.device), **named)
        # A GPU computes beside this thread; who reads what came last waits for it.
        cache.layers[-1].keys[0, 0, -1, 0].item()
        done = end
        if progress is not None:
            progress(done, len(ids))


def cache_argument(model: Any) -> str:
    """What a model, and its `generate`, call their cache: transformers has named it anew in 5.24."""
    adapted = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "cache" if "cache" in inspect.signature(adapted.forward).parameters else "past_key_values"


def generate(model: Any, ids: list[int], cache: DynamicCache, options: dict[str, Any]) -> Any:
    """What the model's `generate` answers to a prompt whose first tokens a cache holds."""
    prompt = torch.tensor([ids], device=model.device)
    return model.generate(prompt, **{cache_argument(model): cache}, **options)


def read_layout(model: Any) -> tuple[ModelLayout, list[torch.device]]:
    """Find out what the model's caches hold, and where each layer's is, by one token.

    Raises:
        UnsupportedModel: A layer keeps something else than one row a token.
    """
    cache = DynamicCache(config=model.config)
    run(model, [0], cache)
    rows = _layers(cache)
    if not rows:
        raise UnsupportedModel("the model has no caches")
    return ModelLayout((ROWS,) * len(rows), rows), [layer.keys.device for layer in cache.layers]


def _layers(cache: Any) -> CacheLayout:
    """What the layers of a cache hold, each a row a token. Raises `UnsupportedModel`."""
    for index, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer:
            raise UnsupportedModel(
                f"layer {index} keeps a {type(layer).__name__}, stored can be {DynamicLayer.__name__}"
            )
        if not layer.is_initialized:
            raise UnsupportedModel(f"layer {index} leaves its cache empty")
        if layer.keys.shape[0] != 1:
            raise UnsupportedModel(f"the cache is of {layer.keys.shape[0]} sequences, stored can be 1")
    return tuple(
        LayerLayout(_side(index, layer.keys), _side(index, layer.values))
        for index, layer in enumerate(cache.layers)
    )


def _side(index: int, tensor: torch.Tensor) -> SideLayout:
    element = ELEMENTS.get(tensor.dtype)
    if element is None:
        raise UnsupportedModel(f"layer {index} keeps {tensor.dtype}, which no format stores")
    return SideLayout(tensor.shape[1], tensor.shape[3], element)


def filled(shape: Shape, cache: Any, tokens: int) -> HeadRows:
    """The first rows of a cache, as they are published.

    Raises:
        UnsupportedModel: It is not a cache of that shape, or holds less.
    """
    if _layers(cache) != shape.layout.rows:
        raise UnsupportedModel("the cache is that of another model")
    held = min(layer.get_seq_length() for layer in cache.layers)
    if held < tokens:
        raise UnsupportedModel(f"the cache holds {held} tokens, not {tokens}")
    sides = [layer.keys[0] for layer in cache.layers], [layer.values[0] for layer in cache.layers]
    return HeadRows(shape, sides, tokens, bits_of)


def bits_of(tensor: torch.Tensor) -> Bits:
    """The elements of a tensor, or the bits of bfloat16, in memory of the CPU."""
    tensor = tensor.detach().contiguous().cpu()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy().view(np.uint16))
    return np.asarray(tensor.numpy())


def tensor_of(bits: Bits, element: Element, device: Any) -> torch.Tensor:
    """What `bits_of` was taken from, on a device."""
    if element is Element.BF16:
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(bits).to(device)


def cache_of(
    model: Any, layout: ModelLayout, devices: list[torch.device], arrays: list[Bits]
) -> DynamicCache:
    """A cache of arrays ``[heads, tokens, head_dim]``, k0 v0 k1 v1 and so on, each layer on its device."""
    cache = DynamicCache(config=model.config)
    sides = zip(layout.rows, devices, arrays[::2], arrays[1::2], strict=True)
    for index, (layer, device, keys, values) in enumerate(sides):
        cache.update(
            tensor_of(keys, layer.keys.element, device)[None],
            tensor_of(values, layer.values.element, device)[None],
            index,
        )
    return cache


def identify(
    model: Any, tokenizer: Any = None, *, caches: object = None, format: object = None, full: bool = False
) -> Identity:
    """Take the fingerprint of a model; arguments as `fingerprint.identify`."""
    parts: dict[str, list[Any]] = {name: [] for name in FIELDS}
    parts["architecture"] = ["transformers", type(model).__qualname__]
    for key, value in sorted(model.config.to_dict().items()):
        if key not in _NOT_IDENTITY:
            parts[field_of_setting(key)].append((key, value))
    for name, settings in sorted((getattr(model, "peft_config", None) or {}).items()):
        described = settings.to_dict() if hasattr(settings, "to_dict") else settings
        parts["adapter"].append((name, described))
    for name, tensor in sorted(model.state_dict().items()):
        field = "adapter" if "lora_" in name or "adapter" in name else "weights"
        where = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        parts[field].append((where, str(tensor.dtype), list(tensor.shape), _sampled(tensor, full)))
    parts["tokenizer"] = [vocabulary(tokenizer)]
    parts["template"] = [getattr(tokenizer, "chat_template", None)]
    parts["caches"], parts["format"] = [repr(caches)], [repr(format)]
    return Identity({name: digest_of(found) for name, found in parts.items()})


def _sampled(tensor: torch.Tensor, full: bool) -> str:
    flat = tensor.detach().reshape(-1)
    if not full and flat.numel() > SAMPLES:
        at = np.linspace(0, flat.numel() - 1, SAMPLES).astype(np.int64)
        flat = flat[torch.from_numpy(at).to(flat.device)]
    return hashlib.sha256(flat.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()

"""What computed a prefix, taken from the model and tokenizer objects: rows are reused by the same only.

A model's digest is ``<sha256 of all fields, 32 hex>.<8 hex of each field>``: equal digests mean that rows may
be reused, and of two that differ the fields say in what. Nothing in it depends on the process, the order of a
set, Python's hash seed, or the Python version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from .digest import FIELDS, SAMPLES, Identity, digest_of, field_of_setting, vocabulary

_UNNAMED = frozenset({"training", "_no_grad", "_training"})
_PLAIN = (bool, int, float, str, type(None))


def identify(
    model: Any, tokenizer: Any = None, *, caches: object = None, format: object = None, full: bool = False
) -> Identity:
    """Take the fingerprint of a model.

    Args:
        model: An mlx-lm model.
        tokenizer: Its tokenizer, of any kind that has a vocabulary; None leaves it and the template out.
        caches: What its caches look like; anything with a stable `repr`.
        format: The formats that its rows are stored in; likewise.
        full: Read every byte of the weights instead of `SAMPLES` elements of each array. Slow, and only of
            use where weights may differ in a few elements.
    """
    config = _config(model)
    parts: dict[str, list[Any]] = {name: [] for name in FIELDS}
    parts["architecture"] = [type(model).__module__, type(model).__qualname__]
    for key, value in config.items():
        parts[field_of_setting(key)].append((key, value))
    modules = dict(sorted(model.named_modules()))
    for path, module in modules.items():
        field, shown = _field_of_module(module), _path_without_adapter(path, modules)
        if field == "architecture" and shown != path:
            field = "adapter"
        parts[field].append((shown, type(module).__name__, _settings(module)))
        for name, array in _arrays(module):
            where = "weights" if field in ("architecture", "quantisation") else field
            parts[where].append((shown, name, str(array.dtype), list(array.shape), _bits(array, full)))
    parts["tokenizer"] = [vocabulary(tokenizer)]
    parts["template"] = [getattr(tokenizer, "chat_template", None)]
    parts["caches"], parts["format"] = [repr(caches)], [repr(format)]
    return Identity({name: digest_of(found) for name, found in parts.items()})


def _config(model: Any) -> dict[str, Any]:
    arguments = getattr(model, "args", None) or getattr(model, "config", None)
    if is_dataclass(arguments) and not isinstance(arguments, type):
        return asdict(arguments)
    return dict(arguments) if isinstance(arguments, Mapping) else {}


def _field_of_module(module: Any) -> str:
    name = type(module).__name__.lower()
    if "lora" in name or "dora" in name:
        return "adapter"
    if "rope" in name or "rotary" in name:
        return "rope"
    return "quantisation" if name.endswith(("linear", "embedding")) else "architecture"


def _path_without_adapter(path: str, modules: Mapping[str, Any]) -> str:
    """An adapter takes the place of a layer and holds it: that layer is where it was."""
    parent = path.rpartition(".")[0]
    return parent if parent in modules and _field_of_module(modules[parent]) == "adapter" else path


def _settings(module: Any) -> list[tuple[str, Any]]:
    """Its plain attributes: sizes, scales, bits, and so on."""
    found = {**vars(module), **module}
    plain = {name: value for name, value in found.items() if name not in _UNNAMED and _is_plain(value)}
    return sorted(plain.items())


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _arrays(module: Any) -> Iterator[tuple[str, mx.array]]:
    """The arrays of a module itself, those that are no parameters included."""
    for name, value in sorted(module.items()):
        if isinstance(value, mx.array):
            yield name, value


def _bits(array: mx.array, full: bool) -> str:
    flat = array.reshape(-1)
    if not full and flat.size > SAMPLES:
        flat = flat[mx.array(np.linspace(0, flat.size - 1, SAMPLES).astype(np.int64))]
    return hashlib.sha256(np.array(flat.view(mx.uint8)).tobytes()).hexdigest()

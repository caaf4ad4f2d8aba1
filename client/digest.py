"""What stands for a model in the store.

A model's digest is ``<sha256 of all fields, 32 hex>.<8 hex of each field>``: equal digests mean that rows may
be reused, and of two that differ the fields say in what. Nothing in it depends on the process, the order of a
set, Python's hash seed, or the Python version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

FIELDS = (
    *("architecture", "rope", "quantisation", "adapter", "weights"),
    *("tokenizer", "template", "caches", "format"),
)
"""In the order of the digest."""

SAMPLES = 64
"""Elements of each array that the quick fingerprint of the weights reads, evenly spread."""

_WHOLE, _EACH = 32, 8


@dataclass(frozen=True, slots=True)
class Identity:
    """The fingerprint of what computes rows.

    Attributes:
        fields: For each of `FIELDS` a digest, 64 hex digits.
    """

    fields: Mapping[str, str]

    @property
    def digest(self) -> str:
        """What stands for it in the store, 113 characters."""
        parts = [self.fields[name] for name in FIELDS]
        whole = hashlib.sha256("|".join(parts).encode()).hexdigest()[:_WHOLE]
        return ".".join((whole, *(part[:_EACH] for part in parts)))


def differences(one: str, other: str) -> tuple[str, ...]:
    """The fields in which two digests differ; ("everything",) when one of them is of another kind."""
    ours, theirs = one.split(".")[1:], other.split(".")[1:]
    if not len(ours) == len(theirs) == len(FIELDS):
        return ("everything",)
    return tuple(name for name, a, b in zip(FIELDS, ours, theirs, strict=True) if a != b)


def field_of_setting(key: str) -> str:
    """The field that a setting of a model's configuration belongs to."""
    if "rope" in key or "rotary" in key:
        return "rope"
    return "quantisation" if "quantization" in key else "architecture"


def vocabulary(tokenizer: Any) -> str | None:
    """A digest of what turns text into tokens; None when nothing is known of it."""
    for candidate in _layers(tokenizer):
        if hasattr(candidate, "to_str"):
            described = json.loads(candidate.to_str())
            # Of the last call, not of the tokenizer.
            described.pop("truncation", None)
            described.pop("padding", None)
            return digest_of(described)
    for candidate in _layers(tokenizer):
        if hasattr(candidate, "get_vocab"):
            return digest_of(sorted(candidate.get_vocab().items()))
    return None


def _layers(tokenizer: Any) -> Iterator[Any]:
    """A tokenizer and what it wraps."""
    seen: list[int] = []
    while tokenizer is not None and id(tokenizer) not in seen:
        seen.append(id(tokenizer))
        yield tokenizer
        inner = vars(tokenizer).get("_tokenizer") if hasattr(tokenizer, "__dict__") else None
        tokenizer = inner if inner is not None else getattr(tokenizer, "backend_tokenizer", None)


def digest_of(value: Any) -> str:
    """64 hex digits that stand for a value: the same in every process, whatever it is made of."""
    text = json.dumps(_stable(value), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _stable(value: Any) -> Any:
    """What JSON can show: sets in an order, functions and objects by name, never by address."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): _stable(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_stable(each), sort_keys=True) for each in value)
    if isinstance(value, list | tuple):
        return [_stable(each) for each in value]
    named = value if hasattr(value, "__qualname__") else type(value)
    shown = str(value)
    return f"{named.__module__}.{named.__qualname__}" + ("" if " at 0x" in shown else f" {shown}")

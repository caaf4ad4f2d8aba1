"""What a model's caches look like: their classes; of those kept as rows heads, sizes, elements, formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pionkv.kernels.formats import Element, LayerSpec

from .plan import Attached, Plan

ROWS, PACKED_ROWS = "KVCache", "QuantizedKVCache"
"""Classes whose caches are kept as rows, one for each token."""

BULK_BYTES = 64 * 1024 * 1024
"""Longest run of rows in one bulk string; servers accept 512 MiB."""


@dataclass(frozen=True, slots=True)
class SideLayout:
    """The keys, or the values, of one layer: an array ``[1, heads, tokens, head_dim]`` of `element`."""

    heads: int
    head_dim: int
    element: Element

    @property
    def dim(self) -> int:
        """Elements in a row: those of one token, all heads."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """Keys and values of one layer."""

    keys: SideLayout
    values: SideLayout


CacheLayout = tuple[LayerLayout, ...]


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """The caches of a model.

    Attributes:
        kinds: The class of each, by name.
        rows: Those of class KVCache, in order: a row a token.
    """

    kinds: tuple[str, ...]
    rows: CacheLayout

    @property
    def row_caches(self) -> tuple[int, ...]:
        """Which caches are kept as rows."""
        return tuple(index for index, kind in enumerate(self.kinds) if kind == ROWS)

    @property
    def state_caches(self) -> tuple[int, ...]:
        """Which caches are kept as states: as they are after the last token, and of use there only."""
        return tuple(index for index, kind in enumerate(self.kinds) if kind != ROWS)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a client and its prefixes agree on.

    Attributes:
        layout: The model's caches.
        plan: The formats of those kept as rows.
        attached: How rows stay packed; None when they are unpacked.
    """

    layout: ModelLayout
    plan: Plan
    attached: Attached | None = None

    @property
    def specs(self) -> tuple[LayerSpec, ...]:
        """All layers as a reply orders them: k0 v0 k1 v1 and so on."""
        return tuple(spec for pair in zip(self.plan.keys, self.plan.values, strict=True) for spec in pair)

    def objection(self, caches: Sequence[Any], tokens: int) -> str | None:
        """Why caches are not those of so many tokens, as far as they can tell; None: they are."""
        packed = ROWS if self.attached is None else PACKED_ROWS
        kinds = tuple(packed if kind == ROWS else kind for kind in self.layout.kinds)
        given = tuple(type(cache).__name__ for cache in caches)
        if given != kinds:
            return f"caches are {', '.join(dict.fromkeys(given))}, not {', '.join(dict.fromkeys(kinds))}"
        offsets = [getattr(cache, "offset", tokens) for cache in caches]
        # Rows that are too many do no harm; a state is that after its last token.
        wrong = [offsets[index] for index in self.layout.row_caches if offsets[index] < tokens]
        wrong += [offsets[index] for index in self.layout.state_caches if offsets[index] != tokens]
        return f"caches hold {wrong[0]} tokens, not {tokens}" if wrong else None

    @property
    def whole(self) -> bool:
        """Whether a stored prefix is of use in its full length only."""
        return bool(self.layout.state_caches)


def runs(first: int, end: int, row_bytes: int, most: int | None = None) -> Iterator[tuple[int, int]]:
    """Cut the rows `first` to `end - 1` so that each run fits a bulk string, and has at most `most`."""
    step = max(1, BULK_BYTES // row_bytes)
    step = step if most is None else min(step, most)
    return ((start, min(start + step, end)) for start in range(first, end, step))

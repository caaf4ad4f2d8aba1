"""Which format each layer and side is stored in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pionkv.kernels.formats import FORMATS, HEAD, Element, LayerSpec, format_by_name, keys_format

if TYPE_CHECKING:
    from .shape import CacheLayout, SideLayout

AUTO = "auto"

_EXACT = {Element.F32: "fp32", Element.F16: "fp16", Element.BF16: "bf16"}
# 16 bits keep a protected layer's error far below that of any quantised neighbour, at half the bytes of fp32.
_PROTECTED = {Element.F32: "fp16", Element.F16: "fp16", Element.BF16: "bf16"}


_NOTHING = LayerSpec("fp16", 1)
"""What a prefix without rows is registered with."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The schemas of a prefix: one spec for each layer, of both sides."""

    keys: tuple[LayerSpec, ...]
    values: tuple[LayerSpec, ...]

    @property
    def uniform(self) -> LayerSpec | None:
        """The one spec of all layers and sides, if there is only one and a format and a dim say all of it."""
        specs = {*self.keys, *self.values} or {_NOTHING}
        first, *others = specs
        return None if others or first.rope or first.head_dim else first

    def bytes(self, tokens: int) -> int:
        """Bytes that `tokens` rows of every layer and side take as fetched."""
        return tokens * sum(spec.wire.row_bytes for spec in (*self.keys, *self.values))


@dataclass(frozen=True, slots=True)
class Attached:
    """Rows stay packed: caches are mlx-lm's QuantizedKVCache.

    Attributes:
        bits: Bits of an element.
        group_size: Elements that share a scale and a bias.
    """

    bits: int
    group_size: int

    @property
    def format(self) -> str:
        """The format that its rows are stored in."""
        return f"mlx{self.bits}g{self.group_size}"


def attach(bits: int | None, group_size: int) -> Attached | None:
    """How rows stay packed; None for `bits` of None.

    Raises:
        ValueError: Rows cannot be stored so.
    """
    if bits is None:
        return None
    attached = Attached(bits, group_size)
    if attached.format not in FORMATS:
        raise ValueError(
            f"kv_bits {bits} in groups of {group_size}: stored can be 4 or 8, in groups of 32 or 64"
        )
    return attached


def make_plan(layout: "CacheLayout", vquant: str = AUTO, boundary_protect: int = 0) -> Plan:
    """Choose the formats.

    Args:
        layout: What the model's caches hold.
        vquant: Name of a format, or "auto" for the format of the model's own element type, which is exact.
        boundary_protect: If above 0, `vquant` is used for values only, and not in the first and the last so
            many layers; all else is kept in 16 bits (bf16 for a bf16 model, fp16 otherwise).

    Raises:
        UnknownFormat: No format is called `vquant`.
        FormatError: The format cannot hold the rows of this model.
        ValueError: `boundary_protect` is negative.
    """
    if boundary_protect < 0:
        raise ValueError(f"boundary_protect is {boundary_protect}, it must not be negative")
    keys = [layer.keys for layer in layout]
    values = [layer.values for layer in layout]
    if not boundary_protect:
        return Plan(_specs(keys, keys_format(vquant)), _specs(values, vquant))
    last = len(layout) - boundary_protect
    middle = _specs(values, vquant)
    protected = tuple(LayerSpec(_PROTECTED[side.element], side.dim) for side in values)
    return Plan(
        tuple(LayerSpec(_PROTECTED[side.element], side.dim) for side in keys),
        tuple(
            middle[layer] if boundary_protect <= layer < last else protected[layer]
            for layer in range(len(layout))
        ),
    )


def _specs(sides: "Sequence[SideLayout]", vquant: str) -> tuple[LayerSpec, ...]:
    specs = tuple(_spec(side, _EXACT[side.element] if vquant.lower() == AUTO else vquant) for side in sides)
    for spec in specs:
        spec.validate()
    return specs


def _spec(side: "SideLayout", name: str) -> LayerSpec:
    by_head = format_by_name(name).group == HEAD
    return LayerSpec(name, side.dim, head_dim=side.head_dim if by_head else 0)

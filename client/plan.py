"""Which format each layer and side is stored in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pionkv.kernels.formats import HEAD, Element, LayerSpec, format_by_name

if TYPE_CHECKING:
    from .layout import CacheLayout, SideLayout

AUTO = "auto"

_EXACT = {Element.F32: "fp32", Element.F16: "fp16", Element.BF16: "bf16"}
# 16 bits keep a protected layer's error far below that of any quantised neighbour, at half the bytes of fp32.
_PROTECTED = {Element.F32: "fp16", Element.F16: "fp16", Element.BF16: "bf16"}


@dataclass(frozen=True, slots=True)
class Plan:
    """The schemas of a prefix: one spec for each layer, of both sides."""

    keys: tuple[LayerSpec, ...]
    values: tuple[LayerSpec, ...]

    @property
    def uniform(self) -> LayerSpec | None:
        """The one spec of all layers and sides, if there is only one and a format and a dim say all of it."""
        first, *others = {*self.keys, *self.values}
        return None if others or first.rope or first.head_dim else first

    def bytes(self, tokens: int) -> int:
        """Bytes that `tokens` rows of every layer and side take, as stored and as fetched."""
        return tokens * sum(spec.row_bytes for spec in (*self.keys, *self.values))


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
        return Plan(_specs(keys, vquant), _specs(values, vquant))
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

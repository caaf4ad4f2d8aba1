"""The registry of storage formats: names, tags, and the only place that knows bytes per row.

A row is one token's K (or V) of one layer. In every format here a row is coded on its own, so rows can be
appended, cut and copied without touching their neighbours.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from .errors import FormatError, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DIM: Final = 8192
"""Largest number of elements in a row, that of the original server."""

FP16_MAX: Final = 65504.0
FP32_MAX: Final = float.fromhex("0x1.fffffep+127")
BF16_MAX: Final = float.fromhex("0x1.fep+127")

HEAD: Final = 0
"""As a format's `group`: the group is one head, whose size the layer has to say."""


class Element(enum.IntEnum):
    """Type of the elements that `pack` reads and `unpack` writes, little-endian."""

    F32 = 0
    F16 = 1
    BF16 = 2

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 4 if self is Element.F32 else 2


@dataclass(frozen=True, slots=True)
class Format:
    """A byte layout of a row.

    Attributes:
        name: Lower-case name, as used on the wire.
        tag: Number that stands for the format on disk; never reused.
        bits: Bits of the code of one element.
        group: Elements that share quantization parameters; `HEAD` for one head; 1 when there is no group.
        group_params: Bytes of parameters of one group.
        row_params: Bytes of parameters of the row.
        limit: Largest magnitude that `pack` accepts; what lies beyond raises `Overflow`.
        verbatim: The element type whose bytes are stored as they are, if the format is one.
        summary: One line for tables and help.
    """

    name: str
    tag: int
    bits: int
    group: int
    group_params: int
    row_params: int
    limit: float
    summary: str
    verbatim: Element | None = None

    @property
    def quantized(self) -> bool:
        """Whether `pack` chooses codes, and therefore refuses NaN and infinities."""
        return self.verbatim is None

    def codes_and_params(self, elements: int, head_dim: int = 0) -> int:
        """Bytes of codes and group parameters of `elements` elements.

        Args:
            elements: Number of elements, a multiple of the group.
            head_dim: Elements of one head, for formats whose group is a head.
        """
        return elements * self.bits // 8 + elements // (self.group or head_dim) * self.group_params


_TURBO = "codes of rotated blocks, a scale per 32"
_MLX = "mlx's QuantizedKVCache layout"
_ALL = (
    Format("fp32", 16, 32, 1, 0, 0, FP32_MAX, "float32 as it comes", Element.F32),
    Format("fp16", 2, 16, 1, 0, 0, FP16_MAX, "float16 as it comes", Element.F16),
    Format("bf16", 17, 16, 1, 0, 0, BF16_MAX, "bfloat16 as it comes", Element.BF16),
    Format("int8", 0, 8, 1, 0, 8, FP32_MAX / 2, "8-bit codes, a scale and a minimum per row"),
    Format("fp8", 5, 8, 32, 2, 4, 240 * FP16_MAX, "E4M3 codes, a scale per 32"),
    Format("turbo4", 1, 4, 32, 2, 4, FP32_MAX / 8, f"4-bit {_TURBO}"),
    Format("turbo3", 3, 3, 32, 2, 4, FP32_MAX / 8, f"3-bit {_TURBO}"),
    Format("turbo2", 4, 2, 32, 2, 4, FP32_MAX / 8, f"2-bit {_TURBO}"),
    Format("mlx4g32", 7, 4, 32, 4, 0, FP16_MAX, f"{_MLX}: 4 bits, groups of 32, codes as mx.quantize"),
)

FORMATS: Final[Mapping[str, Format]] = MappingProxyType({f.name: f for f in _ALL})
_BY_TAG: Final = {f.tag: f for f in _ALL}


def format_by_name(name: str) -> Format:
    """The format with this name, in any case.

    Raises:
        UnknownFormat: No format has this name.
    """
    found = FORMATS.get(name.lower())
    if found is None:
        raise UnknownFormat(f"unknown format '{name.lower()}' (want {'|'.join(FORMATS)})")
    return found


def format_by_tag(tag: int) -> Format:
    """The format with this on-disk tag.

    Raises:
        UnknownFormat: No format has this tag.
    """
    found = _BY_TAG.get(tag)
    if found is None:
        raise UnknownFormat(f"unknown format tag {tag}")
    return found


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """How the rows of one layer, of one side, are stored.

    Attributes:
        format: Name of the format, in any case.
        dim: Elements in a row (heads x head size).
        rope: Leading elements kept as bfloat16, for `bf16_rope_fp8_body` only.
        head_dim: Elements of one head, for formats whose group is a head.
    """

    format: str
    dim: int
    rope: int = 0
    head_dim: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", self.format.lower())

    @property
    def details(self) -> Format:
        """The registry's entry of the format."""
        return format_by_name(self.format)

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row. Rows follow each other without padding."""
        fmt = self.details
        body = self.dim - self.rope
        return self.rope * 2 + fmt.row_params + fmt.codes_and_params(body, self.head_dim)

    @property
    def verbatim_element(self) -> Element | None:
        """The element type that is stored byte for byte, or None when `pack` has to run."""
        return self.details.verbatim

    def validate(self) -> None:
        """Check the description.

        Raises:
            UnknownFormat: No format has this name.
            FormatError: The dim does not fit the format.
        """
        fmt = self.details
        if not 1 <= self.dim <= MAX_DIM:
            raise FormatError(f"{fmt.name}: dim {self.dim} is not in 1..{MAX_DIM}")
        if self.dim % fmt.group:
            raise FormatError(f"{fmt.name}: dim {self.dim} is not a multiple of {fmt.group}")

"""The registry of storage formats: names, tags, and the only place that knows bytes per row.

A row is one token's K (or V) of one layer. In every format of `FORMATS` a row is coded on its own, so rows
can be appended, cut and copied without touching their neighbors. Those of `GROUP_FORMATS` code a group of
tokens when all of them are there; until then they are fp16 rows.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from .errors import FormatError, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DIM: Final = 8192
"""Largest number of elements in a row, that of the original server."""

FP16_MAX: Final = 65504.0
FP32_MAX: Final = float.fromhex("0x1.fffffep+127")
BF16_MAX: Final = float.fromhex("0x1.fep+127")

GROUP_FAMILY: Final = "kivi"
GROUP_TOKENS: Final = 32
"""Rows of a closed group."""
TAIL_TOKENS: Final = 128
"""The newest rows, which stay in fp16 at least."""
KEYS_SUFFIX: Final = "_keys"

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


class Affine(enum.IntEnum):
    """How an affine format chooses its codes; decoding is the same."""

    MLX = 0
    ROUND_TRIP = 1


@dataclass(frozen=True, slots=True)
class Format:
    """A byte layout of a row.

    Attributes:
        name: Lower-case name, as used on the wire.
        tag: Number that stands for the format on disk; never reused.
        family: Name of the backends' module that codes it.
        bits: Bits of the code of one element.
        group: Elements that share quantization parameters; `HEAD` for one head; 1 when there is no group.
        group_params: Bytes of parameters of one group.
        row_params: Bytes of parameters of the row.
        limit: Largest magnitude that `pack` accepts; what lies beyond raises `Overflow`.
        summary: One line for tables and help.
        variant: What tells formats of one family apart: the element type of `plain`, the rule of `affine`,
            the mantissa bits of `fp8`.
        tokens: Rows that are coded together, and decoded together.
    """

    name: str
    tag: int
    family: str
    bits: int
    group: int
    group_params: int
    row_params: int
    limit: float
    summary: str
    variant: int = 0
    tokens: int = 1

    @property
    def grouped(self) -> bool:
        """Whether rows are coded in groups of `GROUP_TOKENS`, the newest ones staying in fp16."""
        return self.family == GROUP_FAMILY

    @property
    def verbatim(self) -> Element | None:
        """The element type whose bytes are stored as they are, if the format is one."""
        return Element(self.variant) if self.family == "plain" else None

    @property
    def quantized(self) -> bool:
        """Whether `pack` chooses codes, and therefore refuses NaN and infinities."""
        return self.verbatim is None


_TURBO_LIMIT: Final = FP32_MAX / 8
_FP8_LIMIT: Final = 240 * FP16_MAX
_RVQ_LIMIT: Final = 2.0**56
_TURBO: Final = "codes of rotated blocks, a scale per 32"
_MLX: Final = "in mlx's QuantizedKVCache layout"
_RVQ: Final = "bits for each of two stages on a rotated head, one gain a head"

_ALL: Final = (
    Format("fp32", 16, "plain", 32, 1, 0, 0, FP32_MAX, "float32 as it comes", Element.F32),
    Format("fp16", 2, "plain", 16, 1, 0, 0, FP16_MAX, "float16 as it comes", Element.F16),
    Format("bf16", 17, "plain", 16, 1, 0, 0, BF16_MAX, "bfloat16 as it comes", Element.BF16),
    Format("int8", 0, "int8", 8, 1, 0, 8, FP32_MAX / 4, "8-bit codes, a scale and a minimum per row"),
    Format("fp8", 5, "fp8", 8, 32, 2, 4, _FP8_LIMIT, "E4M3 codes, a scale per 32", 3),
    Format("fp8_e5m2", 22, "fp8", 8, 32, 2, 4, 224 * FP16_MAX, "E5M2 codes, a scale per 32", 2),
    Format("bf16_rope_fp8_body", 6, "rope", 8, 32, 2, 0, _FP8_LIMIT, "bfloat16 for rope elements, fp8 after"),
    Format("turbo4", 1, "turbo", 4, 32, 2, 4, _TURBO_LIMIT, f"4-bit {_TURBO}"),
    Format("turbo3", 3, "turbo", 3, 32, 2, 4, _TURBO_LIMIT, f"3-bit {_TURBO}"),
    Format("turbo2", 4, "turbo", 2, 32, 2, 4, _TURBO_LIMIT, f"2-bit {_TURBO}"),
    Format("mlx4g32", 7, "affine", 4, 32, 4, 0, FP16_MAX, f"4 bits, groups of 32 {_MLX}"),
    Format("mlx4g64", 18, "affine", 4, 64, 4, 0, FP16_MAX, f"4 bits, groups of 64 {_MLX}"),
    Format("mlx8g32", 19, "affine", 8, 32, 4, 0, FP16_MAX, f"8 bits, groups of 32 {_MLX}"),
    Format("mlx8g64", 20, "affine", 8, 64, 4, 0, FP16_MAX, f"8 bits, groups of 64 {_MLX}"),
    Format(
        "mlx4g32_rt",
        21,
        "affine",
        4,
        32,
        4,
        0,
        FP16_MAX,
        "mlx4g32 with codes chosen for the scale and bias as stored",
        Affine.ROUND_TRIP,
    ),
    Format("qserve4", 23, "qserve", 4, HEAD, 4, 0, FP16_MAX, "4 bits, a scale and a floating offset a head"),
    Format("rvq1", 24, "rvq", 2, HEAD, 2, 0, _RVQ_LIMIT, f"1 {_RVQ}"),
    Format("rvq2", 25, "rvq", 4, HEAD, 2, 0, _RVQ_LIMIT, f"2 {_RVQ}"),
)

_BY_TOKEN: Final = "a scale and a zero per 32 channels of a token"
_BY_CHANNEL: Final = "a scale and a zero per channel of 32 tokens"

_GROUPED: Final = (
    Format("kivi4", 26, GROUP_FAMILY, 4, 32, 4, 0, FP16_MAX, f"4 bits, {_BY_TOKEN}"),
    Format("kivi2", 27, GROUP_FAMILY, 2, 32, 4, 0, FP16_MAX, f"2 bits, {_BY_TOKEN}"),
    Format("kivi4_keys", 28, GROUP_FAMILY, 4, 32, 4, 0, FP16_MAX, f"4 bits, {_BY_CHANNEL}", 0, GROUP_TOKENS),
    Format("kivi2_keys", 29, GROUP_FAMILY, 2, 32, 4, 0, FP16_MAX, f"2 bits, {_BY_CHANNEL}", 0, GROUP_TOKENS),
)

FORMATS: Final[Mapping[str, Format]] = MappingProxyType({f.name: f for f in _ALL})
"""The row formats."""
GROUP_FORMATS: Final[Mapping[str, Format]] = MappingProxyType({f.name: f for f in _GROUPED})
"""The formats that close groups of tokens."""
LAYER_FORMATS: Final[Mapping[str, Format]] = MappingProxyType({**FORMATS, **GROUP_FORMATS})
"""All that a layer can be stored in."""
_BY_TAG: Final = {f.tag: f for f in LAYER_FORMATS.values()}


def keys_format(name: str) -> str:
    """The format that keys get when a prefix is to be stored in this one."""
    keys = name.lower() + KEYS_SUFFIX
    return keys if keys in GROUP_FORMATS else name


def format_by_name(name: str) -> Format:
    """The format with this name, in any case.

    Raises:
        UnknownFormat: No format has this name.
    """
    found = LAYER_FORMATS.get(name.lower())
    if found is None:
        raise UnknownFormat(f"unknown format '{name.lower()}' (want {'|'.join(LAYER_FORMATS)})")
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


class RowParts(NamedTuple):
    """Bytes of one row by what they are.

    Attributes:
        codes: Quantized elements.
        scales: Scales, minima, offsets and gains of them.
        full_precision: Elements that are not quantized.
    """

    codes: int
    scales: int
    full_precision: int


UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """How the rows of one layer, of one side, are stored.

    Attributes:
        format: Name of the format, in any case.
        dim: Elements in a row (heads x head size).
        rope: Leading elements kept as bfloat16; for `bf16_rope_fp8_body` only, else 0.
        head_dim: Elements of one head; for formats whose group is a head only, else 0.
    """

    format: str
    dim: int
    rope: int = 0
    head_dim: int = 0
    _row_bytes: int = field(default=UNKNOWN, init=False, repr=False, compare=False)
    """Computed once: it is asked for whenever rows move."""
    _details: Format | None = field(default=None, init=False, repr=False, compare=False)
    """Found once, likewise."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", self.format.lower())

    @property
    def details(self) -> Format:
        """The registry's entry of the format.

        Raises:
            UnknownFormat: There is none.
        """
        found = self._details
        if found is None:
            found = format_by_name(self.format)
            object.__setattr__(self, "_details", found)
        return found

    @property
    def group(self) -> int:
        """Elements that share quantization parameters."""
        return self.details.group or self.head_dim

    @property
    def wire(self) -> LayerSpec:
        """How rows are handed over as they are stored: so; where groups of them are coded, as fp16 rows."""
        return LayerSpec("fp16", self.dim) if self.details.grouped else self

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row, of one in a closed group. Rows follow each other without padding."""
        if self._row_bytes == UNKNOWN:
            object.__setattr__(self, "_row_bytes", sum(self.row_parts))
        return self._row_bytes

    def coded_rows(self, rows: int) -> int:
        """How many of so many rows, written after one another, are coded; those after them are as `wire`."""
        return max(0, rows - TAIL_TOKENS) // GROUP_TOKENS * GROUP_TOKENS if self.details.grouped else rows

    def stored_bytes(self, rows: int) -> int:
        """Bytes of so many rows, written after one another."""
        coded = self.coded_rows(rows)
        return coded * self.row_bytes + (rows - coded) * self.wire.row_bytes

    @property
    def row_parts(self) -> RowParts:
        """What those bytes are."""
        fmt = self.details
        coded = self.dim - self.rope
        elements = coded * fmt.bits // 8
        if not fmt.quantized:
            return RowParts(0, 0, elements)
        scales = fmt.row_params + coded // self.group * fmt.group_params
        return RowParts(elements, scales, 2 * self.rope)

    @property
    def verbatim_element(self) -> Element | None:
        """The element type that is stored byte for byte, or None when `pack` has to run."""
        return self.details.verbatim

    def validate(self) -> None:
        """Check the description.

        Raises:
            UnknownFormat: No format has this name.
            FormatError: The dim, rope or head_dim does not fit the format.
        """
        fmt = self.details
        if not 1 <= self.dim <= MAX_DIM:
            raise FormatError(f"{fmt.name}: dim {self.dim} is not in 1..{MAX_DIM}")
        if fmt.family == "rope":
            _check_rope(self)
        elif self.rope:
            raise FormatError(f"{fmt.name}: rope={self.rope} is for bf16_rope_fp8_body only")
        elif fmt.group == HEAD:
            _check_head(self)
        elif self.dim % fmt.group:
            raise FormatError(f"{fmt.name}: dim {self.dim} is not a multiple of {fmt.group}")
        if self.head_dim and fmt.group != HEAD:
            raise FormatError(f"{fmt.name}: head_dim={self.head_dim} is for formats grouped by head only")


def smallest_spec(name: str) -> LayerSpec:
    """A valid spec of the fewest elements: one group, with the rope or head size that the format needs.

    Raises:
        UnknownFormat: No format has this name.
    """
    fmt = format_by_name(name)
    rope = 2 if fmt.family == "rope" else 0
    head_dim = 32 if fmt.group == HEAD else 0
    return LayerSpec(fmt.name, rope + (fmt.group or head_dim), rope, head_dim)


def _check_rope(spec: LayerSpec) -> None:
    if not 0 < spec.rope < spec.dim:
        raise FormatError(f"{spec.format}: rope {spec.rope} is not between 0 and dim {spec.dim}")
    if (spec.dim - spec.rope) % 32:
        raise FormatError(f"{spec.format}: dim {spec.dim} - rope {spec.rope} is not a multiple of 32")


def _check_head(spec: LayerSpec) -> None:
    head = spec.head_dim
    if head < 1 or spec.dim % head:
        raise FormatError(f"{spec.format}: dim {spec.dim} is not a multiple of head_dim {head}")
    if spec.details.family == "rvq" and (head < 32 or head & (head - 1)):
        raise FormatError(f"{spec.format}: head_dim {head} is not a power of two of at least 32")
    if head % 2:
        raise FormatError(f"{spec.format}: head_dim {head} is odd")

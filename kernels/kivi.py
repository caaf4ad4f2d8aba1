"""kivi4 and kivi2: keys coded per channel in closed groups of tokens, values per token.

After KIVI (Z. Liu et al., 2024). A group of keys shares a scale and a zero for each channel, so it can be
coded only when all its tokens exist; the newest tokens stay in full precision. This is no row format: a key
group is the unit that is coded and decoded. Values have a scale and a zero for each group of channels of
one token, and are rows. As layer formats they are `kivi4`, `kivi4_keys` and so on: see `kivi_spec`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from .backends import backend_module, load_backend
from .batch import batch_of
from .errors import FormatError, UnknownFormat
from .formats import FP16_MAX, GROUP_TOKENS, KEYS_SUFFIX, MAX_DIM

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from .batch import Batch
    from .formats import Element, LayerSpec
    from .layout import Heads

BITS: Final = {"kivi4": 4, "kivi2": 2}
LIMIT: Final = FP16_MAX
"""Largest magnitude that can be stored: the zero of a group is an fp16 number."""


class Side(enum.Enum):
    """Which of the two is coded."""

    KEYS = "keys"
    VALUES = "values"


@dataclass(frozen=True, slots=True)
class KiviSpec:
    """How one layer's keys and values are coded.

    Attributes:
        format: `kivi4` or `kivi2`.
        dim: Elements in a row, a multiple of `channels`.
        tokens: Tokens in a key group.
        channels: Elements of a value row that share a scale and a zero.
    """

    format: str
    dim: int
    tokens: int = GROUP_TOKENS
    channels: int = 32

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return BITS[self.format]

    @property
    def key_group_bytes(self) -> int:
        """Bytes of one group of keys: codes token by token, fp16 scales, fp16 zeros."""
        return self.tokens * self.dim * self.bits // 8 + 4 * self.dim

    @property
    def value_row_bytes(self) -> int:
        """Bytes of one row of values: codes, fp16 scales, fp16 zeros."""
        return self.dim * self.bits // 8 + 4 * (self.dim // self.channels)

    def stored_bytes(self, side: Side, rows: int) -> int:
        """Bytes of `rows` tokens; a ragged last group of keys takes a whole one."""
        if side is Side.VALUES:
            return rows * self.value_row_bytes
        return -(-rows // self.tokens) * self.key_group_bytes

    def closed_rows(self, rows: int, residual: int) -> int:
        """How many of `rows` tokens lie in closed groups when at least `residual` stay in full precision."""
        return max(0, rows - residual) // self.tokens * self.tokens

    def validate(self) -> None:
        """Check the description.

        Raises:
            UnknownFormat: No such format.
            FormatError: The dim or a group does not fit.
        """
        if self.format not in BITS:
            raise UnknownFormat(f"unknown format '{self.format}' (want {'|'.join(BITS)})")
        if not 1 <= self.dim <= MAX_DIM:
            raise FormatError(f"{self.format}: dim {self.dim} is not in 1..{MAX_DIM}")
        if self.channels % 8 or self.channels < 8 or self.dim % self.channels:
            wanted = f"a multiple of channels {self.channels}, itself a multiple of 8"
            raise FormatError(f"{self.format}: dim {self.dim} is not {wanted}")
        if self.tokens < 2:
            # A group of one token has no range: every element would be its own zero.
            raise FormatError(f"{self.format}: a group of {self.tokens} tokens cannot be coded")


def kivi_spec(spec: LayerSpec) -> tuple[KiviSpec, Side]:
    """What a layer format of this family says."""
    fmt = spec.details
    side = Side.KEYS if fmt.tokens > 1 else Side.VALUES
    return KiviSpec(fmt.name.removesuffix(KEYS_SUFFIX), spec.dim, channels=fmt.group), side


def pack(
    spec: KiviSpec,
    side: Side,
    source: Buffer,
    element: Element,
    rows: int,
    out: Buffer,
    *,
    layout: Heads | None = None,
    backend: str | None = None,
) -> None:
    """Code keys in groups of `spec.tokens` rows, the first row beginning a group, or rows of values.

    A ragged last group of keys is filled up by repeating its last row, which changes no scale; `unpack` does
    not return the filling.

    Args:
        spec: The layer.
        side: Keys or values.
        source: Elements, row-major `(rows, dim)` or as `layout` says.
        element: Their type.
        rows: Number of rows; 0 does nothing.
        out: At least `spec.stored_bytes(side, rows)` bytes.
        layout: Where the elements lie when they are not row-major.
        backend: Name of a backend; the default one if None. All give the same bytes.

    Raises:
        NonFinite: A NaN or infinity.
        Overflow: A magnitude beyond `LIMIT`.
        FormatError: The spec is not valid.
        ShortBuffer: A buffer is too small.
    """
    spec.validate()
    batch = batch_of(rows, spec.dim, element, layout)
    coder = partial(_backend(backend).pack, spec, side)
    batch.pack(coder, LIMIT, source, out, spec.stored_bytes(side, rows))


def unpack(
    spec: KiviSpec,
    side: Side,
    packed: Buffer,
    rows: int,
    element: Element,
    out: Buffer,
    *,
    layout: Heads | None = None,
    backend: str | None = None,
) -> None:
    """Decode the first `rows` rows of a run of key groups or of value rows.

    Args:
        spec: The layer.
        side: Keys or values.
        packed: At least `spec.stored_bytes(side, rows)` bytes.
        rows: Number of rows; 0 does nothing.
        element: Type of the elements to write.
        out: Writable buffer for the elements, row-major `(rows, dim)` or as `layout` says.
        layout: Where to put the elements when they are not row-major.
        backend: Name of a backend; the default one if None. All give the same elements.

    Raises:
        FormatError: The spec is not valid.
        ShortBuffer: A buffer is too small.
    """
    spec.validate()
    batch = batch_of(rows, spec.dim, element, layout)
    coder = partial(_backend(backend).unpack, spec, side)
    batch.unpack(coder, packed, spec.stored_bytes(side, rows), out)


class _Kivi(Protocol):
    """What a backend's `kivi` module offers; see `backends.Backend`."""

    def pack(
        self, spec: KiviSpec, side: Side, batch: Batch, source: NDArray[np.uint8], out: NDArray[np.uint8]
    ) -> int: ...

    def unpack(
        self, spec: KiviSpec, side: Side, batch: Batch, packed: NDArray[np.uint8], out: NDArray[np.uint8]
    ) -> None: ...


def _backend(name: str | None) -> _Kivi:
    return cast("_Kivi", load_backend(f"{backend_module(name)}.kivi"))

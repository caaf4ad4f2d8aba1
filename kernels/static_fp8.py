"""fp8 with scales kept elsewhere: one byte an element, one float32 scale for a tensor, a layer or each head.

Engines that calibrate their caches store rows like these. A row says nothing about its scales, so it can be
decoded only under the set that it was made under; `ScaleManifest` names the set. The formats `fp8` and
`fp8_e5m2` carry a scale for every 32 elements instead and need no record.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from .backends import backend_module, load_backend
from .batch import batch_of
from .errors import FormatError
from .formats import FP32_MAX, MAX_DIM, format_by_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from .batch import Batch
    from .formats import Element
    from .layout import Heads
    from .scales import ScaleManifest

BLOCK: Final = 32
"""Elements that are coded at a time: a row is a multiple of it."""

SMALLEST_SCALE: Final = 2.0**-64
LARGEST_SCALE: Final = 2.0**64
"""Between these neither a scale's inverse nor a decoded value can leave float32's normal range."""

LIMIT: Final = FP32_MAX
"""Every finite element is accepted: what lies beyond a code's range saturates."""


class ScaleMismatch(FormatError):
    """Rows were made under another set of scales; the text names the first field that differs."""


@dataclass(frozen=True, slots=True)
class StaticScales:
    """A set of scales and what it is.

    Attributes:
        manifest: The record of the set; its shape says what shares a scale.
        values: One scale, or one for each head where the manifest's shape is `head`; rounded to float32.
    """

    manifest: ScaleManifest
    values: tuple[float, ...]

    @property
    def mantissa_bits(self) -> int:
        """Of a code: 3 for E4M3, 2 for E5M2."""
        return format_by_name(self.manifest.format).variant

    def validate(self, dim: int) -> None:
        """Check the set for rows of `dim` elements.

        Raises:
            FormatError: The record contradicts itself or the scales, or the scales do not fit the dim.
        """
        self.manifest.validate()
        name, count = self.manifest.format, len(self.values)
        if self.manifest.shape == "block" or self.manifest.method == "dynamic":
            raise FormatError(
                f"{name}: {self.manifest.method} scales of each {self.manifest.shape} lie in the rows"
            )
        if not 1 <= dim <= MAX_DIM or dim % BLOCK:
            raise FormatError(f"{name}: dim {dim} is not a multiple of {BLOCK} in 1..{MAX_DIM}")
        if count == 0 or dim % count or (self.manifest.shape != "head" and count != 1):
            raise FormatError(f"{name}: {count} scales of each {self.manifest.shape} do not fit dim {dim}")
        for scale in self.values:
            if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
                raise FormatError(f"{name}: scale {scale:g} is not in {SMALLEST_SCALE:g}..{LARGEST_SCALE:g}")
            if self.manifest.method == "none" and scale != 1:
                raise FormatError(f"{name}: scale {scale:g} is said to be {self.manifest.artifact}")


def pack(
    scales: StaticScales,
    dim: int,
    source: Buffer,
    element: Element,
    rows: int,
    out: Buffer,
    *,
    layout: Heads | None = None,
    backend: str | None = None,
) -> None:
    """Code rows of `dim` bytes: OFP8(x * (1 / scale)), nearest-even, saturating.

    Args:
        scales: The set; head h of it is for elements `h * dim / heads` and on.
        dim: Elements in a row.
        source: Elements, row-major `(rows, dim)` or as `layout` says.
        element: Their type.
        rows: Number of rows; 0 does nothing.
        out: Writable, at least `rows * dim` bytes.
        layout: Where the elements lie when they are not row-major.
        backend: Name of a backend; the default one if None. All give the same bytes.

    Raises:
        NonFinite: A NaN or infinity.
        FormatError: The set does not fit.
        ShortBuffer: A buffer is too small.
    """
    scales.validate(dim)
    batch = batch_of(rows, dim, element, layout)
    batch.pack(partial(_backend(backend).pack, scales), LIMIT, source, out, rows * dim)


def unpack(
    scales: StaticScales,
    made_under: ScaleManifest,
    dim: int,
    packed: Buffer,
    rows: int,
    element: Element,
    out: Buffer,
    *,
    layout: Heads | None = None,
    backend: str | None = None,
) -> None:
    """Decode rows: code * scale. A finite value that `element` cannot hold becomes its largest finite value.

    Args:
        scales: The set at hand.
        made_under: The record that is kept with the rows.
        dim: Elements in a row.
        packed: At least `rows * dim` bytes.
        rows: Number of rows; 0 does nothing.
        element: Type of the elements to write.
        out: Writable buffer for the elements, row-major `(rows, dim)` or as `layout` says.
        layout: Where to put the elements when they are not row-major.
        backend: Name of a backend; the default one if None. All give the same elements.

    Raises:
        ScaleMismatch: The rows were made under another set.
        FormatError: The set does not fit.
        ShortBuffer: A buffer is too small.
    """
    scales.validate(dim)
    different = scales.manifest.differs(made_under)
    if different:
        field, own, others = different
        raise ScaleMismatch(
            f"{scales.manifest.format}: rows with {field} {others!r} under scales with {own!r}"
        )
    batch = batch_of(rows, dim, element, layout)
    batch.unpack(partial(_backend(backend).unpack, scales), packed, rows * dim, out)


class _StaticFp8(Protocol):
    """What a backend's `static_fp8` module offers; see `backends.Backend`."""

    def pack(
        self, scales: StaticScales, batch: Batch, source: NDArray[np.uint8], out: NDArray[np.uint8]
    ) -> int: ...

    def unpack(
        self, scales: StaticScales, batch: Batch, packed: NDArray[np.uint8], out: NDArray[np.uint8]
    ) -> None: ...


def _backend(name: str | None) -> _StaticFp8:
    return cast("_StaticFp8", load_backend(f"{backend_module(name)}.static_fp8"))

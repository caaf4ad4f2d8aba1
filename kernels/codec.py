"""pack and unpack: the checks every backend relies on, then the backend."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .backends import get_backend
from .errors import NonFinite, Overflow, ShortBuffer
from .layout import Heads
from .oracle.numeric import widen

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from .formats import Element, LayerSpec


def pack(
    spec: LayerSpec,
    source: Buffer,
    element: Element,
    rows: int,
    out: Buffer,
    *,
    layout: Heads | None = None,
    backend: str | None = None,
) -> None:
    """Code rows into their storage format. Thread-safe; the default backend releases the GIL.

    Args:
        spec: Format and dim of the layer.
        source: Elements, little-endian: row-major `(rows, dim)`, or as `layout` says. Any alignment.
        element: Type of the elements.
        rows: Number of rows; 0 does nothing.
        out: Writable buffer of at least `rows * spec.row_bytes` bytes, of which exactly those are written.
        layout: Where the elements lie when they are not row-major.
        backend: Name of a backend; the default one if None. All give the same bytes.

    Raises:
        NonFinite: A NaN or infinity met a quantizing format.
        Overflow: A finite value is beyond the format's limit.
        FormatError: The spec is not valid.
        ShortBuffer: A buffer is too small.
    """
    spec.validate()
    layout = layout or Heads(1, 0, spec.dim)
    elements = _bytes(source, layout.extent(rows, spec.dim) * element.itemsize, "source")
    packed = _bytes(out, rows * spec.row_bytes, "out")
    if rows == 0:
        return
    refused = get_backend(backend).pack(spec, elements, element, rows, layout, packed)
    if refused >= 0:
        raise _refusal(spec, elements, element, layout, refused)


def unpack(
    spec: LayerSpec,
    packed: Buffer,
    rows: int,
    element: Element,
    out: Buffer,
    *,
    layout: Heads | None = None,
    backend: str | None = None,
) -> None:
    """Decode stored rows. A finite decoded value that `element` cannot hold becomes its largest finite value.

    Args:
        spec: Format and dim of the layer.
        packed: At least `rows * spec.row_bytes` bytes, any alignment.
        rows: Number of rows; 0 does nothing.
        element: Type of the elements to write.
        out: Writable buffer for the elements, row-major `(rows, dim)` or as `layout` says.
        layout: Where to put the elements when they are not row-major; bytes between them are left alone.
        backend: Name of a backend; the default one if None. All give the same bytes.

    Raises:
        FormatError: The spec is not valid.
        ShortBuffer: A buffer is too small.
    """
    spec.validate()
    layout = layout or Heads(1, 0, spec.dim)
    stored = _bytes(packed, rows * spec.row_bytes, "packed")
    elements = _bytes(out, layout.extent(rows, spec.dim) * element.itemsize, "out")
    if rows:
        get_backend(backend).unpack(spec, stored, rows, element, layout, elements)


def _bytes(buffer: Buffer, needed: int, name: str) -> NDArray[np.uint8]:
    view = memoryview(buffer)
    if view.nbytes < needed:
        raise ShortBuffer(f"{name} holds {view.nbytes} bytes, {needed} are needed")
    return np.frombuffer(view, np.uint8)


def _refusal(
    spec: LayerSpec, elements: NDArray[np.uint8], element: Element, layout: Heads, index: int
) -> NonFinite | Overflow:
    row, position = divmod(index, spec.dim)
    head, inner = divmod(position, spec.dim // layout.heads)
    offset = (head * layout.head_stride + row * layout.row_stride + inner) * element.itemsize
    value = float(widen(elements[offset : offset + element.itemsize], element)[0])
    if math.isfinite(value):
        return Overflow(row, position, value, spec.details.limit)
    return NonFinite(row, position, value)

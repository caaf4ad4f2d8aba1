"""pack and unpack: the checks every backend relies on, then the backend."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from . import kivi
from .backends import get_backend
from .batch import batch_of
from .formats import LAYER_FORMATS, Element, smallest_spec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

    from .formats import LayerSpec
    from .layout import Heads


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
            Where rows are coded together a ragged last group takes a whole one.
        layout: Where the elements lie when they are not row-major.
        backend: Name of a backend; the default one if None. All give the same bytes.

    Raises:
        NonFinite: A NaN or infinity met a quantizing format.
        Overflow: A finite value is beyond the format's limit.
        FormatError: The spec is not valid.
        ShortBuffer: A buffer is too small.
    """
    if spec.details.grouped:
        kivi.pack(*kivi.kivi_spec(spec), source, element, rows, out, layout=layout, backend=backend)
        return
    spec.validate()
    batch = batch_of(rows, spec.dim, element, layout)
    coder = partial(get_backend(backend).pack, spec)
    batch.pack(coder, spec.details.limit, source, out, rows * spec.row_bytes)


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
        packed: At least `rows * spec.row_bytes` bytes, any alignment; whole groups of rows coded together.
        rows: Number of rows; 0 does nothing.
        element: Type of the elements to write.
        out: Writable buffer for the elements, row-major `(rows, dim)` or as `layout` says.
        layout: Where to put the elements when they are not row-major; bytes between them are left alone.
        backend: Name of a backend; the default one if None. All give the same bytes.

    Raises:
        FormatError: The spec is not valid.
        ShortBuffer: A buffer is too small.
    """
    if spec.details.grouped:
        kivi.unpack(*kivi.kivi_spec(spec), packed, rows, element, out, layout=layout, backend=backend)
        return
    spec.validate()
    batch = batch_of(rows, spec.dim, element, layout)
    batch.unpack(partial(get_backend(backend).unpack, spec), packed, rows * spec.row_bytes, out)


def warm_up(formats: Iterable[str] = LAYER_FORMATS) -> None:
    """Load the default backend's kernels of these formats, compiling those that are not on disk yet.

    The first use of a format costs up to several seconds on a new machine and tens of milliseconds later: a
    server calls this before it accepts connections, and an installer once to fill the cache.

    Raises:
        UnknownFormat: No format has this name.
    """
    for name in formats:
        spec = smallest_spec(name)
        rows = spec.details.tokens
        packed, elements = bytearray(rows * spec.row_bytes), bytearray(rows * spec.dim * Element.F32.itemsize)
        pack(spec, elements, Element.F32, rows, packed)
        unpack(spec, packed, rows, Element.F32, elements)

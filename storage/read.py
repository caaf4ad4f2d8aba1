"""Reading rows: extents of a range → slices of maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pionkv.kernels.formats import LayerSpec

from .engine import Engine
from .errors import BadRange, PageCorrupt, PageGone, RowsNotStored
from .extents import Extents, slice_rows
from .quarantine import quarantine
from .records import SessionRecord

T = TypeVar("T")

_ATTEMPTS = 8
"""Reads of the catalog before a page file that it still names but that is not there counts as lost."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed rows of one layer.

    Attributes:
        spec: Their format and dim.
        count: Number of rows.
        parts: Their bytes in row order; read-only views that stay valid as long as they are referenced.
    """

    spec: LayerSpec
    count: int
    parts: list[memoryview]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts together."""
        return sum(map(len, self.parts))


def rows(engine: Engine, sid: bytes, layer: int, start: int, end: int) -> Rows | None:
    """See `Store.rows`."""
    if not 0 <= start < end:
        raise BadRange(start, end)

    def extents_of(session: SessionRecord) -> Extents | None:
        held = session.rows_in(layer) if layer >= 0 else 0
        if not held:
            return None
        if end > held:
            raise RowsNotStored(layer, start, end, held)
        return slice_rows(session.layers[layer], start, end)

    return _read(engine, sid, layer, extents_of)


def rows_by_id(engine: Engine, sid: bytes, layer: int, ids: Sequence[int]) -> Rows | None:
    """See `Store.rows_by_id`."""

    def extents_of(session: SessionRecord) -> Extents | None:
        held = session.rows_in(layer) if layer >= 0 else 0
        if not held:
            return None
        found: list[tuple[int, int, int]] = []
        for start, end in _ranges(ids):
            if start < 0 or end > held:
                raise RowsNotStored(layer, start, end, held)
            found += slice_rows(session.layers[layer], start, end)
        return tuple(found)

    return _read(engine, sid, layer, extents_of)


def _read(
    engine: Engine, sid: bytes, layer: int, extents_of: Callable[[SessionRecord], Extents | None]
) -> Rows | None:
    for attempt in range(_ATTEMPTS):
        with engine.catalog.snapshot() as reader:
            session = engine.session(reader, sid)
        extents = extents_of(session)
        if extents is None:
            return None
        try:
            parts = [engine.maps.rows(page, layer, session.side, row, count) for page, row, count in extents]
        except PageGone as error:
            if attempt < _ATTEMPTS - 1:
                continue
            raise quarantine(engine, session.unit, error.page, "its page file is missing") from error
        except PageCorrupt as error:
            raise quarantine(engine, session.unit, error.page, str(error)) from error
        engine.usage.note(session.unit, engine.clock())
        return Rows(session.schema.layer(layer), sum(extent[2] for extent in extents), parts)
    raise AssertionError("unreachable")


def _ranges(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive ids as (start, end)."""
    runs: list[tuple[int, int]] = []
    for token in ids:
        if runs and runs[-1][1] == token:
            runs[-1] = (runs[-1][0], token + 1)
        else:
            runs.append((token, token + 1))
    return runs

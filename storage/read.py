"""Reading rows: extents of a range → slices of maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from pionkv.kernels.formats import LayerSpec

from .engine import Asked, Engine
from .errors import BadRange, PageCorrupt, PageGone, RowsNotStored, Stale
from .extents import Extents, rows_of, slice_rows
from .quarantine import quarantine
from .records import SessionRecord
from .runs import Run, runs_of

T = TypeVar("T")
Select = Callable[[SessionRecord, int], Extents | None]
"""The extents to read of a layer; None when the layer holds no rows."""


@dataclass(slots=True)
class Rows:
    """Packed rows of one layer.

    Attributes:
        spec: Their format and dim.
        count: Number of rows.
        runs: Where they are, in row order.
        first: Whether they begin the session: its row 0, in the first layer that holds any.
    """

    spec: LayerSpec
    count: int
    runs: list[Run]
    first: bool = False

    @property
    def parts(self) -> list[memoryview]:
        """The bytes of the runs; read-only views that stay valid as long as they are referenced."""
        return [run.data for run in self.runs]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts together."""
        return sum(map(len, self.parts))


class LayerState(NamedTuple):
    """What a layer holds, as it was at one moment.

    Attributes:
        spec: Format and dim of its rows.
        rows: How many.
        mark: Stands for just these rows: it moves when they are overwritten, cut or added to, and not when
            other layers are.
    """

    spec: LayerSpec
    rows: int
    mark: int


def rows(engine: Engine, sid: bytes, layer: int, start: int, end: int, at: int | None = None) -> Rows | None:
    """See `Store.rows`."""
    asked = sid, layer, start, end, at
    known = engine.reads.of(engine.catalog.state).get(asked)
    if known is None:
        known = guarded(engine, (sid,), partial(_read_one, engine, asked))
    found, unit = known
    engine.usage.note(unit, engine.clock())
    return found


def _read_one(engine: Engine, asked: Asked) -> tuple[Rows | None, bytes]:
    """Rows of one layer and the unit they belong to, known from now on unless something is to end."""
    # As `_read` does, of one layer: a reader of single layers asks often enough for its lists to show.
    sid, layer, start, end, at = asked
    select = in_range(start, end)
    with engine.catalog.snapshot() as reader:
        session = engine.readable(reader, sid, at)
        known = None if reader.anything_ends else engine.reads.of(reader.state)
    found = _map_layer(engine, session, layer, select, start == 0), session.unit
    if known is not None and len(known) < engine.reads.most:
        known[asked] = found
    return found


def layer_state(engine: Engine, sid: bytes, layer: int) -> LayerState | None:
    """See `Store.layer`."""
    with engine.catalog.snapshot() as reader:
        session = engine.readable(reader, sid)
    extents = session.extents_of(layer) if layer >= 0 else ()
    if not extents:
        return None
    # No page number is given twice, and what a page holds of published rows never changes.
    return LayerState(session.schema.layer(layer), session.rows_in(layer), hash((session.slot, extents)))


def rows_by_id(
    engine: Engine, sid: bytes, layer: int, ids: Sequence[int], at: int | None = None
) -> Rows | None:
    """See `Store.rows_by_id`."""

    def select(session: SessionRecord, layer: int) -> Extents | None:
        held = session.rows_in(layer)
        if not held:
            return None
        found: list[tuple[int, int, int]] = []
        for start, end in _runs(ids):
            if start < 0 or end > held:
                raise RowsNotStored(layer, start, end, held)
            found += slice_rows(session.layers[layer], start, end)
        return tuple(found)

    return _read(engine, (sid,), (layer,), select, at=at)[0]


def rows_of_layers(
    engine: Engine,
    sids: Sequence[bytes],
    layers: Sequence[int],
    start: int,
    end: int,
    generations: Sequence[int] | None,
    at: int | None = None,
) -> list[Rows | None]:
    """See `Store.rows_of_layers`."""
    return _read(engine, sids, layers, in_range(start, end), generations, at, begins=start == 0)


def in_range(start: int, end: int) -> Select:
    """Selects rows of a range. Raises `BadRange`, and selecting `RowsNotStored`."""
    if not 0 <= start < end:
        raise BadRange(start, end)

    def select(session: SessionRecord, layer: int) -> Extents | None:
        held = session.rows_in(layer)
        if not held:
            return None
        if end > held:
            raise RowsNotStored(layer, start, end, held)
        return slice_rows(session.layers[layer], start, end)

    return select


def _read(
    engine: Engine,
    sids: Sequence[bytes],
    layers: Sequence[int],
    select: Select,
    generations: Sequence[int] | None = None,
    at: int | None = None,
    *,
    begins: bool = False,
) -> list[Rows | None]:
    """Rows of layers, each of every session, all as of one moment; `begins`: from row 0 on."""

    def attempt() -> list[Rows | None]:
        with engine.catalog.snapshot() as reader:
            sessions = [engine.readable(reader, sid, at) for sid in sids]
        for session, generation in zip(sessions, generations or (), strict=False):
            if session.generation != generation:
                raise Stale(session.sid)
        found = [
            _map_layer(engine, session, layer, select, begins) for layer in layers for session in sessions
        ]
        for session in sessions:
            engine.usage.note(session.unit, engine.clock())
        return found

    return guarded(engine, sids, attempt)


def _map_layer(
    engine: Engine, session: SessionRecord, layer: int, select: Select, begins: bool = False
) -> Rows | None:
    extents = select(session, layer) if layer >= 0 else None
    if extents is None:
        return None
    spec, maps, side = session.schema.layer(layer), engine.maps, session.side
    runs = runs_of(spec, extents, lambda page, row, count: maps.rows(page, layer, side, row, count))
    return Rows(spec, rows_of(extents), runs, begins and not any(session.rows[:layer]))


def guarded(engine: Engine, sids: Sequence[bytes], attempt: Callable[[], T]) -> T:
    """Run `attempt`; quarantine what fails its check, unless the catalog has moved on: then run it again."""
    while True:
        try:
            return attempt()
        except (PageGone, PageCorrupt) as error:
            quarantine(engine, error, _unit(engine, sids, error.page))


def _unit(engine: Engine, sids: Sequence[bytes], page: int) -> bytes:
    with engine.catalog.snapshot() as reader:
        sessions = [engine.session(reader, sid) for sid in sids]
    return next((s.unit for s in sessions if page in s.pages), sessions[0].unit)


def _runs(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive ids as (start, end)."""
    runs: list[tuple[int, int]] = []
    for token in ids:
        if runs and runs[-1][1] == token:
            runs[-1] = (runs[-1][0], token + 1)
        else:
            runs.append((token, token + 1))
    return runs

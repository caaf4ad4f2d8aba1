"""Where rows lie in page files, for clients on this machine that map them.

Many processes ask for the places of one prefix, one after the other, and nothing changes in between: what was
found is known as long as the catalog's state is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pionkv.kernels.formats import LayerSpec

from .catalog import Reader, Writer
from .engine import AskedWhere, Engine
from .errors import Grouped, PageGone
from .extents import Extents
from .names import sids_of, unit_of_namespace
from .page import page_path
from .read import guarded, in_range
from .records import SessionRecord


class Location(NamedTuple):
    """Where a run of rows lies.

    Attributes:
        path: The page file.
        offset: Where in it the first row begins.
        nbytes: Bytes of the run.
    """

    path: Path
    offset: int
    nbytes: int


class Mapped(NamedTuple):
    """Where rows of one layer and side lie.

    Attributes:
        layer: The layer.
        side: 0 for K, 1 for V.
        spec: Format and dim of the rows.
        places: Runs of rows in order.
    """

    layer: int
    side: int
    spec: LayerSpec
    places: list[Location]


@dataclass(slots=True, eq=False)
class Located:
    """Where rows of a session or a prefix lie, all as of one moment. Shared: not to be changed.

    Attributes:
        generation: The generation of the session, or of the prefix.
        rows: How many of each layer and side.
        mapped: One element for each layer that holds rows, and within it each side.
        first: As `Rows.first`, of any of them.
        unit: What they belong to.
    """

    generation: int
    rows: int
    mapped: list[Mapped]
    first: bool
    unit: bytes


def locate(engine: Engine, sid: bytes, layers: range | None, start: int, end: int) -> Located:
    """See `Store.locate`."""
    asked = sid, layers, start, end
    select = in_range(start, end)

    def attempt() -> Located:
        with engine.catalog.snapshot() as reader:
            session = engine.readable(reader, sid)
            known = _known(engine, reader)
        of_it = range(len(session.rows)) if layers is None else layers
        chosen = [(session, layer) for layer in of_it if layer >= 0]
        held = [(*each, extents) for each in chosen if (extents := select(*each)) is not None]
        first = start == 0 and any(not any(session.rows[:layer]) for _, layer, _ in held)
        mapped = _mapped(engine, held)
        return _kept(known, asked, Located(session.generation, end - start, mapped, first, session.unit))

    found = engine.places.of(engine.catalog.state).get(asked) or guarded(engine, (sid,), attempt)
    engine.usage.note(found.unit, engine.clock())
    return found


def locate_prefix(engine: Engine, namespace: bytes) -> Located | None:
    """See `Store.locate_prefix`."""
    unit = unit_of_namespace(namespace)
    asked = unit, None, 0, 0

    def attempt() -> Located | None:
        with engine.catalog.snapshot() as reader:
            record = reader.namespace(unit)
            sessions = [reader.session(sid) for sid in sids_of(unit)]
            if record is None or record.tokens < 1 or engine.is_spent(reader, record):
                return None
            known = _known(engine, reader)
        select = in_range(0, record.tokens)
        layers = range(len(sessions[0].rows) if sessions[0] is not None else 0)
        chosen = [(each, layer) for layer in layers for each in sessions if each is not None]
        held = [(*each, extents) for each in chosen if (extents := select(*each)) is not None]
        mapped = _mapped(engine, held)
        return _kept(known, asked, Located(record.generation, record.tokens, mapped, True, unit))

    found = engine.places.of(engine.catalog.state).get(asked) or guarded(engine, sids_of(unit), attempt)
    if found is not None:
        engine.usage.note(unit, engine.clock())
    return found


def _known(engine: Engine, reader: Reader) -> dict[AskedWhere, Located] | None:
    """What is known in this state, to be added to; None when something is to end by itself."""
    return None if reader.anything_ends else engine.places.of(reader.state)


def _kept(known: dict[AskedWhere, Located] | None, asked: AskedWhere, found: Located) -> Located:
    if known is not None:
        known[asked] = found
    return found


def _mapped(engine: Engine, held: Sequence[tuple[SessionRecord, int, Extents]]) -> list[Mapped]:
    """The places of extents of layers, their bytes checked; clients may map them from now on.

    Raises:
        Grouped: Rows of a layer are coded in groups.
        PageGone: A page has gone meanwhile.
    """
    maps, paths, found = engine.maps, dict[int, Path](), []
    for session, layer, extents in held:
        spec, side = session.schema.layer(layer), session.side
        if spec.details.grouped:
            raise Grouped(spec.format)
        places = []
        for page, row, count in extents:
            maps.rows(page, layer, side, row, count)
            _, low, high = maps.locate(page, layer, side, row, count)
            if page not in paths:
                paths[page] = Path(page_path(engine.directory.pages, page))
            places.append(Location(paths[page], low, high - low))
        found.append(Mapped(layer, side, spec, places))
    _lend(engine, paths)
    return found


def _lend(engine: Engine, pages: Collection[int]) -> None:
    """Note that clients may map these pages. Raises `PageGone` when one has gone meanwhile."""
    with engine.catalog.snapshot() as reader:
        lent = {page: record.lent for page in pages if (record := reader.page(page)) is not None}
    if all(lent.get(page) for page in pages):
        return

    def note(writer: Writer) -> None:
        for page in pages:
            record = writer.page(page)
            if record is None:
                raise PageGone(page)
            record.lent = True
            writer.put_page(page, record)

    engine.catalog.write(note)

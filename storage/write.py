"""Writing rows of a session."""

from __future__ import annotations

from collections.abc import Callable

from pionkv.kernels.formats import LayerSpec

from .accounts import tenant_of
from .catalog import Reader, Writer
from .engine import Engine
from .errors import BadRange, Gap, LayerLimit, PageCorrupt, PageGone, RowLimit, Stale, UnknownSession
from .extents import cut, splice
from .filling import PageWrite
from .group_write import GroupWrite
from .names import sids_of
from .open_pages import OpenPage
from .page import PageKind, PageLayout, align
from .quarantine import quarantine
from .records import SessionRecord
from .schema import Schema
from .units import live_session, replace_session

APPEND_ROWS = 256
"""Least capacity of a page opened for appends: a prefix that grows row by row opens few pages."""
APPEND_REGION_BYTES = 16 << 20
"""Greatest region of a page opened for appends; a single larger write gets the capacity it needs."""
MAX_EXTENTS = 64
"""Layers in more extents than this are compacted."""


class Write(PageWrite):
    """Rows on their way into a layer. Made by `Store.begin_write`.

    Fill the segments in order, then `commit`; or `abort`. As a context manager it aborts unless committed.

        with store.begin_write(sid, layer, start, count) as write:
            while (segment := write.next_segment()) is not None:
                fill(segment)
            write.commit()

    Attributes:
        spec: Format and dim of the rows.
        sid: The session.
        layer: The layer.
        start: First row.
        count: Number of rows.
        last: Whether the layer ends with them: rows that it has after them go.
        follows: Whether they must still come right after the rows there are when they are published.
        nbytes: Bytes of all segments together: `count * spec.row_bytes`.
    """

    def __init__(
        self,
        engine: Engine,
        session: SessionRecord,
        page: OpenPage,
        layer: int,
        start: int,
        count: int,
        *,
        last: bool = False,
        follows: bool = False,
    ) -> None:
        super().__init__(engine, session.unit, session.sid, page, layer, session.side, count)
        self._slot = session.slot
        self.spec: LayerSpec = session.schema.layer(layer)
        self.sid = session.sid
        self.layer = layer
        self.start = start
        self.last = last
        self.follows = follows

    def _check(self, writer: Writer) -> None:
        session = live_session(writer, self.sid, self._slot, self.layer, self.start)
        if self.follows and session.rows_in(self.layer) != self.start:
            raise Stale(self.sid)

    def _name_rows(self, writer: Writer) -> int:
        session = writer.session(self.sid)
        if session is None:
            raise UnknownSession(self.sid)
        run = (self._page.number, self._page_row, self.count)
        held = session.extents_of(self.layer)
        extents = splice(cut(held, self.start) if self.last else held, self.start, run)
        generation = writer.generation
        replace_session(writer, session, session.with_layer(self.layer, extents, generation))
        if len(extents) > MAX_EXTENTS:
            self._engine.fragmented.add(self.sid)
        return generation


RowsWrite = Write | GroupWrite
"""Rows on their way into a layer: stored one by one, or coded in groups."""

Suits = Callable[[LayerSpec], object]
"""Gets the format and dim of a layer, and raises unless what is to come fits them."""


def begin(
    engine: Engine,
    sid: bytes,
    layer: int,
    start: int,
    count: int,
    *,
    last: bool = False,
    follows: bool = False,
    suits: Suits | None = None,
) -> RowsWrite:
    """See `Store.begin_write`."""
    found, held = None, engine.held.of(engine.catalog.state).get(sid)
    if held is not None:
        session = held
        _check_rows(engine, session, layer, start, count, suits)
        found = _look_known(engine, session, layer, count)
    if found is None:
        with engine.catalog.snapshot() as reader:
            session = engine.readable(reader, sid)
            engine.check_mutable(reader, session.unit)
            _check_rows(engine, session, layer, start, count, suits)
            if not session.schema.layer(layer).details.grouped:
                found = _look(engine, reader, session, layer, count, tail=False)
                _hold(engine, reader, session)
    if found is not None:
        page = _take_page(engine, session, layer, count, found)
        return Write(engine, session, page, layer, start, count, last=last, follows=follows)

    def page_of(count: int, tail: bool) -> OpenPage:
        return page_for(engine, session, layer, count, tail=tail)

    def view(page: int, row: int, count: int) -> memoryview:
        return engine.maps.rows(page, layer, session.side, row, count)

    extents = session.extents_of(layer)
    try:
        return GroupWrite(engine, session, layer, start, count, extents, page_of, view, last=last)
    except (PageGone, PageCorrupt) as error:
        quarantine(engine, error, session.unit)
        return begin(engine, sid, layer, start, count, last=last, follows=follows, suits=suits)


def _check_rows(
    engine: Engine, session: SessionRecord, layer: int, start: int, count: int, suits: Suits | None
) -> None:
    """Whether such rows may be written to a session. Raises as `begin`."""
    if suits is not None:
        suits(session.schema.layer(layer))
    check_place(engine, session.schema, layer, start, count)
    if start > (held := session.rows_in(layer)):
        raise Gap(layer, held, start)


def _hold(engine: Engine, reader: Reader, session: SessionRecord) -> None:
    """A session was found to be writable: as long as nobody changes anything it need not be looked at again.

    Each write of this process takes what is known along to the state that it makes; see `filling.commit`.
    """
    held = engine.held.of(reader.state)
    if len(held) < engine.held.most and not reader.anything_ends:
        held[session.sid] = session


def page_for(
    engine: Engine, session: SessionRecord, layer: int, count: int, *, tail: bool = False
) -> OpenPage:
    """An open page with so many free rows in a layer, coded or not yet, once there is room for them.

    Raises:
        OutOfBudget, NoSpace, NoHandles: As `Store.begin_write`.
    """
    with engine.catalog.snapshot() as reader:
        found = _look(engine, reader, session, layer, count, tail)
    return _take_page(engine, session, layer, count, found)


_Found = tuple[OpenPage | None, PageLayout, int]
"""The open page that has the rows, if there is one; its layout or that of the page to be; bytes stored."""


def _look_known(engine: Engine, session: SessionRecord, layer: int, count: int) -> _Found | None:
    """As `_look`, of a session that is held; None where the catalog must be asked."""
    page = _current_page(engine, session, layer, count, tail=False)
    return None if page is None else (page, page.layout, engine.catalog.counted[1].bytes)


def _look(
    engine: Engine, reader: Reader, session: SessionRecord, layer: int, count: int, tail: bool
) -> _Found:
    """Where so many rows of a layer can go."""
    page = _current_page(engine, session, layer, count, tail=tail)
    if page is not None and page.published and not reader.names_page(page.number):
        engine.pages.forget(page.number)
        page = None
    layout = _layout(reader, session, layer, count, tail) if page is None else page.layout
    return page, layout, reader.counters().bytes


def _take_page(engine: Engine, session: SessionRecord, layer: int, count: int, found: _Found) -> OpenPage:
    """The page that was found, or a new one, once there is room for the rows."""
    page, layout, stored = found
    if page is not None:
        needed = page.cost(layer, session.side, count)
    else:
        needed = layout.header_bytes + align(count * layout.row_bytes(layer, session.side))
    engine.reserve(session.unit, needed, stored, tenant_of(session.sid))
    if page is not None and page.number in engine.pages:
        return page
    return engine.pages.create(session.unit, layout)


def check_place(engine: Engine, schema: Schema, layer: int, start: int, count: int) -> None:
    """Whether a session of this schema may have such rows. Raises `BadRange`, `LayerLimit`, `RowLimit`."""
    options = engine.options
    if start < 0 or count < 1:
        raise BadRange(start, start + count)
    if not 0 <= layer < options.max_layers:
        raise LayerLimit(layer, options.max_layers)
    schema.layer(layer)
    if start + count > options.max_rows:
        raise RowLimit(start + count, options.max_rows)


def _current_page(
    engine: Engine, session: SessionRecord, layer: int, count: int, *, tail: bool
) -> OpenPage | None:
    """The open page of this side, when it has the rows."""
    page = engine.pages.current(session.unit, session.side, tail=tail)
    if page is None or page.free_rows(layer, session.side) < count:
        return None
    if page.layout.sides[session.side] != (session.schema.wire if tail else session.schema):
        return None
    return page


def _layout(reader: Reader, session: SessionRecord, layer: int, count: int, tail: bool) -> PageLayout:
    """A new page for this write: as large as it is when the layer is empty, else with room for more."""
    capacity = count
    if tail:
        # Rows leave a tail as fast as they come: a page of it is soon of no use.
        capacity = max(count, APPEND_ROWS)
    elif session.layers:
        row_bytes = session.schema.row_bytes(layer)
        held = max(session.rows_in(layer), APPEND_ROWS)
        capacity = max(count, min(held, APPEND_REGION_BYTES // row_bytes))
    sides = {session.side: session.schema}
    for sid in sids_of(session.unit):
        other = reader.session(sid)
        if other is not None and other.schema.num_layers == session.schema.num_layers:
            sides[other.side] = other.schema
    if tail:
        sides = {side: schema.wire for side, schema in sides.items()}
    return PageLayout(PageKind.ROWS, capacity, sides, tail)

"""Writing rows of a session."""

from __future__ import annotations

from pionkv.kernels.formats import LayerSpec

from .catalog import Reader, Writer
from .engine import Engine
from .errors import BadRange, Gap, LayerLimit, RowLimit, Stale, UnknownSession
from .extents import splice
from .filling import PageWrite
from .names import sids_of
from .open_pages import OpenPage
from .page import PageKind, PageLayout, align
from .records import SessionRecord
from .schema import Schema
from .units import replace_session

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
        nbytes: Bytes of all segments together: `count * spec.row_bytes`.
    """

    def __init__(
        self, engine: Engine, session: SessionRecord, page: OpenPage, layer: int, start: int, count: int
    ) -> None:
        super().__init__(engine, session.unit, session.sid, page, layer, session.side, count)
        self._slot = session.slot
        self.spec: LayerSpec = session.schema.layer(layer)
        self.sid = session.sid
        self.layer = layer
        self.start = start

    def _check(self, writer: Writer) -> None:
        session = writer.session(self.sid)
        if session is None:
            raise UnknownSession(self.sid)
        if session.slot != self._slot:
            raise Stale(self.sid)
        if self.start > session.rows_in(self.layer):
            raise Gap(self.layer, session.rows_in(self.layer), self.start)

    def _name_rows(self, writer: Writer) -> int:
        session = writer.session(self.sid)
        if session is None:
            raise UnknownSession(self.sid)
        run = (self._page.number, self._page_row, self.count)
        extents = splice(session.extents_of(self.layer), self.start, run)
        replace_session(writer, session, session.with_layer(self.layer, extents, writer.generation))
        if len(extents) > MAX_EXTENTS:
            self._engine.fragmented.add(self.sid)
        return writer.generation


def begin(engine: Engine, sid: bytes, layer: int, start: int, count: int) -> Write:
    """See `Store.begin_write`."""
    with engine.catalog.snapshot() as reader:
        session = engine.session(reader, sid)
        engine.check_mutable(reader, session.unit)
    check_place(engine, session.schema, layer, start, count)
    if start > session.rows_in(layer):
        raise Gap(layer, session.rows_in(layer), start)
    return Write(engine, session, page_for(engine, session, layer, count), layer, start, count)


def page_for(engine: Engine, session: SessionRecord, layer: int, count: int) -> OpenPage:
    """An open page with so many free rows in a layer, once there is room for them.

    Raises:
        OutOfBudget, NoSpace, NoHandles: As `Store.begin_write`.
    """
    with engine.catalog.snapshot() as reader:
        page = _current_page(engine, reader, session, layer, count)
        layout = _layout(reader, session, layer, count) if page is None else page.layout
        stored = reader.counters().bytes
    if page is not None:
        needed = page.cost(layer, session.side, count)
    else:
        needed = layout.header_bytes + align(count * session.schema.row_bytes(layer))
    engine.reserve(session.unit, needed, stored)
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
    engine: Engine, reader: Reader, session: SessionRecord, layer: int, count: int
) -> OpenPage | None:
    """The open page of this side, when it has the rows and its file is still named."""
    page = engine.pages.current(session.unit, session.side)
    if page is None or page.free_rows(layer, session.side) < count:
        return None
    if page.layout.sides[session.side] != session.schema:
        return None
    if page.published and reader.page(page.number) is None:
        engine.pages.forget(page.number)
        return None
    return page


def _layout(reader: Reader, session: SessionRecord, layer: int, count: int) -> PageLayout:
    """A new page for this write: as large as it is when the layer is empty, else with room for more."""
    capacity = count
    if session.layers:
        row_bytes = session.schema.row_bytes(layer)
        held = max(session.rows_in(layer), APPEND_ROWS)
        capacity = max(count, min(held, APPEND_REGION_BYTES // row_bytes))
    sides = {session.side: session.schema}
    for sid in sids_of(session.unit):
        other = reader.session(sid)
        if other is not None and other.schema.num_layers == session.schema.num_layers:
            sides[other.side] = other.schema
    return PageLayout(PageKind.ROWS, capacity, sides)

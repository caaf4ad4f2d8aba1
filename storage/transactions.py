"""Prefix transactions: rows are gathered where nobody sees them, and published in one step.

The rows go into pages of the transaction's own, which no record names before it is published: when the
process dies they are swept like any other write that was under way. A transaction is bound to the generation
that its namespace had when it began. If that has moved, what it was based on is gone and it cannot be
published.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import xxhash

from . import prompts, receipts
from .accounts import tenant_of
from .bases import SIDE_NAMES, Base, PrefixPlan, bind
from .catalog import Writer
from .engine import Engine
from .errors import (
    BeyondTokens,
    Gap,
    Incomplete,
    LayerLimit,
    NothingPrepared,
    Overlap,
    PageCorrupt,
    PageGone,
    RowsNotStored,
    Stale,
    StaleGeneration,
    StateTwice,
    TransactionDead,
    UnknownSession,
)
from .extents import Extents, rows_of, slice_rows, splice
from .files import sync_directory, sync_file
from .group_write import PageFor
from .identity import inherit, put_manifest
from .names import K_SUFFIX, sids_of, unit_of_namespace
from .open_pages import OpenPage
from .options import Durability
from .page import K_SIDE, V_SIDE, PageKind, PageLayout, align
from .prepared import Place, PreparedGroupWrite, PreparedState, PreparedStored, PreparedWrite
from .read import Rows
from .receipts import Receipt
from .records import NamespaceRecord, SessionRecord
from .runs import View, runs_of
from .schema import Schema
from .states import new_page
from .stored_write import StoredRuns
from .units import drop_states, drop_unit, open_unit, refresh, replace_session
from .write import APPEND_REGION_BYTES, APPEND_ROWS, check_place

SIDES = (K_SIDE, V_SIDE)
PreparedRows = PreparedWrite | PreparedGroupWrite
PRIVATE = b"t"
"""Kind byte of the unit that a transaction's pages are kept under; no unit of the catalog has it."""


@dataclass
class Transaction:
    """A private, unpublished successor of a prefix. Made by `Store.begin_transaction`.

    Belongs to the store's thread, but for the segments of its writes.

    Attributes:
        engine: The store.
        id: Names it; unique for ever.
        plan: What it is to make.
        base: What it adds to.
        hashers: Digest of the packed rows of each layer and side.
        reason: Why it is dead; empty while it is open, and when it was published.
        receipt: What publishing it has made.
    """

    engine: Engine
    id: bytes
    plan: PrefixPlan
    base: Base
    hashers: defaultdict[Place, xxhash.xxh3_64] = field(default_factory=lambda: defaultdict(xxhash.xxh3_64))
    reason: str = ""
    receipt: Receipt | None = None
    _runs: dict[Place, Extents] = field(default_factory=dict)
    _grouped: dict[Place, Extents] = field(default_factory=dict)
    _writes: list[PreparedRows | PreparedStored | PreparedState] = field(default_factory=list)
    _synced: int = 0
    _states: dict[int, PreparedState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._private = PRIVATE + self.id
        self._tenant = tenant_of(self.plan.namespace)
        self._unit = unit_of_namespace(self.plan.namespace)
        self._kept = {self._unit, self._private}
        if self.plan.parent is not None:
            self._kept.add(unit_of_namespace(self.plan.parent[0]))
        for unit in self._kept:
            self.engine.begin_writing(unit, 0)
        if self.plan.tokens is None:
            self.engine.late[self._private] = 0

    @property
    def is_open(self) -> bool:
        """Whether it is neither published nor dead."""
        return self.receipt is None and not self.reason

    def has_session(self, sid: bytes) -> bool:
        """Whether a session is one of its sides."""
        return sid in sids_of(self._unit)

    def schema(self, sid: bytes) -> Schema:
        """The schema of a side. Raises `UnknownSession` for any other session."""
        return self.plan.schemas[self._side(sid)]

    def begin_write(self, sid: bytes, layer: int, start: int, count: int) -> PreparedRows:
        """Begin to write rows [start, start + count) of a layer, right after those it has.

        Raises:
            TransactionDead: It has ended.
            UnknownSession: The session is not one of its sides.
            LayerLimit: It is not to have such a layer.
            Overlap: It has rows from `start` on.
            Gap: Rows before `start` are missing.
            BeyondTokens: More rows than tokens.
            BadRange, RowLimit, OutOfBudget, NoSpace: As `Store.begin_write`.
        """
        session = self._placed(sid, layer, start, count)
        side = session.side
        if not session.schema.layer(layer).details.grouped:
            return PreparedWrite(self, session, self._page(layer, side, count), layer, start, count)
        extents = self._joined(self.base, layer, side)
        view = self._view(layer, side)
        return PreparedGroupWrite(
            self, session, layer, start, count, extents, self._page_for(layer, side), view
        )

    def begin_stored(self, sid: bytes, layer: int, runs: StoredRuns) -> PreparedStored:
        """Begin to write all rows of a layer that codes groups, as they were stored elsewhere.

        Raises:
            BadRange: Rows cannot be stored so.
            TransactionDead, UnknownSession, LayerLimit, Overlap, BeyondTokens, RowLimit, OutOfBudget,
            NoSpace: As `begin_write`.
        """
        session = self._placed(sid, layer, 0, runs.rows)
        return PreparedStored(self, session, layer, runs, self._page_for(layer, session.side))

    def _placed(self, sid: bytes, layer: int, start: int, count: int) -> SessionRecord:
        """The session that such rows may be written to now. Raises as `begin_write`."""
        self._require_open()
        side = self._side(sid)
        schema = self.plan.schemas[side]
        if not 0 <= layer < self.plan.layers:
            raise LayerLimit(layer, self.plan.layers)
        check_place(self.engine, schema, layer, start, count)
        held = self._rows((layer, side))
        if start < held:
            raise Overlap(layer, held, start)
        if start > held:
            raise Gap(layer, held, start)
        if self.plan.tokens is not None and start + count > self.plan.tokens:
            raise BeyondTokens(start + count, self.plan.tokens)
        return SessionRecord.new(sid, 0, self._private, side, schema, 0)

    def _page_for(self, layer: int, side: int) -> PageFor:
        return lambda count, tail: self._page(layer, side, count, tail=tail)

    def replace(self, write: PreparedGroupWrite | PreparedStored, extents: Extents) -> None:
        """Take over the rows of a write, which make the layer these extents."""
        self._grouped[write.place] = extents
        self.hashers[write.place] = write.hasher
        self._writes.append(write)

    def add(self, write: PreparedWrite, run: tuple[int, int, int]) -> None:
        """Take over the rows of a write."""
        runs = self._runs.get(write.place, ())
        self._runs[write.place] = splice(runs, sum(extent[2] for extent in runs), run)
        self.hashers[write.place] = write.hasher
        self._writes.append(write)

    def rows(self, sid: bytes, layer: int, start: int, end: int) -> Rows | None:
        """Rows [start, end) of a layer as they will be when it is published; None when it has none so far.

        Raises:
            TransactionDead, UnknownSession, LayerLimit: As `begin_write`.
            RowsNotStored: It has fewer rows.
            Stale: The rows it is based on are gone.
        """
        self._require_open()
        side = self._side(sid)
        if not 0 <= layer < self.plan.layers:
            raise LayerLimit(layer, self.plan.layers)
        held = self._rows((layer, side))
        if not held:
            return None
        if not 0 <= start < end <= held:
            raise RowsNotStored(layer, start, end, held)
        extents = slice_rows(self._joined(self.base, layer, side), start, end)
        spec = self.plan.schemas[side].layer(layer)
        return Rows(spec, end - start, runs_of(spec, extents, self._view(layer, side)))

    def begin_state(self, number: int, length: int) -> PreparedState:
        """Begin to write a state blob, which describes the position after the last row.

        Raises:
            TransactionDead: It has ended.
            StateTwice: It has a state of this number.
            BadRange, OutOfBudget, NoSpace: As `Store.begin_state`.
        """
        self._require_open()
        if number in self._states:
            raise StateTwice(number)
        page = new_page(self.engine, self._private, number, length, self._tenant)
        return PreparedState(self, page, number, length)

    def add_state(self, write: PreparedState) -> None:
        """Take over a state."""
        self._states[write.number] = write
        self._writes.append(write)

    def to_disk(self) -> None:
        """Bring its pages to the disk if that is promised, so that publishing need not. Any thread."""
        self._sync_pages()

    def publish(self) -> Receipt:
        """Make everything visible in one step. Again: the same receipt.

        Raises:
            Incomplete: A layer lacks rows; the transaction stays open. Whatever else is raised ends it.
            TransactionDead: It has ended.
            Stale: The namespace has moved since it began, or the rows it is based on are gone.
            OutOfBudget, NoSpace: As `Write.commit`.
        """
        if self.receipt is not None:
            return self.receipt
        self._require_open()
        tokens = self._complete_tokens()
        try:
            self._sync_pages()
            receipt = self.engine.catalog.write(lambda writer: self._change(writer, tokens), reuse=True)
        except BaseException as error:
            self.abort(f"it could not be published: {error}")
            raise
        self.receipt = receipt
        for write in self._writes:
            write._published()
        self._end()
        self.engine.usage.note(self._unit, self.engine.clock())
        return receipt

    def abort(self, reason: str = "it was aborted") -> None:
        """End it without a trace. Does nothing when it has ended before."""
        if self.is_open:
            self.reason = reason
            for write in self._writes:
                write.discard()
            self._end()

    def _view(self, layer: int, side: int) -> View:
        return lambda page, row, count: self._bytes(page, layer, side, row, count)

    def _bytes(self, page: int, layer: int, side: int, row: int, count: int) -> memoryview:
        maps = self.engine.maps
        try:
            if page in self._own_pages():
                # Nothing in the catalog says yet what they must be.
                found, low, high = maps.locate(page, layer, side, row, count)
                return found.view[low:high]
            return maps.rows(page, layer, side, row, count)
        except (PageGone, PageCorrupt) as error:
            raise Stale(self.plan.namespace) from error

    def _own_pages(self) -> dict[int, OpenPage]:
        return {page.number: page for write in self._writes for page in write.pages}

    def _end(self) -> None:
        if self.receipt is None:
            for page in self._own_pages():
                self.engine.maps.drop(page)
        self._writes.clear()
        self.engine.pages.retire(self._private)
        for unit in self._kept:
            self.engine.end_writing(unit, 0)

    def _require_open(self) -> None:
        if self.reason:
            raise TransactionDead(self.reason)
        if self.receipt is not None:
            raise TransactionDead("it was published")

    def _side(self, sid: bytes) -> int:
        sids = sids_of(self._unit)
        if sid not in sids:
            raise UnknownSession(sid)
        return sids.index(sid)

    def _rows(self, place: Place) -> int:
        if place in self._grouped:
            return rows_of(self._grouped[place])
        return self.base.tokens + sum(extent[2] for extent in self._runs.get(place, ()))

    def _places(self) -> list[Place]:
        return [(layer, side) for layer in self.plan.filled for side in SIDES]

    def _complete_tokens(self) -> int:
        rows = {place: self._rows(place) for place in self._places()}
        if not rows:
            if not self._states:
                raise NothingPrepared
            return 0
        # A transaction without rows of its own is one only if it takes over those of a parent.
        fewest = max(1, self.base.tokens + (self.plan.parent is None))
        wanted = self.plan.tokens if self.plan.tokens is not None else max(fewest, *rows.values())
        for (layer, side), held in rows.items():
            if held != wanted:
                raise Incomplete(SIDE_NAMES[side], layer, held, wanted)
        return wanted

    def _page(self, layer: int, side: int, count: int, *, tail: bool = False) -> OpenPage:
        """A page of the transaction with so many free rows, coded or not yet, once there is room for them."""
        engine = self.engine
        with engine.catalog.snapshot() as reader:
            stored = reader.counters().bytes
        page = engine.pages.current(self._private, side, tail=tail)
        if page is not None and page.free_rows(layer, side) >= count:
            engine.reserve(self._private, page.cost(layer, side, count), stored, self._tenant)
            return page
        schemas = dict(zip(SIDES, self.plan.schemas, strict=True))
        if len({schema.num_layers for schema in schemas.values()}) > 1:
            schemas = {side: schemas[side]}
        if tail:
            schemas = {side: schema.wire for side, schema in schemas.items()}
        capacity = max(count, APPEND_ROWS) if tail else self._capacity(layer, side, count)
        layout = PageLayout(PageKind.ROWS, capacity, schemas, tail)
        needed = layout.header_bytes + align(count * layout.row_bytes(layer, side))
        engine.reserve(self._private, needed, stored, self._tenant)
        return engine.pages.create(self._private, layout)

    def _capacity(self, layer: int, side: int, count: int) -> int:
        """All rows that are to come, if that is known; else room for as many as there are already."""
        held = self._rows((layer, side))
        if self.plan.tokens is not None:
            return max(count, self.plan.tokens - held)
        row_bytes = self.plan.schemas[side].row_bytes(layer)
        return max(count, min(held - self.base.tokens, APPEND_REGION_BYTES // row_bytes))

    def _sync_pages(self) -> None:
        """Under `always` pages, and their names, reach the disk before the catalog names them."""
        if self.engine.options.durability is Durability.ALWAYS and len(self._writes) != self._synced:
            writes = len(self._writes)
            for page in self._own_pages().values():
                sync_file(page.fd)
            sync_directory(self.engine.pages.directory)
            self._synced = writes

    def _change(self, writer: Writer, tokens: int) -> Receipt:
        plan, base = self.plan, self._base_again(writer)
        replaced = writer.namespace(self._unit) if base.spoiled else None
        if replaced is not None:
            drop_unit(writer, replaced)
        for write in self._writes:
            write._account(writer)
        record = open_unit(writer, self._unit, self.engine.clock())
        if replaced is not None and plan.fresh:
            record.pins, record.hits = replaced.pins, replaced.hits
        self._put_identity(writer, record, base)
        for sid, side in zip(sids_of(self._unit), SIDES, strict=True) if plan.layers else ():
            old = writer.session(sid)
            if old is None:
                serial = writer.new_serial()
                old = SessionRecord.new(sid, serial, self._unit, side, plan.schemas[side], writer.generation)
            layers = [self._joined(base, layer, side) for layer in range(plan.layers)]
            replace_session(writer, old, old.with_layers(layers, writer.generation))
        # They describe the position after the rows that were there.
        drop_states(writer, record)
        if plan.prefill_us is not None:
            record.prefill_us = plan.prefill_us
        writer.put_namespace(record)
        for state in self._states.values():
            state._name_rows(writer)
        record = open_unit(writer, self._unit, self.engine.clock())
        refresh(writer, record)
        receipt = Receipt(plan.namespace, record.generation, tokens, self._digest())
        receipts.keep(writer, self.id, receipt)
        return receipt

    def _base_again(self, writer: Writer) -> Base:
        """What it adds to as it is now, which must be what it was."""
        base, record = self.base, writer.namespace(self._unit)
        generation = record.generation if record is not None else 0
        if generation != base.generation:
            raise StaleGeneration(self.plan.namespace, generation, base.generation)
        found = bind(self.engine, writer, self.plan)
        if found.tokens != base.tokens or (found.spoiled and base.tokens):
            raise Stale(self.plan.namespace)
        if found.source is not None and base.source is not None:
            same = found.source.generation == base.source.generation
            if not same and found.extents != base.extents:
                raise Stale(found.source.namespace)
        return found

    def _joined(self, base: Base, layer: int, side: int) -> Extents:
        if (layer, side) in self._grouped:
            return self._grouped[layer, side]
        extents = base.extents[side][layer]
        rows = base.tokens
        for run in self._runs.get((layer, side), ()):
            extents = splice(extents, rows, run)
            rows += run[2]
        return extents

    def _put_identity(self, writer: Writer, record: NamespaceRecord, base: Base) -> None:
        plan = self.plan
        if base.source is not None and base.source.uid != record.uid:
            inherit(writer, base.source, record, base.tokens)
        elif plan.parent is not None:
            prompts.cut_blocks(writer, record, base.tokens)
        if plan.blocks is not None:
            prompts.set_blocks(writer, record, *plan.blocks, plan.model)
        if plan.manifest is not None:
            put_manifest(writer, record, plan.manifest)

    def _digest(self) -> int:
        each = (self.hashers[place].intdigest().to_bytes(8, "little") for place in self._places())
        return xxhash.xxh3_64_intdigest(b"".join(each))


def begin(engine: Engine, txn: bytes, plan: PrefixPlan) -> Transaction:
    """See `Store.begin_transaction`."""
    engine.check_name(plan.namespace + K_SUFFIX)
    if not (plan.only is None) <= plan.layers <= engine.options.max_layers:
        raise LayerLimit(plan.layers - 1, engine.options.max_layers)
    with engine.catalog.snapshot() as reader:
        base = bind(engine, reader, plan)
        stored = reader.counters().bytes
    if plan.tokens is not None and plan.tokens < base.tokens:
        raise BeyondTokens(base.tokens, plan.tokens)
    transaction = Transaction(engine, txn, plan, base)
    if plan.tokens is not None:
        try:
            needed = plan.bytes_of(plan.tokens - base.tokens)
            engine.reserve(PRIVATE + txn, needed, stored, tenant_of(plan.namespace))
        except BaseException as error:
            transaction.abort(str(error))
            raise
    return transaction

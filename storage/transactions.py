"""Prefix transactions: rows are gathered where nobody sees them, and published in one step.

The rows go into pages of the transaction's own, which no record names before it is published: when the
process dies they are swept like any other write that was under way. A transaction is bound to the generation
that its namespace had when it began. If that has moved, what it was based on is gone and it cannot be
published.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash

from . import prompts, receipts
from .catalog import Reader, Writer
from .engine import Engine
from .errors import (
    BeyondTokens,
    Gap,
    Incomplete,
    LayerLimit,
    OutOfBudget,
    Overlap,
    RowsNotStored,
    SchemaMismatch,
    Stale,
    StaleGeneration,
    TransactionDead,
    Uneven,
    UnknownNamespace,
    UnknownSession,
)
from .extents import Extents, cut, splice
from .files import sync_directory, sync_file
from .identity import inherit, put_manifest
from .names import K_SUFFIX, sids_of, unit_of_namespace
from .open_pages import OpenPage, Tail
from .options import Durability
from .page import K_SIDE, V_SIDE, PageKind, PageLayout, align
from .receipts import Receipt
from .records import NamespaceRecord, SessionRecord
from .schema import Schema
from .units import drop_states, drop_unit, open_unit, refresh, replace_session, sessions_of
from .write import APPEND_REGION_BYTES, Write, check_place

SIDES = (K_SIDE, V_SIDE)
SIDE_NAMES = ("K", "V")
PRIVATE = b"t"
"""Kind byte of the unit that a transaction's pages are kept under; no unit of the catalog has it."""

Place = tuple[int, int]
"""Layer and side, which sort as k0 v0 k1 v1 …"""


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """What a transaction is to make.

    Attributes:
        namespace: The prefix.
        schemas: Those of the K and the V side.
        layers: How many layers each side will have, all of them with rows.
        parent: A namespace and how many of its rows to begin with; None for the prefix's own, all of them.
        tokens: Rows that every layer will have; None for whatever they will have in common.
        blocks: The block table to set: tokens per block, and the blocks' hashes.
        model: Digest of the model, by which the tokens of the table are found.
        manifest: The manifest to set.
        prefill_us: Measured time the rows took to compute, in microseconds.
    """

    namespace: bytes
    schemas: tuple[Schema, Schema]
    layers: int
    parent: tuple[bytes, int] | None = None
    tokens: int | None = None
    blocks: tuple[int, bytes] | None = None
    model: bytes = b""
    manifest: bytes | None = None
    prefill_us: int | None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one row of every layer of both sides."""
        return sum(schema.row_bytes(layer) for schema in self.schemas for layer in range(self.layers))


class Base(NamedTuple):
    """What a transaction adds to.

    Attributes:
        generation: Of its namespace; 0 when that is not there.
        spoiled: Whether the namespace is there but has expired, or its bytes failed their check.
        tokens: Rows of every layer.
        extents: Where they are: for each side, for each layer.
        source: The namespace that they come from, None when there are none.
    """

    generation: int
    spoiled: bool
    tokens: int
    extents: tuple[tuple[Extents, ...], ...]
    source: NamespaceRecord | None


class PreparedWrite(Write):
    """Rows on their way into a transaction: `commit` makes them part of it, for nobody else to see."""

    def __init__(
        self,
        transaction: Transaction,
        session: SessionRecord,
        page: OpenPage,
        layer: int,
        start: int,
        count: int,
    ) -> None:
        self._transaction = transaction
        self._place = (layer, session.side)
        self._prepared = False
        self.hasher = xxhash.xxh3_64()
        super().__init__(transaction.engine, session, page, layer, start, count)

    @property
    def place(self) -> Place:
        """Layer and side."""
        return self._place

    def commit(self) -> int:
        """Add the rows to the transaction; the generation it is bound to.

        Raises:
            TransactionDead: It has ended meanwhile; the write is aborted.
            WriteClosed: Not all rows were filled.
        """
        if self._transaction.reason:
            self.abort()
            raise TransactionDead(self._transaction.reason)
        self.seal()
        self._prepared = True
        # The page is the transaction's own: the next rows may go on with the last piece.
        self._page.tails[self._region] = self._tail
        self._transaction.add(self, (self._page.number, self._page_row, self.count))
        return self._transaction.base.generation

    def abort(self) -> None:
        """Give everything back, unless the rows are part of the transaction: then they end with it."""
        if not self._prepared:
            super().abort()

    def discard(self) -> None:
        """The transaction has ended."""
        super().abort()

    def _first_tail(self) -> Tail:
        """The rows are filled from the first one on, maybe anew."""
        self.hasher = self._transaction.hashers[self._place].copy()
        return super()._first_tail()

    def _flush(self) -> None:
        self.hasher.update(memoryview(self._window)[: self._filling * self._row_bytes])
        super()._flush()


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
    _writes: list[PreparedWrite] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._private = PRIVATE + self.id
        self._unit = unit_of_namespace(self.plan.namespace)
        self._kept = {self._unit}
        if self.plan.parent is not None:
            self._kept.add(unit_of_namespace(self.plan.parent[0]))
        for unit in self._kept:
            self.engine.begin_writing(unit, 0)

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

    def begin_write(self, sid: bytes, layer: int, start: int, count: int) -> PreparedWrite:
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
        session = SessionRecord.new(sid, 0, self._private, side, schema, 0)
        return PreparedWrite(self, session, self._page(layer, side, count), layer, start, count)

    def add(self, write: PreparedWrite, run: tuple[int, int, int]) -> None:
        """Take over the rows of a write."""
        runs = self._runs.get(write.place, ())
        self._runs[write.place] = splice(runs, sum(extent[2] for extent in runs), run)
        self.hashers[write.place] = write.hasher
        self._writes.append(write)

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

    def _end(self) -> None:
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
        return self.base.tokens + sum(extent[2] for extent in self._runs.get(place, ()))

    def _places(self) -> list[Place]:
        return [(layer, side) for layer in range(self.plan.layers) for side in SIDES]

    def _complete_tokens(self) -> int:
        rows = {place: self._rows(place) for place in self._places()}
        # A transaction without rows of its own is one only if it takes over those of a parent.
        fewest = max(1, self.base.tokens + (self.plan.parent is None))
        wanted = self.plan.tokens if self.plan.tokens is not None else max(fewest, *rows.values())
        for (layer, side), held in rows.items():
            if held != wanted:
                raise Incomplete(SIDE_NAMES[side], layer, held, wanted)
        return wanted

    def _page(self, layer: int, side: int, count: int) -> OpenPage:
        """A page of the transaction with so many free rows, once there is room for them."""
        engine = self.engine
        with engine.catalog.snapshot() as reader:
            stored = reader.counters().bytes
        page = engine.pages.current(self._private, side)
        if page is not None and page.free_rows(layer, side) >= count:
            engine.reserve(self._private, page.cost(layer, side, count), stored)
            return page
        schemas = dict(zip(SIDES, self.plan.schemas, strict=True))
        if len({schema.num_layers for schema in schemas.values()}) > 1:
            schemas = {side: schemas[side]}
        layout = PageLayout(PageKind.ROWS, self._capacity(layer, side, count), schemas)
        needed = layout.header_bytes + align(count * layout.row_bytes(layer, side))
        engine.reserve(self._private, needed, stored)
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
        if self.engine.options.durability is Durability.ALWAYS and self._writes:
            for page in {write._page.number: write._page for write in self._writes}.values():
                sync_file(page.fd)
            sync_directory(self.engine.pages.directory)

    def _change(self, writer: Writer, tokens: int) -> Receipt:
        plan, base = self.plan, self._base_again(writer)
        if base.spoiled and (record := writer.namespace(self._unit)) is not None:
            drop_unit(writer, record)
        for write in self._writes:
            write._account(writer)
        record = open_unit(writer, self._unit, self.engine.clock())
        self._put_identity(writer, record, base)
        for sid, side in zip(sids_of(self._unit), SIDES, strict=True):
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
    if not 0 < plan.layers <= engine.options.max_layers:
        raise LayerLimit(plan.layers - 1, engine.options.max_layers)
    with engine.catalog.snapshot() as reader:
        base = bind(engine, reader, plan)
    if plan.tokens is not None:
        if plan.tokens < base.tokens:
            raise BeyondTokens(base.tokens, plan.tokens)
        needed, limit = (plan.tokens - base.tokens) * plan.bytes_per_token, engine.options.max_bytes
        if limit is not None and needed > limit:
            raise OutOfBudget(needed, limit)
    return Transaction(engine, txn, plan, base)


def bind(engine: Engine, reader: Reader, plan: PrefixPlan) -> Base:
    """What a transaction of this plan adds to.

    Raises:
        UnknownNamespace: There is no such parent.
        SchemaMismatch: The namespace, or its parent, has another schema or other layers.
        RowsNotStored: The parent holds fewer rows.
        Uneven: The layers to go on from do not hold the same rows.
        Quarantined: The parent's bytes failed their check.
    """
    unit = unit_of_namespace(plan.namespace)
    record = reader.namespace(unit)
    spoiled = record is not None and engine.is_spent(reader, record)
    generation = record.generation if record is not None else 0
    if record is not None and not spoiled:
        engine.check_mutable(reader, unit)
        _check_schemas(_sessions(reader, unit), plan)
    source, tokens = record, record.tokens if record is not None else 0
    if plan.parent is not None:
        parent_unit, tokens = unit_of_namespace(plan.parent[0]), plan.parent[1]
        source = reader.namespace(parent_unit)
        if source is None or source.has_expired(engine.clock()):
            raise UnknownNamespace(plan.parent[0])
        engine.check_quarantine(reader, parent_unit)
        _check_schemas(_sessions(reader, parent_unit), plan)
    elif spoiled:
        source, tokens = None, 0
    if source is None or not tokens:
        return Base(generation, spoiled, 0, (((),) * plan.layers,) * 2, source)
    _check_rows(source, tokens, plan)
    sessions = sessions_of(reader, source.unit)
    extents = tuple(_extents(source, session, tokens, plan.layers) for session in sessions)
    return Base(generation, spoiled, tokens, extents, source)


def _sessions(reader: Reader, unit: bytes) -> list[SessionRecord | None]:
    return [reader.session(sid) for sid in sids_of(unit)]


def _check_schemas(sessions: Sequence[SessionRecord | None], plan: PrefixPlan) -> None:
    for side, session, schema in zip(SIDE_NAMES, sessions, plan.schemas, strict=True):
        if session is not None and (difference := session.schema.differs(schema)) is not None:
            field_name, stored, asked = difference
            raise SchemaMismatch(f"{side} {field_name}", stored, asked)


def _check_rows(source: NamespaceRecord, tokens: int, plan: PrefixPlan) -> None:
    if source.tokens < 0:
        raise Uneven(source.namespace)
    if tokens > source.tokens:
        raise RowsNotStored(0, 0, tokens, source.tokens)
    if source.layers != plan.layers:
        raise SchemaMismatch("layers", str(source.layers), str(plan.layers))


def _extents(
    source: NamespaceRecord, session: SessionRecord, tokens: int, layers: int
) -> tuple[Extents, ...]:
    found = tuple(cut(session.extents_of(layer), tokens) for layer in range(layers))
    if not all(found):
        raise Uneven(source.namespace)
    return found

"""What a transaction is to make, and what it adds to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .catalog import Reader
from .engine import Engine
from .errors import RowsNotStored, SchemaMismatch, Uneven, UnknownNamespace
from .extents import Extents, cut
from .names import sids_of, unit_of_namespace
from .records import NamespaceRecord, SessionRecord
from .schema import Schema
from .units import sessions_of

SIDE_NAMES = ("K", "V")


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """What a transaction is to make.

    Attributes:
        namespace: The prefix.
        schemas: Those of the K and the V side.
        layers: How many layers each side will have; 0 for states alone, without sessions.
        parent: A namespace and how many of its rows to begin with; None for the prefix's own, all of them.
        tokens: Rows that every layer will have; None for whatever they will have in common.
        blocks: The block table to set: tokens per block, and the blocks' hashes.
        model: Digest of the model, by which the tokens of the table are found.
        manifest: The manifest to set.
        prefill_us: Measured time the rows took to compute, in microseconds.
        fresh: Whether to begin with nothing; publishing replaces what is there, and its pins stay.
        only: The layers that have rows, when not all of them have.
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
    fresh: bool = False
    only: tuple[int, ...] | None = None

    @property
    def filled(self) -> Sequence[int]:
        """The layers that have rows."""
        return range(self.layers) if self.only is None else self.only

    def bytes_of(self, rows: int) -> int:
        """Bytes of so many rows of every layer of both sides, written after one another."""
        specs = [schema.layer(layer) for schema in self.schemas for layer in self.filled]
        return sum(spec.stored_bytes(rows) for spec in specs)


class Base(NamedTuple):
    """What a transaction adds to.

    Attributes:
        generation: Of its namespace; 0 when that is not there.
        spoiled: Whether the namespace is there but has expired, its bytes failed their check, or it is to be
            replaced.
        tokens: Rows of every layer.
        extents: Where they are: for each side, for each layer.
        source: The namespace that they come from, None when there are none.
    """

    generation: int
    spoiled: bool
    tokens: int
    extents: tuple[tuple[Extents, ...], ...]
    source: NamespaceRecord | None


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
    spoiled = record is not None and (plan.fresh or engine.is_spent(reader, record))
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

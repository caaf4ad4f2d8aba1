"""Sessions and namespaces: made, found, listed, cut, forked, dropped."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from . import gone, marks, prompts, refs
from .catalog import Reader, Writer
from .engine import RECORDS_KEPT, Engine
from .errors import (
    BadRange,
    NamespaceExists,
    SchemaMismatch,
    UnknownNamespace,
)
from .expiry import expired, set_expiry
from .identity import inherit, manifest_of, put_manifest
from .keyspace.access import drop_values
from .names import K_SUFFIX, LONGEST_PLAIN_KEY, SINGLE, V_SUFFIX, key_of, sids_of, unit_of, unit_of_namespace
from .queue import enqueue
from .records import NamespaceRecord, SessionRecord, StateRecord
from .schema import Schema
from .units import (
    cut_session,
    drop_session,
    drop_states,
    drop_unit,
    open_unit,
    refresh,
    refresh_or_remove,
    replace_session,
    sessions_of,
)

_BATCH = 256


class SessionView(NamedTuple):
    """A session as it was at one moment.

    Attributes:
        sid: Its name.
        slot: Serial number of this incarnation.
        namespace: The namespace or single session it belongs to.
        side: 0 for K (or a single session), 1 for V.
        schema: Format and dim of its layers.
        num_layers: Layers of a per-layer schema, else one more than the highest layer stored.
        rows: Rows of each layer, as far as any was stored.
        generation: Moves with every change of the rows.
    """

    sid: bytes
    slot: int
    namespace: bytes
    side: int
    schema: Schema
    num_layers: int
    rows: tuple[int, ...]
    generation: int


def create_session(engine: Engine, sid: bytes, schema: Schema) -> int:
    """See `Store.create_session`."""
    engine.check_name(sid)
    with engine.catalog.snapshot() as reader:
        found = reader.session(sid)
        record = reader.namespace(found.unit) if found is not None else None
        spent = record is not None and engine.is_spent(reader, record)
    if found is not None and not spent:
        _check_schema(found, schema, "")
        engine.usage.note(found.unit, engine.clock())
        return found.slot
    now = engine.clock()

    def change(writer: Writer) -> int:
        unit = unit_of(sid)[0]
        _drop_spent(engine, writer, unit)
        record = open_unit(writer, unit, now)
        slot = _put_new_session(writer, sid, schema, "").slot
        refresh(writer, record)
        return slot

    return engine.catalog.write(change)


def register(
    engine: Engine,
    namespace: bytes,
    k_schema: Schema,
    v_schema: Schema,
    blocks: tuple[int, bytes] | None,
    prefill_us: int | None,
    model: bytes,
) -> None:
    """See `Store.register`."""
    engine.check_name(namespace + K_SUFFIX)
    unit = unit_of_namespace(namespace)
    now = engine.clock()
    if blocks is None and _is_registered(engine, namespace, k_schema, v_schema, prefill_us):
        engine.usage.note(unit, now)
        return

    def change(writer: Writer) -> None:
        _drop_spent(engine, writer, unit)
        record = open_unit(writer, unit, now)
        record.used = now
        _put_new_session(writer, namespace + K_SUFFIX, k_schema, "K ")
        _put_new_session(writer, namespace + V_SUFFIX, v_schema, "V ")
        if prefill_us is not None:
            record.prefill_us = prefill_us
        if blocks is not None:
            prompts.set_blocks(writer, record, *blocks, model)
        refresh(writer, record)

    engine.catalog.write(change)


def _is_registered(
    engine: Engine, namespace: bytes, k_schema: Schema, v_schema: Schema, prefill_us: int | None
) -> bool:
    """Whether registering would change nothing: then it costs no transaction."""
    unit = unit_of_namespace(namespace)
    with engine.catalog.snapshot() as reader:
        record = reader.namespace(unit)
        sessions = sessions_of(reader, unit)
        spent = record is not None and engine.is_spent(reader, record)
    return (
        record is not None
        and not spent
        and prefill_us in (None, record.prefill_us)
        and [session.schema for session in sessions] == [k_schema, v_schema]
    )


def view_session(engine: Engine, sid: bytes, at: int | None) -> SessionView:
    """See `Store.session`."""
    with engine.catalog.snapshot() as reader:
        return _session_view(engine.readable(reader, sid, at))


def lookups(engine: Engine, names: Iterable[bytes]) -> list[NamespaceRecord | None]:
    """See `Store.lookups`."""
    now, note = engine.clock(), engine.usage.note
    found: list[NamespaceRecord | None] = []
    with engine.catalog.snapshot() as reader:
        known = engine.lookups.of(reader.state)
        for name in names:
            if name in known:
                record = known[name]
            else:
                record = _look_up(name, reader)
                if len(name) <= LONGEST_PLAIN_KEY and len(known) < engine.lookups.most:
                    known[name] = record
            if record is None or record.has_expired(now):
                found.append(None)
            else:
                note(record.unit, now)
                found.append(record)
    return found


def _look_up(namespace: bytes, reader: Reader) -> NamespaceRecord | None:
    """The namespace if it can be restored as long as it has not expired."""
    key = key_of(unit_of_namespace(namespace))
    raw = reader.get("namespaces", key)
    record = None if raw is None or reader.get("quarantine", key) is not None else _decoded(raw)
    return record if record is not None and record.is_hit else None


_decoded = lru_cache(RECORDS_KEPT)(NamespaceRecord.decode)


def view_namespace(engine: Engine, namespace: bytes) -> NamespaceRecord:
    """See `Store.namespace`."""
    with engine.catalog.snapshot() as reader:
        return _namespace(engine, reader, namespace)


def iter_sessions(engine: Engine, tag: bytes) -> Iterator[SessionView]:
    """See `Store.sessions`."""
    for raw in _iter_table(engine, "sessions", tag):
        yield _session_view(SessionRecord.decode(raw))


def iter_namespaces(engine: Engine, tag: bytes) -> Iterator[NamespaceRecord]:
    """See `Store.namespaces`."""
    for raw in _iter_table(engine, "namespaces", unit_of_namespace(tag)):
        yield NamespaceRecord.decode(raw)


def drop_sessions(engine: Engine, sids: Iterable[bytes]) -> int:
    """See `Store.drop_sessions`."""
    names = list(sids)

    def change(writer: Writer) -> int:
        dropped = 0
        for sid in names:
            session = writer.session(sid)
            if session is None:
                continue
            dropped += 1
            drop_session(writer, session)
            refresh_or_remove(writer, session.unit)
            if engine.options.tiered:
                marks.tell(writer, session.unit)
        return dropped

    return engine.catalog.write(change)


def drop_namespaces(engine: Engine, namespaces: Iterable[bytes]) -> int:
    """See `Store.drop_namespaces`."""
    units = [unit_of_namespace(namespace) for namespace in namespaces]

    def tell(writer: Writer) -> None:
        for unit in units:
            marks.tell(writer, unit)

    return drop_units(engine, units, gone.DROPPED, tell if engine.options.tiered else None)


def discard(engine: Engine, units: Iterable[bytes], pages: Container[int]) -> None:
    """Remove damaged units, and plain keys whose value is in one of these pages, in one transaction."""
    drop_units(engine, units, gone.DROPPED, lambda writer: drop_values(writer, pages))


def drop_units(
    engine: Engine, units: Iterable[bytes], why: str, besides: Callable[[Writer], None] | None = None
) -> int:
    """Remove units, and what `besides` does, in one transaction; how many units there were."""
    names, now = list(units), engine.clock()

    def change(writer: Writer) -> int:
        if besides is not None:
            besides(writer)
        dropped = 0
        for unit in names:
            record = writer.namespace(unit)
            if record is not None:
                drop_unit(writer, record)
                gone.note(writer, unit, why, now)
                dropped += 1
        return dropped

    return engine.catalog.write(change)


def truncate(engine: Engine, namespace: bytes, tokens: int) -> int:
    """See `Store.truncate`."""
    if tokens < 0:
        raise BadRange(0, tokens)

    def change(writer: Writer) -> int:
        record = _namespace(engine, writer, namespace)
        engine.check_quarantine(writer, record.unit)
        engine.check_mutable(writer, record.unit)
        shorter = False
        for session in sessions_of(writer, record.unit):
            shorter |= cut_session(writer, session, (tokens,) * len(session.layers))
        if shorter:
            drop_states(writer, record)
            prompts.cut_blocks(writer, record, tokens)
            refresh(writer, record)
            if not tokens and engine.options.tiered:
                # Nothing is left that could be written to the tier in place of what it holds.
                marks.tell(writer, record.unit)
        return record.generation

    return engine.catalog.write(change)


def fork(engine: Engine, namespace: bytes, child: bytes, tokens: int | None) -> int:
    """See `Store.fork`."""
    engine.check_name(child + K_SUFFIX)
    if tokens is not None and tokens < 0:
        raise BadRange(0, tokens)
    now = engine.clock()

    def change(writer: Writer) -> int:
        parent = _namespace(engine, writer, namespace)
        engine.check_quarantine(writer, parent.unit)
        unit = unit_of_namespace(child)
        _drop_spent(engine, writer, unit)
        if writer.namespace(unit) is not None:
            raise NamespaceExists(child)
        record = open_unit(writer, unit, now)
        record.prefill_us = parent.prefill_us
        shorter = False
        for session in sessions_of(writer, parent.unit):
            shorter |= _fork_session(writer, session, child, tokens)
        if not shorter:
            _share_states(writer, parent, record)
        inherit(writer, parent, record, tokens)
        refresh(writer, record)
        return record.generation

    return engine.catalog.write(change)


def pin(engine: Engine, name: bytes, step: int) -> int:
    """See `Store.pin` and `Store.unpin`."""

    def change(writer: Writer) -> int:
        record = _unit(engine, writer, name)
        record.pins = max(0, record.pins + step)
        enqueue(writer, record)
        writer.put_namespace(record)
        return record.pins

    return engine.catalog.write(change)


def ends(engine: Engine, name: bytes) -> float:
    """When a namespace, or a session that belongs to none, ends; 0 for never. Raises `UnknownNamespace`."""
    with engine.catalog.snapshot() as reader:
        return _unit(engine, reader, name).expires


def expire(engine: Engine, name: bytes, at: float) -> None:
    """See `Store.expire`."""

    def change(writer: Writer) -> None:
        record = _unit(engine, writer, name)
        set_expiry(writer, record, max(at, 0.0))
        writer.put_namespace(record)
        marks.remove(writer, record.unit)

    engine.catalog.write(change)


def drop_expired(engine: Engine) -> int:
    """Remove namespaces that have ended, a batch at a time; how many."""
    with engine.catalog.snapshot() as reader:
        units = expired(reader, engine.clock())
    return drop_units(engine, units, gone.EXPIRED) if units else 0


def miss_reason(engine: Engine, namespace: bytes) -> str:
    """See `Store.miss_reason`."""
    unit = unit_of_namespace(namespace)
    with engine.catalog.snapshot() as reader:
        record = reader.namespace(unit)
        reason = reader.get("quarantine", key_of(unit))
    if record is None:
        return "absent"
    if reason is not None:
        return f"quarantined: {reason.decode()}"
    if record.has_expired(engine.clock()):
        return "expired"
    return "" if record.is_hit else "incomplete"


def blocks(engine: Engine, namespace: bytes) -> tuple[int, bytes] | None:
    """See `Store.blocks`."""
    with engine.catalog.snapshot() as reader:
        return prompts.get_blocks(reader, _namespace(engine, reader, namespace))


def manifest(engine: Engine, namespace: bytes) -> bytes | None:
    """See `Store.manifest`."""
    with engine.catalog.snapshot() as reader:
        return manifest_of(reader, _namespace(engine, reader, namespace))


def set_manifest(engine: Engine, namespace: bytes, value: bytes) -> None:
    """See `Store.set_manifest`."""

    def change(writer: Writer) -> None:
        record = _namespace(engine, writer, namespace)
        put_manifest(writer, record, value)
        marks.remove(writer, record.unit)

    engine.catalog.write(change)


def _uid(record: NamespaceRecord) -> bytes:
    return record.uid.to_bytes(8, "big")


def _unit(engine: Engine, reader: Reader, name: bytes) -> NamespaceRecord:
    """The namespace of this name; if there is none, the session of this name that belongs to none."""
    try:
        return _namespace(engine, reader, name)
    except UnknownNamespace:
        unit = unit_of(name)[0]
        record = reader.namespace(unit) if unit[:1] == SINGLE else None
        if record is None or record.has_expired(engine.clock()):
            raise
        return record


def _namespace(engine: Engine, reader: Reader, namespace: bytes) -> NamespaceRecord:
    record = reader.namespace(unit_of_namespace(namespace))
    if record is None or record.has_expired(engine.clock()):
        raise UnknownNamespace(namespace)
    return record


def _put_new_session(writer: Writer, sid: bytes, schema: Schema, where: str) -> SessionRecord:
    """The session of this name, made when it is new. Raises `SchemaMismatch`."""
    found = writer.session(sid)
    if found is not None:
        _check_schema(found, schema, where)
        return found
    unit, side = unit_of(sid)
    record = SessionRecord.new(sid, writer.new_serial(), unit, side, schema, writer.generation)
    writer.put_session(record)
    return record


def _check_schema(found: SessionRecord, schema: Schema, where: str) -> None:
    difference = found.schema.differs(schema)
    if difference is not None:
        field, stored, asked = difference
        raise SchemaMismatch(where + field, stored, asked)


def _drop_spent(engine: Engine, writer: Writer, unit: bytes) -> None:
    """A unit made anew starts empty when it has expired, or when its bytes failed their check."""
    record = writer.namespace(unit)
    if record is not None and engine.is_spent(writer, record):
        drop_unit(writer, record)


def _fork_session(writer: Writer, session: SessionRecord, child: bytes, tokens: int | None) -> bool:
    """Copy a session's extent lists under the child's name; whether rows were left out."""
    sid = sids_of(unit_of_namespace(child))[session.side]
    empty = _put_new_session(writer, sid, session.schema, "")
    copy = replace(session, sid=sid, slot=empty.slot, unit=empty.unit, generation=writer.generation)
    replace_session(writer, empty, copy)
    return tokens is not None and cut_session(writer, copy, (tokens,) * len(copy.layers))


def _share_states(writer: Writer, parent: NamespaceRecord, child: NamespaceRecord) -> None:
    for key, raw in list(writer.scan("states", prefix=_uid(parent))):
        refs.acquire(writer, StateRecord.decode(raw).page)
        writer.put("states", _uid(child) + key[8:], raw)
        child.states += 1


def _session_view(record: SessionRecord) -> SessionView:
    return SessionView(
        record.sid,
        record.slot,
        record.unit[1:],
        record.side,
        record.schema,
        record.schema.num_layers or len(record.layers),
        record.rows,
        record.generation,
    )


def _iter_table(engine: Engine, table: str, prefix: bytes) -> Iterator[bytes]:
    """Values in key order; no transaction is open while the caller works."""
    start = prefix
    while True:
        batch: list[tuple[bytes, bytes]] = []
        with engine.catalog.snapshot() as reader:
            for item in reader.scan(table, start=start, prefix=prefix):
                batch.append(item)
                if len(batch) == _BATCH:
                    break
        for _, raw in batch:
            yield raw
        if len(batch) < _BATCH:
            return
        start = batch[-1][0] + b"\0"

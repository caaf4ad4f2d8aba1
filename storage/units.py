"""Units (namespaces and single sessions): made, summed up, dropped.

A unit's record says what a lookup needs, so that a lookup reads one small record. Whoever changes a session
of the unit calls `refresh` in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import gone, refs
from .catalog import Reader, Writer
from .errors import Gap, Stale, UnknownSession
from .expiry import set_expiry
from .extents import cut
from .identity import forget
from .names import key_of, sids_of
from .queue import enqueue, remove
from .records import NO_TOKENS, NamespaceRecord, SessionRecord, StateRecord

Shape = tuple[int, int]
"""Rows that every stored layer holds (`NO_TOKENS` when they differ), and how many layers hold rows."""


def open_unit(writer: Writer, unit: bytes, now: float) -> NamespaceRecord:
    """The record of a unit, made when it is new; the caller stores it."""
    record = writer.namespace(unit)
    if record is None:
        record = NamespaceRecord(unit, writer.new_serial(), now, now)
        gone.forget(writer, unit)
    return record


def sessions_of(reader: Reader, unit: bytes) -> list[SessionRecord]:
    """The sessions of a unit that exist, K first."""
    return [record for record in map(reader.session, sids_of(unit)) if record is not None]


def refresh(writer: Writer, record: NamespaceRecord, *, moved: bool = True) -> None:
    """Sum the unit's sessions up into its record, put it into the eviction queue, and store it.

    Args:
        writer: The transaction.
        record: The unit.
        moved: Whether what can be read of it has changed, and so its generation.
    """
    sessions = sessions_of(writer, record.unit)
    record.tokens, record.layers = _tokens(sessions, len(sids_of(record.unit)))
    record.bytes = sum([session.live_bytes for session in sessions]) + _state_bytes(writer, record)
    if moved:
        record.generation = writer.generation
        record.owner = writer.catalog.worker
    enqueue(writer, record)
    writer.put_namespace(record)


def drop_unit(writer: Writer, record: NamespaceRecord) -> None:
    """Remove a unit and everything in it."""
    for session in sessions_of(writer, record.unit):
        drop_session(writer, session)
    drop_states(writer, record)
    forget(writer, record)
    writer.delete("marks", key_of(record.unit))
    writer.delete("quarantine", key_of(record.unit))
    remove(writer, record)
    set_expiry(writer, record, 0.0)
    writer.delete("namespaces", key_of(record.unit))


def refresh_or_remove(writer: Writer, unit: bytes) -> None:
    """Refresh a unit, or remove it when nothing is left in it."""
    record = writer.namespace(unit)
    if record is None:
        return
    if record.states or sessions_of(writer, unit):
        refresh(writer, record)
    else:
        drop_unit(writer, record)


def drop_states(writer: Writer, record: NamespaceRecord) -> None:
    """Remove a unit's states. They describe the position after its last row: once rows go, so must they."""
    uid = record.uid.to_bytes(8, "big")
    for _, raw in list(writer.scan("states", prefix=uid)):
        refs.release(writer, StateRecord.decode(raw).page)
    refs.delete_prefix(writer, "states", uid)
    record.states = 0


def live_session(writer: Writer, sid: bytes, slot: int, layer: int, start: int) -> SessionRecord:
    """The session that a write was begun for. Raises `UnknownSession`, `Stale`, `Gap`."""
    session = writer.session(sid)
    if session is None:
        raise UnknownSession(sid)
    if session.slot != slot:
        raise Stale(sid)
    if start > session.rows_in(layer):
        raise Gap(layer, session.rows_in(layer), start)
    return session


def replace_session(writer: Writer, old: SessionRecord, new: SessionRecord) -> None:
    """Store a session with other rows, counting them and the pages. The caller refreshes the unit."""
    refs.change(writer, old.pages, new.pages)
    writer.totals.rows += sum(new.rows) - sum(old.rows)
    writer.put_session(new)


def cut_session(writer: Writer, session: SessionRecord, rows: Sequence[int]) -> bool:
    """Cut each layer to at most so many rows; whether any was longer. The caller refreshes the unit."""
    shorter = session
    for layer, limit in enumerate(rows):
        if session.rows_in(layer) > limit:
            shorter = shorter.with_layer(layer, cut(session.layers[layer], limit), writer.generation)
    if shorter is session:
        return False
    replace_session(writer, session, shorter)
    return True


def drop_session(writer: Writer, session: SessionRecord) -> None:
    """Remove a session, its rows and its snapshots; the caller sees to the unit."""
    refs.change(writer, session.pages, {})
    refs.delete_prefix(writer, "snapshots", session.slot.to_bytes(8, "big"))
    writer.totals.rows -= sum(session.rows)
    writer.delete("sessions", key_of(session.sid))


def _tokens(sessions: list[SessionRecord], sides: int) -> Shape:
    shapes = {_without_trailing_zeros(session.rows) for session in sessions}
    if not any(shapes):
        return 0, 0
    if len(sessions) < sides or len(shapes) > 1:
        return NO_TOKENS, 0
    shape = shapes.pop()
    counts = set(shape) - {0}
    return (counts.pop(), len(shape) - shape.count(0)) if len(counts) == 1 else (NO_TOKENS, 0)


def _without_trailing_zeros(rows: tuple[int, ...]) -> tuple[int, ...]:
    end = len(rows)
    while end and not rows[end - 1]:
        end -= 1
    return rows[:end]


def _state_bytes(reader: Reader, record: NamespaceRecord) -> int:
    if not record.states:
        return 0
    found = reader.scan("states", prefix=record.uid.to_bytes(8, "big"))
    return sum(StateRecord.decode(raw).length for _, raw in found)

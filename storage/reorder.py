"""Sessions trade what they hold, as the beams of a beam search do: in one step and without copying rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from . import prompts, refs
from .catalog import Writer
from .engine import Engine
from .errors import BadOrder, SchemaMismatch
from .page import K_SIDE
from .records import SessionRecord
from .units import drop_states, open_unit, refresh


def reorder(engine: Engine, sids: Sequence[bytes], order: Sequence[int]) -> int:
    """See `Store.reorder`."""
    if len(order) != len(sids):
        raise BadOrder(f"{len(order)} places for {len(sids)} sessions")
    if len(set(sids)) != len(sids):
        raise BadOrder("a session is named twice")
    if not all(0 <= place < len(sids) for place in order):
        raise BadOrder(f"a place is not within 0..{len(sids) - 1}")

    def change(writer: Writer) -> int:
        before = [engine.session(writer, sid) for sid in sids]
        for session in before:
            engine.check_mutable(writer, session.unit)
        after = [_moved(writer, before[place], session) for session, place in zip(before, order, strict=True)]
        # Whatever one session lets go another may take: nothing is released before everything is taken.
        for session in after:
            for page in session.pages:
                refs.acquire(writer, page)
        for session in before:
            for page in session.pages:
                refs.release(writer, page)
        writer.totals.rows += sum(sum(s.rows) for s in after) - sum(sum(s.rows) for s in before)
        for session in after:
            writer.put_session(session)
        _move_units(engine, writer, before, order)
        return writer.generation

    return engine.catalog.write(change)


def _moved(writer: Writer, source: SessionRecord, target: SessionRecord) -> SessionRecord:
    if source.side != target.side:
        raise SchemaMismatch("side", "KV"[target.side], "KV"[source.side])
    difference = target.schema.differs(source.schema)
    if difference is not None:
        raise SchemaMismatch(*difference)
    kept = (target.sid, target.slot, target.unit)
    moved = replace(source, sid=kept[0], slot=kept[1], unit=kept[2])
    return moved if source is target else replace(moved, generation=writer.generation)


def _move_units(
    engine: Engine, writer: Writer, before: Sequence[SessionRecord], order: Sequence[int]
) -> None:
    """Sum the units up; the tokens of a prefix go with its K side."""
    moves = [(session, before[place]) for session, place in zip(before, order, strict=True)]
    moves = [(target, source) for target, source in moves if target is not source]
    now = engine.clock()
    tables = {
        source.unit: prompts.table_of(writer, open_unit(writer, source.unit, now)) for _, source in moves
    }
    for target, source in moves:
        if target.side == K_SIDE:
            record = open_unit(writer, target.unit, now)
            prompts.drop_blocks(writer, record)
            table = tables[source.unit]
            if table is not None:
                prompts.set_blocks(writer, record, *table)
    for unit in {target.unit for target, _ in moves}:
        record = open_unit(writer, unit, now)
        drop_states(writer, record)
        refresh(writer, record)

"""Snapshots of a session: the lengths of its layers, to go back to. They record no bytes and are durable."""

from __future__ import annotations

import msgpack

from . import prompts
from .catalog import Writer
from .engine import Engine
from .errors import SnapshotLimit, UnknownSnapshot
from .records import SessionRecord
from .units import cut_session, drop_states, open_unit, refresh


def take(engine: Engine, sid: bytes) -> int:
    """See `Store.snapshot`."""
    limit = engine.options.max_snapshots

    def change(writer: Writer) -> int:
        session = engine.session(writer, sid)
        prefix = session.slot.to_bytes(8, "big")
        if sum(1 for _ in writer.scan("snapshots", prefix=prefix)) >= limit:
            raise SnapshotLimit(limit)
        number = writer.totals.next_snapshot
        writer.totals.next_snapshot += 1
        writer.put("snapshots", _key(session, number), msgpack.packb(session.rows))
        return number

    return engine.catalog.write(change)


def restore(engine: Engine, sid: bytes, snapshot: int) -> None:
    """See `Store.restore`."""

    def change(writer: Writer) -> None:
        session = engine.session(writer, sid)
        raw = writer.get("snapshots", _key(session, snapshot))
        if raw is None:
            raise UnknownSnapshot(sid, snapshot)
        rows = msgpack.unpackb(raw)
        engine.check_mutable(writer, session.unit)
        if cut_session(writer, session, rows + [0] * (len(session.layers) - len(rows))):
            record = open_unit(writer, session.unit, engine.clock())
            drop_states(writer, record)
            prompts.cut_blocks(writer, record, min(rows, default=0))
            refresh(writer, record)

    engine.catalog.write(change)


def release(engine: Engine, sid: bytes, snapshot: int) -> bool:
    """See `Store.release_snapshot`."""

    def change(writer: Writer) -> bool:
        session = engine.session(writer, sid)
        return writer.delete("snapshots", _key(session, snapshot))

    return engine.catalog.write(change)


def _key(session: SessionRecord, number: int) -> bytes:
    return session.slot.to_bytes(8, "big") + max(number, 0).to_bytes(8, "big")

"""Compaction: a layer in many extents is rewritten into few, a bounded piece at a time.

Overwrites, forks and cuts leave extents behind. A read costs a slice per extent, and a page lives as long
as one of its rows does. The rows do not change, so neither does the generation.
"""

from __future__ import annotations

from .catalog import Writer
from .engine import Engine
from .errors import Stale, StorageError
from .extents import Extents, slice_rows, splice
from .read import rows
from .records import SessionRecord
from .units import replace_session
from .write import MAX_EXTENTS, Write, page_for

PIECE_BYTES = 16 << 20
"""Rows rewritten in one transaction."""


class _Rewrite(Write):
    """The same rows in another place; refused when anything happened to the session meanwhile."""

    moves = False

    def __init__(self, engine: Engine, session: SessionRecord, layer: int, start: int, count: int) -> None:
        page = page_for(engine, session, layer, count)
        super().__init__(engine, session, page, layer, start, count)
        self._session = session

    def _name_rows(self, writer: Writer) -> int:
        session = writer.session(self.sid)
        if session is None or session.encode() != self._session.encode():
            raise Stale(self.sid)
        run = (self._page.number, self._page_row, self.count)
        extents = splice(session.layers[self.layer], self.start, run)
        replace_session(writer, session, session.with_layer(self.layer, extents, session.generation))
        return session.generation


def compact(engine: Engine, sid: bytes, limit: int) -> int:
    """Rewrite fragmented layers of a session, about `limit` bytes at most; the bytes rewritten."""
    done = 0
    while done < limit:
        with engine.catalog.snapshot() as reader:
            session = reader.session(sid)
        piece = _next_piece(session) if session is not None else None
        if session is None or piece is None:
            return done
        try:
            done += _rewrite(engine, session, *piece)
        except StorageError:
            # No room, or changed meanwhile: the layer works as it is.
            return done
    return done


def _rewrite(engine: Engine, session: SessionRecord, layer: int, start: int, end: int) -> int:
    found = rows(engine, session.sid, layer, start, end)
    if found is None:
        return 0
    with _Rewrite(engine, session, layer, start, end - start) as write:
        source = memoryview(b"".join(found.parts))
        while (segment := write.next_segment()) is not None:
            segment[:] = source[: len(segment)]
            source = source[len(segment) :]
        write.commit()
        return write.nbytes


def _next_piece(session: SessionRecord) -> tuple[int, int, int] | None:
    """The first piece, of the most fragmented layer, that is in more than one extent: layer, start, end."""
    layers = [
        (layer, extents)
        for layer, extents in enumerate(session.layers)
        if not session.schema.layer(layer).details.grouped
    ]
    layer, extents = max(layers, key=lambda item: len(item[1]), default=(0, ()))
    if len(extents) <= MAX_EXTENTS:
        return None
    step = max(1, PIECE_BYTES // session.schema.row_bytes(layer))
    total = session.rows_in(layer)
    pieces = [(start, min(start + step, total)) for start in range(0, total, step)]
    start, end = max(pieces, key=lambda piece: len(slice_rows(extents, *piece)))
    return (layer, start, end) if _gains(extents, start, end) else None


def _gains(extents: Extents, start: int, end: int) -> bool:
    return len(slice_rows(extents, start, end)) > 1

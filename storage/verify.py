"""Verification on demand: every row and state of a namespace is read and digested again."""

from __future__ import annotations

from .engine import Engine
from .errors import UnknownNamespace
from .names import unit_of_namespace
from .read import rows
from .states import get, scan_states
from .units import sessions_of

PIECE_ROWS = 65_536


def verify(engine: Engine, namespace: bytes) -> int:
    """See `Store.verify`."""
    unit = unit_of_namespace(namespace)
    with engine.catalog.snapshot() as reader:
        record = reader.namespace(unit)
        if record is None:
            raise UnknownNamespace(namespace)
        sessions = sessions_of(reader, unit)
        states = list(scan_states(reader, record))
    for page in {page for session in sessions for page in session.pages} | {s.page for _, s in states}:
        engine.maps.forget_verified(page)
    checked = 0
    for session in sessions:
        for layer, held in enumerate(session.rows):
            for start in range(0, held, PIECE_ROWS):
                found = rows(engine, session.sid, layer, start, min(start + PIECE_ROWS, held))
                checked += found.nbytes if found is not None else 0
    for number, _ in states:
        blob = get(engine, namespace, number)
        checked += len(blob) if blob is not None else 0
    return checked

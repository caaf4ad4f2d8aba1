"""Verification on demand: every row and state of a namespace is read and digested again."""

from __future__ import annotations

from collections.abc import Iterator

from .engine import Engine
from .errors import UnknownNamespace
from .names import unit_of_namespace
from .read import rows
from .states import get, scan_states
from .units import sessions_of

STEP_BYTES = 16 << 20
"""Bytes that one step checks at most, or one row; a state is one step."""


def verify(engine: Engine, namespace: bytes) -> Iterator[int]:
    """See `Store.verify`."""
    unit = unit_of_namespace(namespace)
    with engine.catalog.snapshot() as reader:
        record = reader.namespace(unit)
        if record is None or record.has_expired(engine.clock()):
            raise UnknownNamespace(namespace)
        sessions = sessions_of(reader, unit)
        states = list(scan_states(reader, record))
    for page in {page for session in sessions for page in session.pages} | {s.page for _, s in states}:
        engine.maps.forget_verified(page)
    for session in sessions:
        for layer, held in enumerate(session.rows):
            step = max(1, STEP_BYTES // session.schema.row_bytes(layer))
            for start in range(0, held, step):
                end = min(start + step, held)
                found = rows(engine, session.sid, layer, start, end, record.generation)
                yield found.nbytes if found is not None else 0
    for number, _ in states:
        blob = get(engine, namespace, number)
        yield len(blob) if blob is not None else 0

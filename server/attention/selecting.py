"""ATTEND.*: value rows whose keys are most like a query.

A session is an ordinary prefix, `<sid>:topk`, whose sides may have different dims: durable, in the byte
budget and seen by all workers. Keys are compared one by one, decoded and kept ready like rows for attention;
FINALIZE builds an index where there are many of them and usearch is installed. An index is of the rows there
were: after more have come to its layer, keys are compared one by one until the next FINALIZE.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pionkv.kernels import Element
from pionkv.kernels.attention.forms import Floats
from pionkv.kernels.attention.packed import PackedSide
from pionkv.kernels.attention.ranking import INDEX_ROWS, KeyIndex, KeyMatrix, rank_streamed
from pionkv.storage import Rows, RowsNotStored, RowsWrite, SessionView, Stale, Store

from ..packing import Filler, Input
from .sources import SIDES, Source, find, read_sides

if TYPE_CHECKING:
    from ..service import Service

SELECTED = b":topk"
"""Ends the name of the prefix that ATTEND.CREATE makes."""
KEYS, INDEX = 0, -1
"""In the place of a head's size: decoded keys, and an index over them."""
ATTEMPTS = 16


def session_of(store: Store, sid: bytes) -> SessionView:
    """The K side of a session. Raises as `Store.session`."""
    return store.session(sid + SELECTED + SIDES[0])


def rows_in(view: SessionView, layer: int) -> int:
    """Rows of a layer."""
    return view.rows[layer] if 0 <= layer < len(view.rows) else 0


async def append(service: Service, sid: bytes, layer: int, count: int, blobs: tuple[memoryview, ...]) -> None:
    """Add rows at the end of both sides of a layer, in one step.

    Raises:
        Stale: Others have come in between again and again.
        UnknownSession, NonFinite, Overflow, StorageError: As `Store.begin_write`.
    """
    async with service.attention.turn(sid + SELECTED):
        # Those of other workers do not wait for this turn.
        for attempt in range(ATTEMPTS):
            try:
                return await _append(service, sid + SELECTED, layer, count, blobs)
            except Stale:
                if attempt == ATTEMPTS - 1:
                    raise


async def _append(
    service: Service, namespace: bytes, layer: int, count: int, blobs: tuple[memoryview, ...]
) -> None:
    store, loop = service.store, service.loop
    start = rows_in(store.session(namespace + SIDES[0]), layer)
    writes: list[RowsWrite] = []
    try:
        for side in SIDES:
            writes.append(store.begin_write(namespace + side, layer, start, count, follows=True))
        for write, source in zip(writes, blobs, strict=True):
            await loop.run_in_executor(service.threads, Filler(write, Input.F32).fill, source)
        store.commit(writes)
    finally:
        for write in writes:
            write.abort()


async def finalize(service: Service, sid: bytes, layer: int) -> None:
    """Build an index over a layer's keys, if they are many and it may be kept. Raises as `Store.rows`."""
    source = _source(service.store, sid, layer)
    if source is None or source.rows < INDEX_ROWS:
        return
    keys = await _keys(service.store, source)
    residents = service.attention.residents
    if not residents.make_room(KeyMatrix.bytes_of(keys)):
        return
    try:
        index = await asyncio.to_thread(KeyIndex, keys)
    except ImportError:
        return
    if residents.make_room(index.nbytes):
        residents.put((source.namespace, layer, INDEX), source.marks, index)


async def best_values(
    service: Service, sid: bytes, layer: int, query: Floats, most: int
) -> NDArray[np.float32] | None:
    """Value rows, float32, of the keys that score highest, the best first; None when the layer has none.

    Raises:
        Stale: The rows have changed again and again meanwhile.
        UnknownSession, StorageError: As `Store.rows`.
    """
    for _ in range(ATTEMPTS):
        source = _source(service.store, sid, layer)
        if source is None:
            return None
        ids = await _best(service, source, query, most)
        with suppress(RowsNotStored):
            values = service.store.rows_by_id(source.namespace + SIDES[1], layer, [int(row) for row in ids])
            # Of other rows these ids would say nothing.
            now = _source(service.store, sid, layer)
            if values is not None and now is not None and now.marks == source.marks:
                return await service.loop.run_in_executor(service.threads, _decode, values)
    raise Stale(sid)


def _source(store: Store, sid: bytes, layer: int) -> Source | None:
    """The rows of a layer, None when there are none. Raises as `session_of`."""
    session_of(store, sid)
    return find(store, sid + SELECTED, layer)


async def _best(service: Service, source: Source, query: Floats, most: int) -> NDArray[np.int64]:
    residents, run = service.attention.residents, service.loop.run_in_executor
    for kind in (INDEX, KEYS):
        ready = residents.get((source.namespace, source.layer, kind), source.marks)
        if isinstance(ready, KeyIndex | KeyMatrix):
            return await run(service.threads, ready.best, query, most)
    keys = await _keys(service.store, source)
    if not residents.make_room(KeyMatrix.bytes_of(keys)):
        return await run(service.threads, rank_streamed, keys, query, most)
    matrix = await run(service.threads, KeyMatrix, keys)
    residents.put((source.namespace, source.layer, KEYS), source.marks, matrix)
    return await run(service.threads, matrix.best, query, most)


async def _keys(store: Store, source: Source) -> PackedSide:
    (found,) = await read_sides(store, source, SIDES[:1])
    return PackedSide(found.spec, found.runs)


def _decode(rows: Rows) -> NDArray[np.float32]:
    out = np.empty((rows.count, rows.spec.dim), np.float32)
    PackedSide(rows.spec, rows.runs).unpack(0, rows.count, 1, Element.F32, out)
    return out

"""ATTEND.PREFIX.STORE: rows that come head by head go into a prefix, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pionkv.kernels import Element, Heads, Refused, pack
from pionkv.storage import RowsWrite, Schema, Stale, UnknownNamespace, UnknownSession

from ..packing import moved
from .sources import OWN, SIDES

if TYPE_CHECKING:
    from ..service import Service

WORD = Element.F32.itemsize


async def store_layer(
    service: Service, sid: bytes, layer: int, schema: Schema, heads: int, k: memoryview, v: memoryview
) -> None:
    """Store one layer in one step, in the place of what it held.

    Args:
        service: What all connections share.
        sid: What the client calls the rows.
        layer: The layer.
        schema: How its rows are stored.
        heads: Key/value heads.
        k: Keys, float32 `[heads, N, D]`.
        v: Values, the same.

    Raises:
        SchemaMismatch: Rows of this name have another format or dim.
        NonFinite, Overflow: A value cannot be stored.
        StorageError: As `Store.begin_write`.
    """
    namespace = sid + OWN
    storing = service.attention.storing
    storing[namespace] += 1
    try:
        try:
            await _store_layer(service, namespace, layer, schema, heads, (k, v))
        except (Stale, UnknownSession):
            # Another worker, whose first store failed, took the empty prefix away meanwhile.
            await _store_layer(service, namespace, layer, schema, heads, (k, v))
    finally:
        storing[namespace] -= 1
        if not storing[namespace]:
            del storing[namespace]
            _drop_if_empty(service, namespace)


async def _store_layer(
    service: Service, namespace: bytes, layer: int, schema: Schema, heads: int, sides: tuple[memoryview, ...]
) -> None:
    store, loop = service.store, service.loop
    rows = sides[0].nbytes // (WORD * schema.layer(layer).dim)
    store.register(namespace, schema, schema)
    with ExitStack() as stack:
        writes: list[RowsWrite] = []
        for side in SIDES:
            writes.append(store.begin_write(namespace + side, layer, 0, rows, last=True))
            stack.callback(writes[-1].abort)
        for write, source in zip(writes, sides, strict=True):
            await loop.run_in_executor(service.threads, _fill, write, source, heads)
        store.commit(writes)


def drop_prefixes(service: Service, names: Sequence[bytes]) -> int:
    """Remove prefixes and what is kept ready of them; how many there were."""
    there = service.notices.present(names)
    dropped = service.store.drop_namespaces(names)
    service.attention.residents.drop(names)
    service.notices.dropped(there)
    return dropped


def _fill(write: RowsWrite, source: memoryview, heads: int) -> None:
    """Fill a write from elements that lie head by head."""
    spec, head_dim = write.spec, write.spec.dim // heads
    layout = Heads(heads, write.count * head_dim, head_dim)
    first = 0
    while (segment := write.next_segment()) is not None:
        count = segment.nbytes // spec.row_bytes
        try:
            pack(spec, source[first * head_dim * WORD :], Element.F32, count, segment, layout=layout)
        except Refused as error:
            raise moved(error, first) from None
        first += count


def _drop_if_empty(service: Service, namespace: bytes) -> None:
    """A store that failed leaves no empty prefix behind; what a tier holds under that name stays."""
    try:
        record = service.store.namespace(namespace)
    except UnknownNamespace:
        return
    if not record.layers and not record.tokens:
        service.store.evict(namespace)

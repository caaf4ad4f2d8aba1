"""ATTEND.CREATE, STORE, FINALIZE, QUERY, QUERYBATCH, INFO, DROP: value rows by the likeness of their keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pionkv.kernels import FormatError, LayerSpec
from pionkv.kernels.attention import MAX_HEAD_DIM, MAX_HEADS
from pionkv.kernels.attention.forms import Floats
from pionkv.kernels.attention.ranking import attend_best
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import Schema, SessionView, UnknownSession

from ..arguments import Argument, Cursor, blob, integer, integer_within, shown
from ..attention.selecting import SELECTED, append, best_values, finalize, session_of
from ..attention.sources import SIDES
from ..clients import Client
from ..dispatch import Handler, Opener, Slow
from ..metrics import Metrics
from ..receiving import Receiver, Spooled
from ..schemas import DEFAULT_FORMAT, ROPE_FORMAT, uniform
from ..sending import bulk_or_send
from .attend_forms import WORD, body
from .prefix import drop_names

CREATE, STORE, FINALIZE = "ATTEND.CREATE", "ATTEND.STORE", "ATTEND.FINALIZE"
QUERY, QUERYBATCH, INFO, DROP = "ATTEND.QUERY", "ATTEND.QUERYBATCH", "ATTEND.INFO", "ATTEND.DROP"
MOST = 4096
"""Rows of one answer."""
NOT_FOUND = CommandError("ERR", "session not found (call ATTEND.CREATE first)")
BAD_SIZES = CommandError("ERR", f"{STORE} blob sizes must be num_tokens * dim * 4 bytes")
BAD_QUERY = CommandError("ERR", f"{QUERY} query must be key_dim * 4 bytes")
BAD_BATCH = CommandError("ERR", f"{QUERYBATCH} blob sizes must be H*D*4 (Q) and H*N*D*4 (K, V)")
OPTIONS = ("KQUANT", "VQUANT", "BOUNDARY", "BOUNDARY_VQUANT", "ROPE")
STORE_BLOBS, BATCH_BLOBS = (4, 5), (5, 6, 7)


def create(client: Client, args: Sequence[Argument]) -> bytes:
    """ATTEND.CREATE sid key_dim value_dim [KQUANT f] [VQUANT f] [BOUNDARY n] [BOUNDARY_VQUANT f] [ROPE n]."""
    limit = client.service.limits.dim
    dims = [
        integer_within(word, 1, limit, f"{CREATE} key_dim and value_dim must be integers in 1..{limit}")
        for word in args[2:4]
    ]
    cursor, options = Cursor(args, 4), dict[str, Argument]()
    while cursor.left >= 2 and (name := next((o for o in OPTIONS if cursor.take_keyword(o)), "")):
        options[name] = cursor.take()
    cursor.end(CREATE)
    layers = client.service.limits.layers
    wrong = f"{CREATE} ROPE must be an integer in 0..key_dim"
    rope = integer_within(options.get("ROPE", b"0"), 0, dims[0], wrong)
    bounded = integer_within(
        options.get("BOUNDARY", b"0"), 0, layers, f"{CREATE} BOUNDARY is not an integer or out of range"
    )
    of_values = "BOUNDARY_VQUANT" if bounded else "VQUANT"
    k, v = (
        _schema(name, shown(options.get(name, DEFAULT_FORMAT.encode())), dim, rope)
        for name, dim in zip(("KQUANT", of_values), dims, strict=True)
    )
    sid = blob(args[1])
    client.service.store.register(sid + SELECTED, k, v)
    return reply.integer(session_of(client.service.store, sid).slot)


def _schema(clause: str, format: str, dim: int, rope: int) -> Schema:
    if format.lower() != ROPE_FORMAT:
        return uniform(CREATE, clause, format, dim)
    try:
        return Schema.uniform(LayerSpec(ROPE_FORMAT, dim, rope=rope))
    except FormatError as error:
        raise CommandError("ERR", f"{CREATE}: {error}") from error


def _place(client: Client, args: Sequence[Argument], command: str, count: str, most: int) -> tuple[int, int]:
    """The layer, and the number after it."""
    wrong = f"{command} layer_id/{count} is not an integer or out of range"
    try:
        return (
            integer_within(args[2], 0, client.service.limits.layers - 1, wrong),
            integer_within(args[3], 1, most, wrong),
        )
    except CommandError:
        raise CommandError("ERR", wrong) from None


def dims_of(client: Client, sid: bytes) -> list[int]:
    """Elements of a key and of a value. Raises `CommandError` when there is no such session."""
    try:
        sides = [client.service.store.session(sid + SELECTED + side) for side in SIDES]
    except UnknownSession:
        raise NOT_FOUND.again() from None
    return [side.schema.layer(0).dim for side in sides]


def _check_store(client: Client, args: Sequence[Argument], position: int, length: int) -> None:
    _, count = _place(client, args, STORE, "num_tokens", client.service.limits.rows)
    dim = dims_of(client, blob(args[1]))[STORE_BLOBS.index(position)]
    if length != count * dim * WORD:
        raise BAD_SIZES.again()


async def store(client: Client, args: Sequence[Argument]) -> bytes:
    """ATTEND.STORE sid layer n keys values."""
    layer, count = _place(client, args, STORE, "num_tokens", client.service.limits.rows)
    blobs = body(args[4]), body(args[5])
    for position, data in zip(STORE_BLOBS, blobs, strict=True):
        _check_store(client, args, position, data.nbytes)
    await append(client.service, blob(args[1]), layer, count, blobs)
    client.service.notices.published(blob(args[1]) + SELECTED)
    return reply.OK


async def finalize_layer(client: Client, args: Sequence[Argument]) -> bytes:
    """ATTEND.FINALIZE sid layer."""
    wrong = f"{FINALIZE} layer_id is not an integer or out of range"
    try:
        layer = integer_within(args[2], 0, client.service.limits.layers - 1, wrong)
    except CommandError:
        raise CommandError("ERR", wrong) from None
    await finalize(client.service, blob(args[1]), layer)
    return reply.OK


async def query(client: Client, args: Sequence[Argument]) -> bytes | None:
    """ATTEND.QUERY sid layer k query."""
    layer, most = _place(client, args, QUERY, "k", MOST)
    sid, data = blob(args[1]), body(args[4])
    if data.nbytes != dims_of(client, sid)[0] * WORD:
        raise BAD_QUERY.again()
    service = client.service
    service.metrics.attend_queries[QUERY] += 1
    try:
        found = await best_values(service, sid, layer, np.frombuffer(data, np.dtype("<f4")), most)
    except UnknownSession:
        raise NOT_FOUND.again() from None
    if found is None:
        return reply.array_header(0)
    service.metrics.attend_hits += 1
    return await _send(client, found)


async def query_batch(client: Client, args: Sequence[Argument]) -> bytes | None:
    """ATTEND.QUERYBATCH H N D top_k Q K V."""
    heads, rows, dim, most = _batch_numbers(client, args)
    arrays = []
    for position in BATCH_BLOBS:
        data = body(args[position])
        _check_batch(client, args, position, data.nbytes)
        arrays.append(np.frombuffer(data, np.dtype("<f4")).reshape(heads, -1, dim))
    service = client.service
    service.metrics.attend_queries[QUERYBATCH] += 1
    q, k, v = arrays
    call = service.loop.run_in_executor(service.threads, attend_best, q[:, 0], k, v, min(most, rows))
    return await _send(client, await call)


def _batch_numbers(client: Client, args: Sequence[Argument]) -> list[int]:
    numbers = [integer(word) for word in args[1:5]]
    if min(numbers) < 1:
        raise CommandError("ERR", "invalid H/N/D/top_k (must be > 0)")
    limits = MAX_HEADS, client.service.limits.rows, MAX_HEAD_DIM
    for name, value, limit in zip("HND", numbers, limits, strict=False):
        if value > limit:
            raise CommandError("ERR", f"{QUERYBATCH}: {name} is {value} (limit {limit})")
    return numbers


def _check_batch(client: Client, args: Sequence[Argument], position: int, length: int) -> None:
    heads, rows, dim, _ = _batch_numbers(client, args)
    if length != heads * dim * WORD * (1 if position == BATCH_BLOBS[0] else rows):
        raise BAD_BATCH.again()


async def _send(client: Client, found: Floats) -> bytes | None:
    view = memoryview(np.ascontiguousarray(found, np.dtype("<f4"))).cast("B")
    client.service.receipt.totals.bytes += view.nbytes
    sent = bulk_or_send(client, (view,))
    return sent if isinstance(sent, bytes) else await sent


def info(client: Client, args: Sequence[Argument]) -> bytes:
    """ATTEND.INFO: the original's lines in its order, for the sessions that the user may read."""
    store, user = client.service.store, client.user
    metrics = Metrics() if user.tag else client.service.sums.all_metrics()
    ends = SELECTED + SIDES[0]
    found = [
        (view, store.session(view.sid.removesuffix(SIDES[0]) + SIDES[1]))
        for view in store.sessions(user.tag)
        if view.sid.endswith(ends) and user.lists(view.sid.removesuffix(ends))
    ]
    lines: dict[str, object] = {
        "sessions": len(found),
        "total_tokens": sum(sum(k.rows) for k, _ in found),
        "total_queries": metrics.attend_queries[QUERY],
        "query_hits": metrics.attend_hits,
        "enabled": True,
    }
    for k, v in found:
        lines |= _session_lines(user.shown(k.sid), k, v)
    return reply.bulk("".join(f"{name}:{value}\r\n" for name, value in lines.items()).encode())


def _session_lines(sid: bytes, k: SessionView, v: SessionView) -> dict[str, object]:
    name = sid.removesuffix(SELECTED + SIDES[0]).decode("utf-8", "backslashreplace")
    lines = {
        "name": "".join(char if char.isprintable() else "?" for char in name),
        "kquant": k.schema.layer(0).format,
        "vquant": v.schema.layer(0).format,
        "boundary": 0,
        "tokens": max(k.rows, default=0),
        "layers": k.num_layers if any(k.rows) else 0,
    }
    return {f"session[{k.slot}].{what}": value for what, value in lines.items()}


def drop(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """ATTEND.DROP sid [sid ...]: how many there were, here or in the tier."""
    return drop_names(client, [blob(name) + SELECTED for name in args[1:]])


def _open_store(position: int) -> Opener:
    def opened(client: Client, args: Sequence[Argument], length: int) -> Receiver:
        _check_store(client, args, position, length)
        return Spooled(client.service.spools, length)

    return opened


def _open_batch(position: int) -> Opener:
    def opened(client: Client, args: Sequence[Argument], length: int) -> Receiver:
        _check_batch(client, args, position, length)
        return Spooled(client.service.spools, length)

    return opened


HANDLERS: dict[str, Handler] = {
    CREATE: create,
    DROP: drop,
    FINALIZE: finalize_layer,
    INFO: info,
    QUERY: query,
    QUERYBATCH: query_batch,
    STORE: store,
}
OPENERS: dict[str, dict[int, Opener]] = {
    STORE: {position: _open_store(position) for position in STORE_BLOBS},
    QUERYBATCH: {position: _open_batch(position) for position in BATCH_BLOBS},
}

"""ATTEND.PREFIX.*: attention over rows that are stored, and rows stored for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pionkv.kernels.attention import (
    Attended,
    AttentionError,
    HeadMap,
    Query,
    Selector,
    Suffix,
    contiguous_map,
)
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError

from ..arguments import Argument, Cursor, blob, integer, shown
from ..attention.asking import (
    AUTO,
    AUTO_FUSED,
    FUSED,
    LOOKUP,
    QUERY,
    REFUSE,
    SPARSE,
    STORE,
    ByBlock,
    ByIndex,
    Target,
    check_heads,
    dense,
    engine_of,
    head_map_of,
    place_of,
    source_of,
    sparse,
)
from ..attention.sources import OWN, resolve
from ..attention.storing import store_layer
from ..clients import Client
from ..dispatch import Handler, Slow
from ..schemas import uniform
from ..sending import bulk_or_send
from .attend_forms import FORMS, Asked
from .prefix import drop_names

DROP = "ATTEND.PREFIX.DROP"
STORED_AS = "fp16"
HIT, COLD, MISS = reply.simple("HIT"), reply.simple("COLD"), reply.simple("MISS")
BAD_LAYER = CommandError("ERR", "invalid layer_id (must be >= 0)")
BAD_SELECTOR = CommandError("ERR", "selector_id must be 0 (block-mean) or 1 (Quest)")


async def store(client: Client, args: Sequence[Argument]) -> bytes:
    """ATTEND.PREFIX.STORE sid layer H N D K V [VQUANT format]."""
    service, form = client.service, FORMS[STORE]
    await engine_of(service, STORE)
    numbers = form.read_numbers(args, service.limits)
    dim = numbers["H"] * numbers["D"]
    if dim > service.limits.dim:
        raise CommandError("ERR", f"{STORE}: rows of {dim} elements (limit {service.limits.dim})")
    asked = form.read(args, service.limits)
    cursor = Cursor(args, form.first_option)
    given = cursor.left >= 2 and cursor.take_keyword("VQUANT")
    schema = uniform(STORE, "VQUANT", shown(cursor.take()) if given else STORED_AS, dim)
    cursor.end(STORE)
    sid, layer = blob(args[1]), _layer(args[2])
    await store_layer(service, sid, layer, schema, numbers["H"], asked.blobs["K"], asked.blobs["V"])
    service.metrics.rows_in[schema.layer(layer).format] += asked.blobs["K"].nbytes * 2
    service.notices.published(sid + OWN)
    if service.settings.attend_cold == REFUSE:
        await _warm_own(client, sid, layer, numbers["D"])
    return reply.OK


async def _warm_own(client: Client, sid: bytes, layer: int, head_dim: int) -> None:
    source = resolve(client.service.store, client.user, sid, layer)
    if source is not None:
        await client.service.attention.warm(place_of(source, head_dim))


def _layer(argument: Argument) -> int:
    layer = integer(argument)
    if layer < 0:
        raise BAD_LAYER.again()
    return layer


async def lookup(client: Client, args: Sequence[Argument]) -> bytes:
    """ATTEND.PREFIX.LOOKUP sid layer: HIT, COLD or MISS."""
    service = client.service
    await engine_of(service, LOOKUP)
    source = resolve(service.store, client.user, blob(args[1]), _layer(args[2]))
    if source is None:
        return MISS
    cold = service.settings.attend_cold == REFUSE and not service.attention.residents.has(
        source.namespace, source.layer, source.marks
    )
    return COLD if cold else HIT


def drop(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """ATTEND.PREFIX.DROP sid [sid ...]: how many STORE had stored, here or in the tier."""
    return drop_names(client, [blob(name) + OWN for name in args[1:]])


def _read(client: Client, args: Sequence[Argument], command: str) -> tuple[Asked, Target]:
    asked = FORMS[command].read(args, client.service.limits)
    return asked, Target(command, blob(args[1]), integer(args[2]), asked.numbers["D"])


def _window(cursor: Cursor) -> int:
    return integer(cursor.take()) if cursor else 0


async def query(client: Client, args: Sequence[Argument]) -> bytes | None:
    """ATTEND.PREFIX.QUERY sid layer H D top_k Q [fa_window] [LSE]."""
    service = client.service
    await engine_of(service, QUERY)
    asked, target = _read(client, args, QUERY)
    cursor = Cursor(args, FORMS[QUERY].first_option)
    wants = cursor.take_keyword("LSE")
    window = 0 if wants else _window(cursor)
    wants = wants or cursor.take_keyword("LSE")
    cursor.end(QUERY)
    q = asked.floats("Q", "H")
    source = await source_of(service, client.user, target)
    heads = head_map_of(target, source, asked.numbers["H"])
    found = await dense(service, target, source, Query(q, lse=wants or q.shape[1] > 1), heads, window)
    return await _answer(client, found)


async def query_fused(client: Client, args: Sequence[Argument]) -> bytes | None:
    """ATTEND.PREFIX.QUERY_FUSED sid layer H_q D S_suf H_kv Q K_suf V_suf head_map [fa_window]."""
    service = client.service
    await engine_of(service, FUSED)
    asked, target = _read(client, args, FUSED)
    cursor = Cursor(args, FORMS[FUSED].first_option)
    window = _window(cursor)
    cursor.end(FUSED)
    question = Query(asked.floats("Q", "H_q"), _suffix(asked))
    source = await source_of(service, client.user, target)
    check_heads(target, source, asked.numbers["H_kv"])
    found = await dense(service, target, source, question, _head_map(asked), window)
    return await _answer(client, found)


async def query_sparse(client: Client, args: Sequence[Argument]) -> bytes | None:
    """ATTEND.PREFIX.QUERY_SPARSE sid layer H D K_sparse_max Q indices counts [fa_window]."""
    service = client.service
    await engine_of(service, SPARSE)
    asked, target = _read(client, args, SPARSE)
    cursor = Cursor(args, FORMS[SPARSE].first_option)
    window = _window(cursor)
    cursor.end(SPARSE)
    heads = asked.numbers["H"]
    indices = np.frombuffer(asked.blobs["indices"], np.dtype("<i4")).reshape(heads, -1)
    choice = ByIndex(indices, np.frombuffer(asked.blobs["counts"], np.dtype("<u4")))
    source = await source_of(service, client.user, target)
    head_map = head_map_of(target, source, heads)
    question = Query(asked.floats("Q", "H"))
    return await _answer(client, await sparse(service, target, source, question, head_map, choice, window))


async def query_sparse_auto(client: Client, args: Sequence[Argument]) -> bytes | None:
    """ATTEND.PREFIX.QUERY_SPARSE_AUTO sid layer H_q D B K_top H_kv Q head_map [fa_window [selector_id]]."""
    return await _by_block(client, args, AUTO)


async def query_sparse_auto_fused(client: Client, args: Sequence[Argument]) -> bytes | None:
    """The same with S_suf after H_kv, and K_suf and V_suf after Q."""
    return await _by_block(client, args, AUTO_FUSED)


async def _by_block(client: Client, args: Sequence[Argument], command: str) -> bytes | None:
    service = client.service
    await engine_of(service, command)
    asked, target = _read(client, args, command)
    cursor = Cursor(args, FORMS[command].first_option)
    window = _window(cursor)
    selector = _selector(cursor)
    cursor.end(command)
    choice = ByBlock(asked.numbers["B"], asked.numbers["K_top"], selector)
    question = Query(asked.floats("Q", "H_q"), _suffix(asked) if command == AUTO_FUSED else None)
    source = await source_of(service, client.user, target)
    check_heads(target, source, asked.numbers["H_kv"])
    found = await sparse(service, target, source, question, _head_map(asked), choice, window)
    return await _answer(client, found)


def _selector(cursor: Cursor) -> Selector:
    try:
        return Selector(integer(cursor.take())) if cursor else Selector.BLOCK_MEAN
    except ValueError:
        raise BAD_SELECTOR.again() from None


def _suffix(asked: Asked) -> Suffix:
    return Suffix(asked.floats("K_suf", "H_kv"), asked.floats("V_suf", "H_kv"))


def _head_map(asked: Asked) -> HeadMap:
    """The head map; the usual one when none was given."""
    heads = asked.numbers["H_kv"]
    given = asked.head_map or contiguous_map(asked.numbers["H_q"], heads)
    if max(given) >= heads:
        raise AttentionError(f"the head map names head {max(given)} of {heads}")
    return given


async def _answer(client: Client, found: Attended) -> bytes | None:
    parts = [found.out] if found.lse is None else [found.out, found.lse]
    views = [memoryview(np.ascontiguousarray(part, np.dtype("<f4"))).cast("B") for part in parts]
    client.service.receipt.totals.bytes += sum(view.nbytes for view in views)
    sent = bulk_or_send(client, views)
    return sent if isinstance(sent, bytes) else await sent


HANDLERS: dict[str, Handler] = {
    AUTO: query_sparse_auto,
    AUTO_FUSED: query_sparse_auto_fused,
    DROP: drop,
    FUSED: query_fused,
    LOOKUP: lookup,
    QUERY: query,
    SPARSE: query_sparse,
    STORE: store,
}

"""V.FETCH and V.FETCHALL: rows go out."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import Rows

from ..arguments import Argument, Cursor, blob, integer, keyword, unknown_option
from ..clients import Client
from ..dispatch import Handler, Slow
from ..sending import Form, send_rows, small_reply
from .prefix import K_SUFFIX

FETCH, FETCHALL = "V.FETCH", "V.FETCHALL"

RANGE_USAGE = CommandError("ERR", "V.FETCH RANGE requires: session_id layer_id RANGE start end")
BATCH_USAGE = CommandError("ERR", "V.FETCH BATCH requires: session_id BATCH start end [num_layers]")
BAD_RANGE = CommandError("ERR", "invalid RANGE: end must exceed start (>=0)")
BAD_BATCH = CommandError("ERR", "V.FETCH BATCH invalid range: end must exceed start (>=0)")
NO_LAYERS = CommandError("ERR", "V.FETCH BATCH: session has no stored layers")
NO_IDS = CommandError("ERR", "no token IDs provided")
NATIVE_BY_ID = CommandError("ERR", "FMT NATIVE requires the RANGE or BATCH form")
BAD_FORM = "{command}: unknown FMT (want F32|F16|NATIVE|RAW)"


def fetch(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """V.FETCH sid layer id ..., sid layer RANGE start end, sid BATCH start end [num_layers]; all with FMT."""
    if keyword(args[2]) == "BATCH":
        return _batch(client, args)
    if keyword(args[3]) == "RANGE":
        return _range(client, args)
    return _by_id(client, args)


def _by_id(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    end, form = len(args), Form.F32
    if end >= 5 and keyword(args[-2]) == "FMT":
        end, form = end - 2, _form(FETCH, args[-1])
    if form is Form.NATIVE:
        raise NATIVE_BY_ID
    limit = client.service.limits.fetch_ids
    if not 0 < end - 3 <= limit:
        raise NO_IDS if end <= 3 else CommandError("ERR", f"V.FETCH: {end - 3} token ids (limit {limit})")
    layer, *ids = map(integer, args[2:end])
    return _reply(client, client.service.store.rows_by_id(blob(args[1]), layer, ids), form)


def _range(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    layer = integer(args[2])
    if len(args) < 6:
        raise RANGE_USAGE
    start, end = integer(args[4]), integer(args[5])
    if not 0 <= start < end:
        raise BAD_RANGE
    cursor = Cursor(args, 6)
    form = _take_form(FETCH, cursor)
    cursor.end(FETCH)
    sid = blob(args[1])
    rows = client.service.store.rows(sid, layer, start, end)
    if start == 0:
        credit_restore(client, sid, range(layer, layer + 1))
    return _reply(client, rows, form)


def _batch(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    if len(args) < 5:
        raise BATCH_USAGE
    sid, start, end = blob(args[1]), integer(args[3]), integer(args[4])
    if not 0 <= start < end:
        raise BAD_BATCH
    cursor = Cursor(args, 5)
    view = client.service.store.session(sid)
    layers = view.num_layers
    if cursor and keyword(args[5]) != "FMT":
        layers = _layer_count(client, cursor.take())
    form = _take_form(FETCH, cursor)
    cursor.end(FETCH)
    if view.num_layers == 0:
        raise NO_LAYERS
    found = client.service.store.rows_of_layers((sid,), range(layers), start, end)
    if start == 0:
        credit_restore(client, sid, range(layers))
    return _reply_array(client, found, form)


def _layer_count(client: Client, argument: Argument) -> int:
    layers, limit = integer(argument), client.service.limits.layers
    if not 0 < layers <= limit:
        raise CommandError("ERR", f"V.FETCH BATCH: num_layers must be 1-{limit}")
    return layers


def fetchall(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """V.FETCHALL k_sid v_sid start end [FMT form] [LAYERS first last]: k0 v0 k1 v1 ..., last not included."""
    sids = blob(args[1]), blob(args[2])
    start, end = integer(args[3]), integer(args[4])
    if not 0 <= start < end:
        raise CommandError("ERR", "V.FETCHALL invalid range: end must exceed start (>=0)")
    store, limit = client.service.store, client.service.limits.layers
    first, last = 0, max(store.session(sid).num_layers for sid in sids)
    form = Form.F32
    cursor = Cursor(args, 5)
    while cursor:
        if cursor.left >= 2 and cursor.take_keyword("FMT"):
            form = _form(FETCHALL, cursor.take())
        elif cursor.left >= 3 and cursor.take_keyword("LAYERS"):
            first, last = integer(cursor.take()), integer(cursor.take())
            if not 0 <= first < last <= limit:
                raise CommandError("ERR", f"V.FETCHALL: LAYERS must be within 0-{limit}, last above first")
        else:
            unknown_option(FETCHALL, cursor.take())
    found = store.rows_of_layers(sids, range(first, last), start, end)
    if start == 0:
        credit_restore(client, sids[0], range(first, last))
    return _reply_array(client, found, form)


def _form(command: str, argument: Argument) -> Form:
    try:
        return Form[keyword(argument)]
    except KeyError:
        raise CommandError("ERR", BAD_FORM.format(command=command)) from None


def _take_form(command: str, cursor: Cursor) -> Form:
    if cursor.left >= 2 and cursor.take_keyword("FMT"):
        return _form(command, cursor.take())
    return Form.F32


def credit_restore(client: Client, sid: bytes, layers: range) -> None:
    """Rows from 0 on of these layers are fetched: if that begins a K side, a prefix is being restored."""
    if not sid.endswith(K_SUFFIX):
        return
    service, namespace = client.service, sid.removesuffix(K_SUFFIX)
    rows = service.store.session(sid).rows
    first = next((layer for layer, count in enumerate(rows) if count), None)
    view = service.store.lookup(namespace)
    if first in layers and view is not None:
        service.receipt.credit(namespace, view.tokens, view.prefill_us)
        service.store.credit_hit(namespace)


def _reply(client: Client, rows: Rows | None, form: Form) -> bytes | Slow:
    return small_reply(client, rows, form) or _send(client, b"", [rows], form)


def _reply_array(client: Client, found: list[Rows | None], form: Form) -> Slow:
    return _send(client, reply.array_header(len(found)), found, form)


async def _send(client: Client, header: bytes, found: list[Rows | None], form: Form) -> None:
    with client.out.reply_in_parts():
        client.out.write(header)
        await send_rows(client, found, form)


HANDLERS: dict[str, Handler] = {FETCH: fetch, FETCHALL: fetchall}

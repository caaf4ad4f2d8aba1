"""V.FETCH and V.FETCHALL: rows go out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.protocol.limits import DEFAULT_LIMITS
from pionkv.storage import Rows

from ..arguments import OPTIONS_BYTES, OPTIONS_KEPT, Argument, Cursor, blob, integer, keyword, unknown_option
from ..clients import Client
from ..dispatch import Handler, Slow
from ..sending import FORMS, Form, reply_now, send_rows
from .prefix import K_SUFFIX

FETCH, FETCHALL = "V.FETCH", "V.FETCHALL"

RANGE_USAGE = CommandError("ERR", "V.FETCH RANGE requires: session_id layer_id RANGE start end")
BATCH_USAGE = CommandError("ERR", "V.FETCH BATCH requires: session_id BATCH start end [num_layers]")
BAD_RANGE = CommandError("ERR", "invalid RANGE: end must exceed start (>=0)")
BAD_BATCH = CommandError("ERR", "V.FETCH BATCH invalid range: end must exceed start (>=0)")
NO_LAYERS = CommandError("ERR", "V.FETCH BATCH: session has no stored layers")
NO_IDS = CommandError("ERR", "no token IDs provided")
NATIVE_BY_ID = CommandError("ERR", "FMT NATIVE requires the RANGE or BATCH form")
OPTIONS = ("FMT", "AT")
BAD_FORM = "{command}: unknown FMT (want F32|F16|NATIVE|RAW)"


@dataclass(frozen=True, slots=True)
class Options:
    """What may follow the rows of a V.FETCH or V.FETCHALL."""

    form: Form = Form.F32
    at: int | None = None
    layers: range | None = None
    txn: bytes | None = None


def fetch(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """V.FETCH sid layer id ..., sid layer RANGE start end, sid BATCH start end [num_layers]; with FMT, AT."""
    if keyword(args[2]) == "BATCH":
        return _batch(client, args)
    if keyword(args[3]) == "RANGE":
        return _range(client, args)
    return _by_id(client, args)


def _by_id(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    end = len(args)
    while end >= 5 and keyword(args[end - 2]) in OPTIONS:
        end -= 2
    options = _options(FETCH, args[end:])
    if options.form is Form.NATIVE:
        raise NATIVE_BY_ID.again()
    limit = client.service.limits.fetch_ids
    if not 0 < end - 3 <= limit:
        raise (
            NO_IDS.again()
            if end <= 3
            else CommandError("ERR", f"V.FETCH: {end - 3} token ids (limit {limit})")
        )
    layer, *ids = map(integer, args[2:end])
    rows = client.service.store.rows_by_id(blob(args[1]), layer, ids, options.at)
    return _reply(client, rows, options.form)


def _range(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    layer = integer(args[2])
    if len(args) < 6:
        raise RANGE_USAGE.again()
    start, end = integer(args[4]), integer(args[5])
    if not 0 <= start < end:
        raise BAD_RANGE.again()
    options = _options(FETCH, args[6:], txn=True)
    sid = blob(args[1])
    if options.txn is not None:
        transaction = client.preparations.live(options.txn).transaction
        return _reply(client, transaction.rows(sid, layer, start, end), options.form)
    rows = client.service.store.rows(sid, layer, start, end, options.at)
    if rows is not None and rows.first:
        credit_restore(client, sid)
    return _reply(client, rows, options.form)


def _batch(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    if len(args) < 5:
        raise BATCH_USAGE.again()
    sid, start, end = blob(args[1]), integer(args[3]), integer(args[4])
    if not 0 <= start < end:
        raise BAD_BATCH.again()
    layers, rest = None, args[5:]
    if rest and keyword(rest[0]) not in OPTIONS:
        layers, rest = _layer_count(client, rest[0]), rest[1:]
    options = _options(FETCH, rest)
    store = client.service.store
    held = store.session(sid, options.at).num_layers
    if held == 0:
        raise NO_LAYERS.again()
    asked = range(held if layers is None else layers)
    found = store.rows_of_layers((sid,), asked, start, end, at=options.at)
    if any(rows is not None and rows.first for rows in found):
        credit_restore(client, sid)
    return _reply_array(client, found, options.form)


def _layer_count(client: Client, argument: Argument) -> int:
    layers, limit = integer(argument), client.service.limits.layers
    if not 0 < layers <= limit:
        raise CommandError("ERR", f"V.FETCH BATCH: num_layers must be 1-{limit}")
    return layers


def fetchall(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """V.FETCHALL k_sid v_sid start end [FMT form] [LAYERS a b] [AT generation]: k0 v0 k1 v1 ..."""
    sids = blob(args[1]), blob(args[2])
    start, end = integer(args[3]), integer(args[4])
    if not 0 <= start < end:
        raise CommandError("ERR", "V.FETCHALL invalid range: end must exceed start (>=0)")
    options = _options(FETCHALL, args[5:], layers=True)
    store = client.service.store
    views = [store.session(sid, options.at) for sid in sids]
    layers = options.layers or range(max(view.num_layers for view in views))
    found = store.rows_of_layers(sids, layers, start, end, at=options.at)
    if any(rows is not None and rows.first for rows in found[:: len(sids)]):
        credit_restore(client, sids[0])
    return _reply_array(client, found, options.form)


def _options(command: str, words: Sequence[Argument], *, layers: bool = False, txn: bool = False) -> Options:
    """FMT, AT and, where they are allowed, LAYERS and TXN: all that is left."""
    said = tuple(map(blob, words))
    # What somebody sent as an id is not kept, however long it is.
    read = _read_options if sum(map(len, said)) <= OPTIONS_BYTES else _read_options.__wrapped__
    return read(command, said, layers, txn)


@lru_cache(OPTIONS_KEPT)
def _read_options(command: str, words: tuple[bytes, ...], layers: bool, txn: bool) -> Options:
    options, cursor = Options(), Cursor(words)
    while left := cursor.left:
        option = cursor.take()
        word = keyword(option)
        if left >= 2 and word == "FMT":
            options = replace(options, form=_form(command, cursor.take()))
        elif left >= 2 and word == "AT":
            options = replace(options, at=integer(cursor.take()))
        elif layers and left >= 3 and word == "LAYERS":
            options = replace(
                options, layers=layers_between(command, integer(cursor.take()), integer(cursor.take()))
            )
        elif txn and left >= 2 and word == "TXN":
            options = replace(options, txn=blob(cursor.take()))
        else:
            unknown_option(command, option)
    return options


def layers_between(command: str, first: int, last: int) -> range:
    """The layers that LAYERS names. Raises `CommandError`."""
    limit = DEFAULT_LIMITS.layers
    if not 0 <= first < last <= limit:
        raise CommandError("ERR", f"{command}: LAYERS must be within 0-{limit}, last above first")
    return range(first, last)


def _form(command: str, argument: Argument) -> Form:
    form = FORMS.get(keyword(argument))
    if form is None:
        raise CommandError("ERR", BAD_FORM.format(command=command))
    return form


def credit_restore(client: Client, sid: bytes) -> None:
    """The first rows of a session are fetched: if it is a K side, a prefix is being restored."""
    if not sid.endswith(K_SUFFIX):
        return
    service, namespace = client.service, sid.removesuffix(K_SUFFIX)
    view = service.store.lookup(namespace)
    if view is not None:
        service.receipt.credit(namespace, view.tokens, view.prefill_us)
        service.store.credit_hit(namespace)


def _reply(client: Client, rows: Rows | None, form: Form) -> bytes | Slow:
    if rows is None:
        return reply.null(client.protocol)
    now = reply_now(client, rows, form)
    return _send(client, b"", [rows], form) if now is None else now


def _reply_array(client: Client, found: list[Rows | None], form: Form) -> Slow:
    return _send(client, reply.array_header(len(found)), found, form)


async def _send(client: Client, header: bytes, found: list[Rows | None], form: Form) -> None:
    with client.out.reply_in_parts():
        client.out.write(header)
        await send_rows(client, found, form)


HANDLERS: dict[str, Handler] = {FETCH: fetch, FETCHALL: fetchall}

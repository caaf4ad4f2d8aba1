"""KV.PREFIX.BEGIN, PUBLISH, ABORT: a prefix that becomes visible as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import PrefixPlan, Receipt, Schema, TransactionDead

from ..arguments import Argument, Cursor, blob, integer_within
from ..clients import Client
from ..dispatch import Handler
from ..manifests import checked_manifest
from ..preparing import unknown
from .prefix import checked_name, model_digest, prefill_us, same_for_all, two_sides

BEGIN = "KV.PREFIX.BEGIN"
LEASE_MS = 60_000
"""How long a transaction may be left alone if its client does not say."""
TOKEN_BYTES = 4

NO_SCHEMA = CommandError("ERR", "KV.PREFIX.BEGIN requires: ns_key KV kv_dim vquant LAYERS n")
BAD_TOKENS = CommandError("ERR", "KV.PREFIX.BEGIN: TOKENS is not a list of u32")


@dataclass(slots=True)
class Options:
    """What a BEGIN says after the name."""

    schemas: tuple[Schema, Schema] | None = None
    layers: int | None = None
    parent: tuple[bytes, int] | None = None
    ids: bytes | None = None
    manifest: bytes | None = None
    prefill_us: int | None = None
    model: bytes = b""
    lease_ms: int = LEASE_MS


def begin(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.BEGIN ns KV dim format LAYERS n [options], or ns SCHEMA K n spec ... V n spec ... [...]."""
    namespace = checked_name(client, args[1])
    options, cursor = Options(), Cursor(args, 2)
    while cursor:
        _option(client, cursor, options)
    plan = _plan(namespace, options)
    return reply.bulk(client.preparations.begin(client.service, plan, options.lease_ms))


def _option(client: Client, cursor: Cursor, options: Options) -> None:
    limits = client.service.limits
    if cursor.left >= 3 and cursor.take_keyword("KV"):
        schemas = same_for_all(BEGIN, client, cursor)
        options.schemas = options.schemas or schemas
    elif cursor.left >= 2 and cursor.take_keyword("LAYERS"):
        message = f"{BEGIN}: LAYERS must be 0-{limits.layers}"
        options.layers = integer_within(cursor.take(), 0, limits.layers, message)
    elif cursor.left >= 2 and cursor.take_keyword("SCHEMA"):
        options.schemas = two_sides(BEGIN, client, cursor)
    elif cursor.left >= 3 and cursor.take_keyword("FROM"):
        parent = blob(cursor.take())
        message = f"{BEGIN}: FROM tokens out of range (0..{limits.rows})"
        options.parent = parent, integer_within(cursor.take(), 0, limits.rows, message)
    elif cursor.left >= 2 and cursor.take_keyword("TOKENS"):
        options.ids = _ids(cursor.take(), limits.block_hashes)
    elif cursor.left >= 2 and cursor.take_keyword("MANIFEST"):
        options.manifest = checked_manifest(BEGIN, blob(cursor.take()), limits)
    elif cursor.left >= 2 and cursor.take_keyword("PREFILL_MS"):
        options.prefill_us = prefill_us(client, cursor.take())
    elif cursor.left >= 2 and cursor.take_keyword("MODEL"):
        options.model = model_digest(cursor.take())
    elif cursor.left >= 2 and cursor.take_keyword("LEASE"):
        message = f"{BEGIN}: LEASE must be 1-{limits.lease_ms} ms"
        options.lease_ms = integer_within(cursor.take(), 1, limits.lease_ms, message)
    else:
        cursor.end(BEGIN)


def _ids(argument: Argument, limit: int) -> bytes:
    ids = blob(argument)
    if not ids or len(ids) % TOKEN_BYTES:
        raise BAD_TOKENS.again()
    if len(ids) > limit * TOKEN_BYTES:
        raise CommandError("ERR", f"{BEGIN}: {len(ids) // TOKEN_BYTES} tokens (limit {limit})")
    return ids


def _plan(namespace: bytes, options: Options) -> PrefixPlan:
    if options.schemas is None:
        raise NO_SCHEMA.again()
    listed = {schema.num_layers for schema in options.schemas} - {None}
    counts = listed | ({options.layers} if options.layers is not None else set())
    if not counts:
        raise NO_SCHEMA.again()
    if len(counts) > 1:
        shown = ", ".join(str(count) for count in sorted(count for count in counts if count is not None))
        raise CommandError("ERR", f"{BEGIN}: both sides need the same number of layers ({shown})")
    ids, layers = options.ids, counts.pop() or 0
    return PrefixPlan(
        namespace=namespace,
        schemas=options.schemas,
        layers=layers,
        only=None if layers else (),
        parent=options.parent,
        tokens=None if ids is None else len(ids) // TOKEN_BYTES,
        # The table that KV.PREFIX.BLOCKS answers: blocks of one token, whose hash is the token's id.
        blocks=None if ids is None else (1, np.frombuffer(ids, "<u4").astype("<u8").tobytes()),
        model=options.model,
        manifest=options.manifest,
        prefill_us=options.prefill_us,
    )


def publish(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.PUBLISH txn: the receipt; of a published transaction the same again, to anybody."""
    txn = blob(args[1])
    found = client.preparations.find(txn)
    if found is None:
        receipt = client.service.store.receipt(txn)
        if receipt is None or not client.user.lists(receipt.namespace):
            raise unknown()
        return receipt_reply(client, receipt)
    receipt = client.preparations.live(txn).publish()
    client.preparations.remove(txn)
    client.service.notices.published(receipt.namespace)
    return receipt_reply(client, receipt)


def receipt_reply(client: Client, receipt: Receipt) -> bytes:
    """Namespace, generation, tokens, digest in hex."""
    return b"".join(
        (
            reply.array_header(4),
            reply.bulk(client.user.shown(receipt.namespace)),
            reply.integer(receipt.generation),
            reply.integer(receipt.tokens),
            reply.bulk(b"%016x" % receipt.digest),
        )
    )


def abort(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.ABORT txn: it leaves no trace; a dead one is forgotten."""
    txn = blob(args[1])
    if client.preparations.find(txn) is None:
        receipt = client.service.store.receipt(txn)
        if receipt is not None and client.user.lists(receipt.namespace):
            raise TransactionDead("it was published")
        raise unknown()
    client.preparations.remove(txn)
    return reply.OK


HANDLERS: dict[str, Handler] = {
    "KV.PREFIX.ABORT": abort,
    BEGIN: begin,
    "KV.PREFIX.PUBLISH": publish,
}

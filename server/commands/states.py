"""SSM.PREFIX.STORE, FETCH, DROP: opaque states of recurrent layers, kept with their namespace."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import StateWrite, Store, Transaction, UnknownNamespace, fill_state

from ..arguments import Argument, Cursor, blob, integer_within, keyword, unknown_option
from ..clients import Client
from ..dispatch import Handler, Opener, Slow
from ..packing import StateReceiver
from ..preparing import named
from ..receiving import Receiver, Refused
from ..sending import bulk_or_send

STORE = "SSM.PREFIX.STORE"
BLOB = 3
"""Position of the blob among the arguments."""
MAX_LAYER = 0xFFFF_FFFF


def store(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """SSM.PREFIX.STORE ns layer blob [TXN id]."""
    txn = named(args, BLOB + 1)
    if txn is not None:
        preparation = client.preparations.live(txn)
        return preparation.run(STORE, lambda: _store_into(preparation.transaction, args))
    client.preparations.refuse_outside(STORE, client.preparations.of_namespace(blob(args[1])))
    return _store_into(client.service.store, args)


def _store_into(target: Store | Transaction, args: Sequence[Argument]) -> bytes:
    namespace, layer, values = blob(args[1]), _layer(args[2]), args[BLOB]
    if len(args) > BLOB + 1 and (len(args) != BLOB + 3 or keyword(args[BLOB + 1]) != "TXN"):
        unknown_option(STORE, args[BLOB + 1])
    if isinstance(target, Transaction) and target.plan.namespace != namespace:
        raise UnknownNamespace(namespace)
    if isinstance(values, Refused) and values.error is not None:
        raise values.error
    if isinstance(values, StateReceiver):
        values.commit()
        return reply.OK
    _check_length(blob(values))
    fill_state(_begin(target, namespace, layer, len(blob(values))), blob(values))
    return reply.OK


def _begin(target: Store | Transaction, namespace: bytes, layer: int, length: int) -> StateWrite:
    if isinstance(target, Store):
        return target.begin_state(namespace, layer, length)
    return target.begin_state(layer, length)


def _check_length(values: bytes) -> None:
    if not values:
        raise CommandError("ERR", f"{STORE}: the state is empty")


def open_blob(client: Client, args: Sequence[Argument], length: int) -> Receiver:
    """A large state arrives in its page's segments."""
    namespace, layer = blob(args[1]), _layer(args[2])
    preparation = client.preparations.of_namespace(namespace)
    target = client.service.store if preparation is None else preparation.transaction
    return StateReceiver(_begin(target, namespace, layer, length), length)


def _layer(argument: Argument) -> int:
    return integer_within(argument, 0, MAX_LAYER, f"invalid layer_id (want 0..{MAX_LAYER})")


def fetch(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """SSM.PREFIX.FETCH ns layer: the blob, or null."""
    view = client.service.store.state(blob(args[1]), _layer(args[2]))
    if view is None:
        return reply.null(client.protocol)
    client.service.receipt.totals.bytes += view.nbytes
    return bulk_or_send(client, (view,))


def drop(client: Client, args: Sequence[Argument]) -> bytes:
    """SSM.PREFIX.DROP ns [layer]."""
    cursor = Cursor(args, 2)
    layer = _layer(cursor.take()) if cursor else None
    cursor.end("SSM.PREFIX.DROP")
    client.service.store.drop_states(blob(args[1]), layer)
    return reply.OK


HANDLERS: dict[str, Handler] = {"SSM.PREFIX.DROP": drop, "SSM.PREFIX.FETCH": fetch, STORE: store}
OPENERS: dict[str, dict[int, Opener]] = {STORE: {BLOB: open_blob}}

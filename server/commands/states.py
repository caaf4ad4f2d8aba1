"""SSM.PREFIX.STORE, FETCH, DROP: opaque states of recurrent layers, kept with their namespace."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError

from ..arguments import Argument, Cursor, blob, integer_within
from ..clients import Client
from ..dispatch import Handler, Opener, Slow
from ..output import GATHER_BYTES
from ..packing import StateReceiver
from ..receiving import Receiver, Refused

STORE = "SSM.PREFIX.STORE"
BLOB = 3
"""Position of the blob among the arguments."""
MAX_LAYER = 0xFFFF_FFFF


def store(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """SSM.PREFIX.STORE ns layer blob."""
    values = args[BLOB]
    if isinstance(values, Refused) and values.error is not None:
        raise values.error
    if isinstance(values, StateReceiver):
        values.commit()
        return reply.OK
    _check_length(blob(values))
    client.service.store.put_state(blob(args[1]), _layer(args[2]), blob(values))
    return reply.OK


def _check_length(values: bytes) -> None:
    if not values:
        raise CommandError("ERR", f"{STORE}: the state is empty")


def open_blob(client: Client, args: Sequence[Argument], length: int) -> Receiver:
    """A large state arrives in its page's segments."""
    return StateReceiver(client.service.store.begin_state(blob(args[1]), _layer(args[2]), length), length)


def _layer(argument: Argument) -> int:
    return integer_within(argument, 0, MAX_LAYER, f"invalid layer_id (want 0..{MAX_LAYER})")


def fetch(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """SSM.PREFIX.FETCH ns layer: the blob, or null."""
    view = client.service.store.state(blob(args[1]), _layer(args[2]))
    if view is None:
        return reply.null(client.protocol)
    client.service.receipt.totals.bytes += view.nbytes
    return reply.bulk(view) if view.nbytes <= GATHER_BYTES else _send(client, view)


async def _send(client: Client, view: memoryview) -> None:
    with client.out.reply_in_parts():
        client.out.write(reply.bulk_header(view.nbytes))
        await client.out.send((view,))
        client.out.write(reply.CRLF)


def drop(client: Client, args: Sequence[Argument]) -> bytes:
    """SSM.PREFIX.DROP ns [layer]."""
    cursor = Cursor(args, 2)
    layer = _layer(cursor.take()) if cursor else None
    cursor.end("SSM.PREFIX.DROP")
    client.service.store.drop_states(blob(args[1]), layer)
    return reply.OK


HANDLERS: dict[str, Handler] = {"SSM.PREFIX.DROP": drop, "SSM.PREFIX.FETCH": fetch, STORE: store}
OPENERS: dict[str, dict[int, Opener]] = {STORE: {BLOB: open_blob}}

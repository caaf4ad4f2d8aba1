"""MULTI, EXEC, DISCARD, WATCH, UNWATCH."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError

from ..arguments import Argument, blob
from ..clients import Client
from ..dispatch import Handler, Slow
from ..transaction import execute, stamps

OK = reply.OK


def begin(client: Client, args: Sequence[Argument]) -> bytes:
    """MULTI."""
    if client.transaction.open:
        raise CommandError("ERR", "MULTI calls can not be nested")
    client.transaction.open = True
    return OK


def run(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """EXEC."""
    if not client.transaction.open:
        raise CommandError("ERR", "EXEC without MULTI")
    return execute(client)


def discard(client: Client, args: Sequence[Argument]) -> bytes:
    """DISCARD."""
    if not client.transaction.open:
        raise CommandError("ERR", "DISCARD without MULTI")
    client.transaction.close()
    return OK


def watch(client: Client, args: Sequence[Argument]) -> bytes:
    """WATCH key [key ...]; a key watched already keeps its first state."""
    if client.transaction.open:
        raise CommandError("ERR", "WATCH inside MULTI is not allowed")
    names = [blob(name) for name in args[1:]]
    now = client.service.store.keyspace.read(lambda keys: stamps(keys, names))
    client.transaction.watched = now | client.transaction.watched
    return OK


def unwatch(client: Client, args: Sequence[Argument]) -> bytes:
    """UNWATCH."""
    client.transaction.watched = {}
    return OK


HANDLERS: dict[str, Handler] = {
    "DISCARD": discard,
    "EXEC": run,
    "MULTI": begin,
    "UNWATCH": unwatch,
    "WATCH": watch,
}

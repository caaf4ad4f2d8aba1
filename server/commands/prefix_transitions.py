"""KV.PREFIX.TRUNCATE, FORK, VERIFY, PIN, UNPIN, EXPIRE, TTL, and V.REORDER."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import UnknownNamespace

from ..arguments import Argument, Cursor, blob, integer, integer_within, keyword
from ..clients import Client
from ..dispatch import Handler
from .prefix import K_SUFFIX, checked_name

TRUNCATE, FORK, EXPIRE, REORDER = "KV.PREFIX.TRUNCATE", "KV.PREFIX.FORK", "KV.PREFIX.EXPIRE", "V.REORDER"
NOT_THERE, NO_END = -2, -1
"""What TTL answers, as in Redis."""

BAD_ORDER = CommandError("ERR", "V.REORDER: the order is a list of places such as 1,0,2")


def truncate(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.TRUNCATE ns tokens: the generation of what is left."""
    namespace, tokens = blob(args[1]), _tokens(client, TRUNCATE, args[2])
    generation = client.service.store.truncate(namespace, tokens)
    client.service.notices.changed(namespace + K_SUFFIX)
    return reply.integer(generation)


def fork(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.FORK ns child [tokens]: the generation of the child."""
    child, cursor = checked_name(client, args[2]), Cursor(args, 3)
    tokens = _tokens(client, FORK, cursor.take()) if cursor else None
    cursor.end(FORK)
    generation = client.service.store.fork(blob(args[1]), child, tokens)
    client.service.notices.changed(child + K_SUFFIX)
    return reply.integer(generation)


def _tokens(client: Client, command: str, argument: Argument) -> int:
    high = client.service.limits.rows
    return integer_within(argument, 0, high, f"{command}: tokens out of range (0..{high})")


def reorder(client: Client, args: Sequence[Argument]) -> bytes:
    """V.REORDER sid ... order: session i holds afterwards what session order[i] held; the generation."""
    sids = [blob(sid) for sid in args[1:-1]]
    generation = client.service.store.reorder(sids, _places(args[-1]))
    for sid in sids:
        client.service.notices.changed(sid)
    return reply.integer(generation)


def _places(argument: Argument) -> list[int]:
    try:
        return [integer(place) for place in blob(argument).split(b",")]
    except CommandError:
        raise BAD_ORDER.again() from None


async def verify(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.VERIFY ns: the bytes checked."""
    checked = 0
    for step in client.service.store.verify(blob(args[1])):
        checked += step
        # Others have their turn between the steps.
        await asyncio.sleep(0)
    return reply.integer(checked)


def pin(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.PIN ns: how many pins keep it from eviction."""
    return reply.integer(client.service.store.pin(blob(args[1])))


def unpin(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.UNPIN ns: how many are left."""
    return reply.integer(client.service.store.unpin(blob(args[1])))


def expire(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.EXPIRE ns seconds, or ns PERSIST: 1, or 0 when there is no such prefix."""
    store, high = client.service.store, client.service.limits.ttl_seconds
    if keyword(args[2]) == "PERSIST":
        at = 0.0
    else:
        message = f"{EXPIRE}: seconds out of range (1..{high})"
        at = client.service.clock() + integer_within(args[2], 1, high, message)
    try:
        store.expire(blob(args[1]), at)
    except UnknownNamespace:
        return reply.integer(0)
    return reply.integer(1)


def ttl(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.TTL ns: seconds it has left; -1 when it does not end, -2 when it is not there."""
    try:
        left = client.service.store.ttl(blob(args[1]))
    except UnknownNamespace:
        return reply.integer(NOT_THERE)
    return reply.integer(NO_END if left is None else math.ceil(left))


HANDLERS: dict[str, Handler] = {
    EXPIRE: expire,
    FORK: fork,
    "KV.PREFIX.PIN": pin,
    "KV.PREFIX.TTL": ttl,
    TRUNCATE: truncate,
    "KV.PREFIX.UNPIN": unpin,
    "KV.PREFIX.VERIFY": verify,
    REORDER: reorder,
}

"""KV.PREFIX.BLOCKS, MEMBERSHIP, OWNER: what routers ask about a prefix."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import UnknownNamespace, UnknownSession

from ..arguments import Argument, blob, integer_within
from ..clients import Client
from ..dispatch import Handler
from .prefix import HASH_BYTES, K_SUFFIX, checked_name

UNKNOWN = reply.simple("UNKNOWN")
NOBODY = reply.simple("-1")
TABLE_HEADER = struct.Struct("<II")


def blocks(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.BLOCKS ns: block size, count and hashes."""
    found = _table(client, checked_name(client, args[1]))
    if found is None:
        return UNKNOWN
    size, hashes = found
    return reply.bulk(TABLE_HEADER.pack(size, len(hashes) // HASH_BYTES) + hashes)


def _table(client: Client, namespace: bytes) -> tuple[int, bytes] | None:
    try:
        found = client.service.store.blocks(namespace)
    except UnknownNamespace:
        return None
    client.service.store.touch(namespace + K_SUFFIX)
    return found if found is not None and found[1] else None


def membership(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.MEMBERSHIP ns count hashes: a bit for each, lowest first."""
    namespace = checked_name(client, args[1])
    high = client.service.limits.block_hashes
    count = integer_within(args[2], 0, high, f"hash_count out of range (0..{high})")
    asked = blob(args[3])
    if len(asked) != count * HASH_BYTES:
        raise CommandError("ERR", "hash_blob length mismatch")
    found = _table(client, namespace)
    if found is None:
        return UNKNOWN
    known = np.isin(np.frombuffer(asked, "<u8"), np.frombuffer(found[1], "<u8"))
    return reply.bulk(np.packbits(known, bitorder="little").tobytes())


def owner(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.OWNER ns: the worker that last changed it, and the schema's digest when layers differ."""
    store, namespace = client.service.store, blob(args[1])
    try:
        worker, schema = store.namespace(namespace).owner, store.session(namespace + K_SUFFIX).schema
    except (UnknownNamespace, UnknownSession):
        return NOBODY
    return reply.simple(str(worker) if schema.is_uniform else f"{worker} {schema.digest}")


HANDLERS: dict[str, Handler] = {
    "KV.PREFIX.BLOCKS": blocks,
    "KV.PREFIX.MEMBERSHIP": membership,
    "KV.PREFIX.OWNER": owner,
}

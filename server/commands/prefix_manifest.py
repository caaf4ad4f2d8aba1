"""KV.PREFIX.MANIFEST and ADMIT: what a prefix was made by, and who may use it."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply

from ..arguments import Argument, Cursor, blob
from ..clients import Client
from ..dispatch import Handler
from ..manifests import checked_manifest, read_manifest

MANIFEST, ADMIT = "KV.PREFIX.MANIFEST", "KV.PREFIX.ADMIT"


def manifest(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.MANIFEST ns [SET msgpack]: the manifest, or null."""
    cursor, store = Cursor(args, 2), client.service.store
    if cursor.left >= 2 and cursor.take_keyword("SET"):
        packed = checked_manifest(MANIFEST, blob(cursor.take()), client.service.limits)
        cursor.end(MANIFEST)
        store.set_manifest(blob(args[1]), packed)
        return reply.OK
    cursor.end(MANIFEST)
    found = store.manifest(blob(args[1]))
    return reply.null(client.protocol) if found is None else reply.bulk(found)


def admit(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.ADMIT ns msgpack: namespace, generation, tokens that may be reused."""
    asked = read_manifest(ADMIT, blob(args[2]))
    found = client.service.store.admit(blob(args[1]), asked)
    return reply.encode([client.user.shown(found.namespace), found.generation, found.tokens], client.protocol)


HANDLERS: dict[str, Handler] = {ADMIT: admit, MANIFEST: manifest}

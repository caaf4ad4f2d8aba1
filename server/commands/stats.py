"""PION.STATS: the receipt."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError

from ..arguments import Argument, Cursor
from ..clients import Client
from ..dispatch import Handler


def stats(client: Client, args: Sequence[Argument]) -> bytes:
    """PION.STATS [RESET]."""
    service = client.service
    cursor = Cursor(args, 1)
    if cursor:
        if not cursor.take_keyword("RESET") or cursor:
            raise CommandError("ERR", "syntax error")
        service.receipt.reset()
        return reply.OK
    return reply.encode(service.receipt.fields(service.uptime()), client.protocol)


HANDLERS: dict[str, Handler] = {"PION.STATS": stats}

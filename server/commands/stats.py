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
        service.sums.reset_receipts()
        return reply.OK
    totals = service.sums.all_receipts()
    return reply.encode(totals.fields(service.place.number, service.uptime()), client.protocol)


HANDLERS: dict[str, Handler] = {"PION.STATS": stats}

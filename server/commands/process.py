"""TIME, MONITOR, SHUTDOWN."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError

from ..arguments import Argument, Cursor
from ..clients import Client
from ..dispatch import Handler

MICROSECONDS = 1_000_000
SHUTDOWN_WORDS = ("SAVE", "NOSAVE", "NOW", "FORCE")
NOTHING = b""


def time(client: Client, args: Sequence[Argument]) -> bytes:
    """TIME: seconds and microseconds of the server's clock."""
    seconds, micros = divmod(int(client.service.clock() * MICROSECONDS), MICROSECONDS)
    return reply.encode([str(seconds).encode(), str(micros).encode()], client.protocol)


def shutdown(client: Client, args: Sequence[Argument]) -> bytes:
    """SHUTDOWN [SAVE|NOSAVE] [NOW] [FORCE]: a graceful stop; all is on disk anyway, whether SAVE or not."""
    cursor = Cursor(args, 1)
    while cursor:
        if not any(cursor.take_keyword(word) for word in SHUTDOWN_WORDS):
            raise CommandError("ERR", "syntax error")
    client.closing = True
    client.service.request_stop()
    return NOTHING


async def monitor(client: Client, args: Sequence[Argument]) -> bytes:
    """MONITOR."""
    await client.service.announce(client.service.monitors)
    client.service.monitors.add(client)
    return reply.OK


HANDLERS: dict[str, Handler] = {
    "MONITOR": monitor,
    "SHUTDOWN": shutdown,
    "TIME": time,
}

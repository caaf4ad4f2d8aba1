"""V.SNAPSHOT, V.RESTORE, V.COMMIT: going back to the lengths that layers had."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError

from ..arguments import Argument, blob, integer
from ..clients import Client
from ..dispatch import Handler


def snapshot(client: Client, args: Sequence[Argument]) -> bytes:
    """V.SNAPSHOT sid: the number of the snapshot."""
    return reply.integer(client.service.store.snapshot(blob(args[1])))


def restore(client: Client, args: Sequence[Argument]) -> bytes:
    """V.RESTORE sid snap_id: cut layers that have grown since."""
    client.service.store.restore(blob(args[1]), _number("V.RESTORE", args[2]))
    return reply.OK


def commit(client: Client, args: Sequence[Argument]) -> bytes:
    """V.COMMIT sid snap_id: forget the snapshot."""
    released = client.service.store.release_snapshot(blob(args[1]), _number("V.COMMIT", args[2]))
    return reply.integer(released)


def _number(command: str, argument: Argument) -> int:
    number = integer(argument)
    if number <= 0:
        raise CommandError("ERR", f"{command}: snap_id must be positive")
    return number


HANDLERS: dict[str, Handler] = {"V.COMMIT": commit, "V.RESTORE": restore, "V.SNAPSHOT": snapshot}

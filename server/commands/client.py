"""CLIENT and its subcommands."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError

from ..arguments import Argument, Cursor, blob, integer, keyword, shown
from ..clients import Client, Filters, ReplyMode
from ..dispatch import Handler, Slow
from ..questions import CLIENTS, KILL

NOTHING = b""
SYNTAX = CommandError("ERR", "syntax error")


def check_name(name: bytes) -> bytes:
    """A connection name: printable ASCII without spaces, as Redis wants it."""
    if any(not 0x21 <= byte <= 0x7E for byte in name):
        raise CommandError("ERR", "Client names cannot contain spaces, newlines or special characters.")
    return name


def set_name(client: Client, args: Sequence[Argument]) -> bytes:
    """CLIENT SETNAME name."""
    client.name = check_name(blob(args[2]))
    return reply.OK


def get_name(client: Client, args: Sequence[Argument]) -> bytes:
    """CLIENT GETNAME."""
    return reply.bulk(client.name) if client.name else reply.null(client.protocol)


def get_id(client: Client, args: Sequence[Argument]) -> bytes:
    """CLIENT ID."""
    return reply.integer(client.id)


def set_info(client: Client, args: Sequence[Argument]) -> bytes:
    """CLIENT SETINFO LIB-NAME|LIB-VER value."""
    field, value = keyword(args[2]), blob(args[3])
    if field not in ("LIB-NAME", "LIB-VER"):
        raise CommandError("ERR", f"Unrecognized option '{shown(args[2])}'")
    if any(not 0x21 <= byte <= 0x7E for byte in value):
        raise CommandError("ERR", f"{field.lower()} cannot contain spaces, newlines or special characters.")
    client.library[field.lower()] = value
    return reply.OK


def info(client: Client, args: Sequence[Argument]) -> bytes:
    """CLIENT INFO."""
    return reply.verbatim(client.describe() + "\n", client.protocol)


def list_clients(client: Client, args: Sequence[Argument]) -> Slow:
    """CLIENT LIST [TYPE normal] [ID id ...]."""
    wanted: set[int] | None = None
    cursor = Cursor(args, 2)
    while cursor:
        if cursor.left >= 2 and cursor.take_keyword("TYPE"):
            if keyword(kind := cursor.take()) != "NORMAL":
                raise CommandError("ERR", f"Unknown client type '{shown(kind)}'")
        elif cursor.left >= 2 and cursor.take_keyword("ID"):
            wanted = set()
            while cursor:
                wanted.add(integer(cursor.take()))
        else:
            raise SYNTAX.again()
    return _list(client, wanted)


async def _list(client: Client, wanted: set[int] | None) -> bytes:
    found = await client.service.asking.all(CLIENTS)
    lines = [line for each in found for number, line in each if wanted is None or number in wanted]
    return reply.verbatim("".join(line + "\n" for line in lines), client.protocol)


def kill(client: Client, args: Sequence[Argument]) -> Slow:
    """CLIENT KILL addr:port, or CLIENT KILL with filters: ID, ADDR, LADDR, USER, TYPE, SKIPME."""
    if len(args) == 3:
        return _kill_one(client, shown(args[2]))
    filters: list[tuple[str, int | str]] = []
    skip_me = True
    cursor = Cursor(args, 2)
    while cursor.left >= 2:
        name, value = keyword(cursor.take()), cursor.take()
        if name == "SKIPME":
            skip_me = _yes_or_no(value)
        elif name == "ID":
            filters.append((name, integer(value)))
        elif name in ("ADDR", "LADDR", "USER"):
            filters.append((name, shown(value)))
        elif name != "TYPE":
            raise SYNTAX.again()
        elif keyword(value) != "NORMAL":
            raise CommandError("ERR", f"Unknown client type '{shown(value)}'")
    if cursor:
        raise SYNTAX.again()
    return _kill_all(client, filters, skip_me=skip_me)


async def _kill_one(client: Client, address: str) -> bytes:
    if not await _kill(client, [("ADDR", address)], skip_me=False):
        raise CommandError("ERR", "No such client")
    return reply.OK


async def _kill_all(client: Client, filters: Filters, *, skip_me: bool) -> bytes:
    return reply.integer(await _kill(client, filters, skip_me=skip_me))


async def _kill(client: Client, filters: Filters, *, skip_me: bool) -> int:
    """End clients of every worker; who asks goes last, and is answered."""
    others = await client.service.asking.all(KILL, filters, client.id)
    me = not skip_me and client.is_meant(filters)
    client.closing |= me
    return int(sum(others)) + me


def _yes_or_no(value: Argument) -> bool:
    word = keyword(value)
    if word not in ("YES", "NO"):
        raise SYNTAX.again()
    return word == "YES"


def _switch(args: Sequence[Argument]) -> bool:
    word = keyword(args[2])
    if word not in ("ON", "OFF"):
        raise SYNTAX.again()
    return word == "ON"


def no_evict(client: Client, args: Sequence[Argument]) -> bytes:
    """CLIENT NO-EVICT on|off."""
    client.no_evict = _switch(args)
    return reply.OK


def no_touch(client: Client, args: Sequence[Argument]) -> bytes:
    """CLIENT NO-TOUCH on|off: whether this client's reads count as use."""
    client.no_touch = _switch(args)
    return reply.OK


def set_reply_mode(client: Client, args: Sequence[Argument]) -> bytes:
    """CLIENT REPLY ON|OFF|SKIP."""
    word = keyword(args[2])
    if word == "ON":
        client.set_reply_mode(ReplyMode.ON)
        return reply.OK
    if word not in ("OFF", "SKIP"):
        raise SYNTAX.again()
    if client.reply_mode is not ReplyMode.OFF:
        client.set_reply_mode(ReplyMode.OFF if word == "OFF" else ReplyMode.SKIP_NEXT)
    return NOTHING


HANDLERS: dict[str, Handler] = {
    "CLIENT|GETNAME": get_name,
    "CLIENT|ID": get_id,
    "CLIENT|INFO": info,
    "CLIENT|KILL": kill,
    "CLIENT|LIST": list_clients,
    "CLIENT|NO-EVICT": no_evict,
    "CLIENT|NO-TOUCH": no_touch,
    "CLIENT|REPLY": set_reply_mode,
    "CLIENT|SETINFO": set_info,
    "CLIENT|SETNAME": set_name,
}

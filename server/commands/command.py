"""COMMAND and its subcommands, all from the command table."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply, table
from pionkv.protocol.errors import CommandError

from ..arguments import Argument, Cursor, blob, keyword
from ..clients import Client
from ..dispatch import Handler


def _find(argument: Argument) -> table.CommandSpec | None:
    return table.COMMANDS.get(keyword(argument))


def list_all(client: Client, args: Sequence[Argument]) -> bytes:
    """COMMAND."""
    return reply.encode([table.command_entry(spec) for spec in table.top_level()], client.protocol)


def count(client: Client, args: Sequence[Argument]) -> bytes:
    """COMMAND COUNT."""
    return reply.integer(len(table.top_level()))


def info(client: Client, args: Sequence[Argument]) -> bytes:
    """COMMAND INFO [name ...]; null for a name that is no command."""
    if len(args) == 2:
        return list_all(client, args)
    specs = map(_find, args[2:])
    entries = [None if spec is None else table.command_entry(spec) for spec in specs]
    return b"".join(
        (
            reply.array_header(len(entries)),
            *(
                reply.null_array(client.protocol) if entry is None else reply.encode(entry, client.protocol)
                for entry in entries
            ),
        )
    )


def docs(client: Client, args: Sequence[Argument]) -> bytes:
    """COMMAND DOCS [name ...]; names that are no command are left out."""
    specs = [spec for spec in map(_find, args[2:]) if spec] if len(args) > 2 else table.top_level()
    found = {spec.name.lower().encode(): table.command_docs(spec) for spec in specs}
    return reply.encode(found, client.protocol)


def list_names(client: Client, args: Sequence[Argument]) -> bytes:
    """COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN glob]."""
    cursor = Cursor(args, 2)
    names = table.names()
    if cursor.left == 3 and cursor.take_keyword("FILTERBY"):
        kind, value = keyword(cursor.take()), blob(cursor.take()).decode("utf-8", "replace")
        if kind == "PATTERN":
            names = table.names(glob=value)
        elif kind == "ACLCAT":
            names = table.names(category=value)
        elif kind == "MODULE":
            names = []
        else:
            raise CommandError("ERR", "syntax error")
    elif cursor:
        raise CommandError("ERR", "syntax error")
    return reply.encode(names, client.protocol)


def get_keys(client: Client, args: Sequence[Argument]) -> bytes:
    """COMMAND GETKEYS name [arg ...]."""
    spec = _find(args[2])
    if spec is None:
        raise CommandError("ERR", "Invalid command specified")
    return reply.encode(table.keys_of(spec, [blob(argument) for argument in args[2:]]), client.protocol)


def help(client: Client, args: Sequence[Argument]) -> bytes:
    """HELP of any container."""
    return reply.encode(table.help_lines(table.COMMANDS[keyword(args[0])]), client.protocol)


HANDLERS: dict[str, Handler] = {
    "CLIENT|HELP": help,
    "COMMAND": list_all,
    "COMMAND|COUNT": count,
    "COMMAND|DOCS": docs,
    "COMMAND|GETKEYS": get_keys,
    "COMMAND|HELP": help,
    "COMMAND|INFO": info,
    "COMMAND|LIST": list_names,
}

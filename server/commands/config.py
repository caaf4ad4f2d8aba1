"""CONFIG: the settings in force, under our names and under the names that Redis tools ask for."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError

from ..acl.users import UsersError
from ..arguments import Argument, blob, pairs
from ..clients import Client
from ..config import SETTINGS, ConfigError, Settings
from ..dispatch import Handler
from ..questions import CAUGHT_UP
from ..rewriting import rewrite as rewrite_file
from .command import help

FIXED = {
    "databases": "1",
    "save": "",
    "appendonly": "no",
    "maxmemory-policy": "volatile-ttl",
}
"""What Redis tools read and what no setting of ours changes."""

NAMES = {name.replace("_", "-"): name for name in SETTINGS} | {
    item.metadata["redis"]: name for name, item in SETTINGS.items() if item.metadata["redis"]
}
"""CONFIG parameter -> setting."""


def parameters(settings: Settings) -> dict[str, str]:
    """Every CONFIG parameter and its value. A password is shown as `***`."""
    return FIXED | {parameter: settings.text_of(name) for parameter, name in NAMES.items()}


def get(client: Client, args: Sequence[Argument]) -> bytes:
    """CONFIG GET pattern [pattern ...]."""
    patterns = [blob(argument).decode("utf-8", "replace").lower() for argument in args[2:]]
    known = parameters(client.service.settings)
    found = {
        name.encode(): known[name].encode()
        for name in sorted(known)
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    return reply.encode(found, client.protocol)


async def set(client: Client, args: Sequence[Argument]) -> bytes:
    """CONFIG SET parameter value [parameter value ...]: all of them or none."""
    changes: dict[str, str] = {}
    for word, value in pairs(args, 2, "config|set"):
        parameter = blob(word).decode("utf-8", "replace").lower()
        name = NAMES.get(parameter)
        if name is None and parameter not in FIXED:
            text = f"Unknown option or number of arguments for CONFIG SET - '{parameter}'"
            raise CommandError("ERR", text)
        if name is None or not SETTINGS[name].metadata["live"]:
            raise _failed(parameter, "can't set immutable config")
        if name in changes:
            raise _failed(parameter, "duplicate parameter")
        text = blob(value).decode("utf-8", "replace")
        try:
            SETTINGS[name].metadata["parse"](text)
        except ValueError as error:
            raise _failed(parameter, str(error)) from error
        changes[name] = text
    try:
        client.service.configure(changes)
    except UsersError as error:
        raise CommandError("ERR", f"CONFIG SET failed: {error}") from error
    await client.service.asking.all(CAUGHT_UP)
    return reply.OK


def _failed(parameter: str, why: str) -> CommandError:
    return CommandError("ERR", f"CONFIG SET failed (possibly related to argument '{parameter}') - {why}")


async def reset_statistics(client: Client, args: Sequence[Argument]) -> bytes:
    """CONFIG RESETSTAT: what this process counts; the store's own counters go on."""
    client.service.reset_statistics()
    await client.service.asking.all(CAUGHT_UP)
    return reply.OK


def rewrite(client: Client, args: Sequence[Argument]) -> bytes:
    """CONFIG REWRITE: what CONFIG SET has changed is in the file that the next start reads."""
    try:
        rewrite_file(client.service.settings)
    except ConfigError as error:
        raise CommandError("ERR", str(error)) from error
    return reply.OK


HANDLERS: dict[str, Handler] = {
    "CONFIG|GET": get,
    "CONFIG|HELP": help,
    "CONFIG|REWRITE": rewrite,
    "CONFIG|RESETSTAT": reset_statistics,
    "CONFIG|SET": set,
}

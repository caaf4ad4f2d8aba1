"""The command table: single source of COMMAND, COMMAND DOCS, arity errors, key positions, the command page.

A family of commands is a module of specs, `commands_*.py`; here they are put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from types import MappingProxyType

from .commands_acl import ACL_COMMANDS
from .commands_attend import ATTEND_COMMANDS
from .commands_collections import HASH_COMMANDS, ZSET_COMMANDS
from .commands_keys import KEY_COMMANDS, TRANSACTION_COMMANDS
from .commands_kv import KV_COMMANDS
from .commands_pubsub import PUBSUB_COMMANDS
from .commands_redis import REDIS_COMMANDS
from .commands_reuse import REUSE_COMMANDS
from .commands_select import SELECT_COMMANDS
from .commands_state import STATE_COMMANDS
from .commands_strings import STRING_COMMANDS
from .commands_transitions import TRANSITION_COMMANDS
from .commands_upkeep import UPKEEP_COMMANDS
from .commands_watch import WATCH_COMMANDS
from .errors import CommandError
from .spec import CommandSpec, Parameter
from .values import Simple

__all__ = [
    "COMMANDS", "CommandSpec", "command_docs", "command_entry", "help_lines", "keys_of", "names",
    "subcommands", "top_level",
]  # fmt: skip

_FAMILIES = (
    REDIS_COMMANDS, ACL_COMMANDS, WATCH_COMMANDS, PUBSUB_COMMANDS, KV_COMMANDS,
    TRANSITION_COMMANDS, STATE_COMMANDS,
    REUSE_COMMANDS, UPKEEP_COMMANDS, ATTEND_COMMANDS, SELECT_COMMANDS,
    STRING_COMMANDS, HASH_COMMANDS, ZSET_COMMANDS, KEY_COMMANDS, TRANSACTION_COMMANDS,
)  # fmt: skip

COMMANDS: Mapping[str, CommandSpec] = MappingProxyType(
    {spec.name: spec for spec in sorted(chain(*_FAMILIES), key=lambda spec: spec.name)}
)
"""Every command by its upper-case name, subcommands as `CONTAINER|NAME`."""


def top_level() -> list[CommandSpec]:
    """The commands that are no subcommands: what COMMAND lists and COMMAND COUNT counts."""
    return [spec for spec in COMMANDS.values() if "|" not in spec.name]


def subcommands(container: CommandSpec) -> list[CommandSpec]:
    """The subcommands of a command."""
    return [spec for name, spec in COMMANDS.items() if name.startswith(f"{container.name}|")]


def names(*, glob: str | None = None, category: str | None = None) -> list[str]:
    """Lower-case names of the top-level commands, all or those that match (COMMAND LIST and its FILTERBY).

    Args:
        glob: A pattern for the name; subcommands are searched, too, as in Redis.
        category: An ACL category without the @.
    """
    found = top_level() if glob is None and category is None else list(COMMANDS.values())
    return [
        spec.name.lower()
        for spec in found
        if (glob is None or fnmatchcase(spec.name.lower(), glob.lower()))
        and (category is None or category.lower() in spec.categories)
    ]


def command_entry(spec: CommandSpec) -> list[object]:
    """One element of COMMAND and COMMAND INFO, ready for `reply.encode`. Ten fields, as Redis 7."""
    return [
        spec.name.lower().encode(),
        spec.arity,
        _members(spec.flags),
        spec.first_key,
        spec.last_key,
        spec.step,
        _members(f"@{category}" for category in spec.categories),
        [],
        [_key_spec(spec)] if spec.first_key else [],
        [command_entry(sub) for sub in subcommands(spec)] if spec.container else [],
    ]


def command_docs(spec: CommandSpec) -> dict[bytes, object]:
    """The value of one command in COMMAND DOCS, ready for `reply.encode`. The keys that Redis 7 has."""
    docs: dict[bytes, object] = {
        b"summary": spec.summary.encode(),
        b"since": spec.since.encode(),
        b"group": spec.group.encode(),
        b"complexity": spec.complexity.encode(),
    }
    if spec.parameters:
        docs[b"arguments"] = [_parameter_docs(parameter) for parameter in spec.parameters]
    if spec.container:
        docs[b"subcommands"] = {sub.name.lower().encode(): command_docs(sub) for sub in subcommands(spec)}
    return docs


def help_lines(container: CommandSpec) -> list[object]:
    """The reply to `<CONTAINER> HELP`, ready for `reply.encode`."""
    lines = [f"{container.name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    if container.works_alone:
        lines += ["(no subcommand)", f"    {container.summary}"]
    for sub in subcommands(container):
        lines += [sub.syntax.removeprefix(f"{container.name} "), f"    {sub.summary}"]
    return [Simple(line) for line in lines]


def keys_of(spec: CommandSpec, args: Sequence[bytes]) -> list[bytes]:
    """The arguments that name sessions, namespaces or keys (COMMAND GETKEYS).

    Args:
        spec: The command.
        args: The whole command line, the name first.

    Raises:
        CommandError: The number of arguments cannot be right, or the command names none.
    """
    if not spec.first_key:
        raise CommandError("ERR", "The command has no key arguments")
    if not spec.accepts(len(args)):
        raise CommandError("ERR", "Invalid number of arguments specified for command")
    last = spec.last_key if spec.last_key >= 0 else len(args) + spec.last_key
    return list(args[spec.first_key : last + 1 : spec.step])


def _members(items: Iterable[str]) -> frozenset[Simple]:
    return frozenset(map(Simple, items))


def _key_spec(spec: CommandSpec) -> dict[bytes, object]:
    last = spec.last_key - spec.first_key if spec.last_key >= 0 else spec.last_key
    return {
        b"flags": _members(["RO", "access"] if "readonly" in spec.flags else ["RW", "update"]),
        b"begin_search": {b"type": b"index", b"spec": {b"index": spec.first_key}},
        b"find_keys": {
            b"type": b"range",
            b"spec": {b"lastkey": last, b"keystep": spec.step, b"limit": 0},
        },
    }


def _parameter_docs(parameter: Parameter) -> dict[bytes, object]:
    docs: dict[bytes, object] = {b"name": parameter.name.encode(), b"type": parameter.kind.encode()}
    if parameter.kind == "key":
        docs[b"key_spec_index"] = 0
    if parameter.token:
        docs[b"token"] = parameter.token.encode()
    flags = [name for name in ("optional", "multiple") if getattr(parameter, name)]
    if flags:
        docs[b"flags"] = [Simple(name) for name in flags]
    if parameter.parts:
        docs[b"arguments"] = [_parameter_docs(part) for part in parameter.parts]
    return docs

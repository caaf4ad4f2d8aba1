"""Whether a user may run a command on these names, and where they are stored. The only place that decides.

What a rule's pattern is compared with:

    KV.PREFIX.*, SSM.PREFIX.*   the namespace
    V.*                         the namespace of a session `<ns>_pk` or `<ns>_pv`, else the session
    other commands              the plain key
    PUBLISH, SUBSCRIBE          the channel; for PSUBSCRIBE the pattern, letter by letter

A tenant's names and channels are stored behind its tag (`enter`), which nobody else's names begin with.
Listings leave out what the user may not read (`User.lists`) and tell the others as the user says them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import cast

from pionkv.protocol.errors import CommandError
from pionkv.protocol.spec import CommandSpec, Parameter
from pionkv.protocol.table import COMMANDS

from ..arguments import Argument, keyword
from ..notices import namespace_of
from ..receiving import Receiver
from .selector import Selector
from .user import User

NO_KEY = CommandError("NOPERM", "No permissions to access a key")
NO_CHANNEL = CommandError("NOPERM", "No permissions to access a channel")
WHOLE_STORE = frozenset({"FLUSHALL", "FLUSHDB", "KV.PREFIX.SAVE"})
"""Commands on everything that is stored, whatever its name."""
TOTALS = frozenset({"LATENCY|HISTOGRAM", "MEMORY|DOCTOR", "MEMORY|STATS", "PION.STATS"})
"""Commands that tell what all tenants together have or do."""
TOTALS_WITHOUT_NAME = frozenset({"V.LEDGER"})
SEND, LISTEN_BY_PATTERN = "PUBLISH", "PSUBSCRIBE"
CHECKED = frozenset({SEND, "SUBSCRIBE", LISTEN_BY_PATTERN})
CHANNELS = {
    SEND: slice(1, 2),
    "PUBSUB|NUMSUB": slice(2, None),
    **dict.fromkeys(("SUBSCRIBE", LISTEN_BY_PATTERN, "UNSUBSCRIBE", "PUNSUBSCRIBE"), slice(1, None)),
}
"""Where a command line has channels."""


class Refused(Exception):
    """A user may not do this.

    Attributes:
        reason: `command`, `key` or `channel`.
        object: Which one.
        error: The reply.
    """

    def __init__(self, reason: str, object: bytes, error: CommandError) -> None:
        super().__init__(reason, object)
        self.reason, self.object, self.error = reason, object, error


def check(user: User, spec: CommandSpec, args: Sequence[Argument], *, entered: bool = False) -> None:
    """Whether a user may run a command line, as far as it has arrived.

    Args:
        user: Who.
        spec: The command.
        args: The command line.
        entered: Its names are as they are stored already.

    Raises:
        Refused: It may not.
    """
    if "no_auth" in spec.flags:
        return
    if not user.may_run(spec.name):
        command = spec.name.lower()
        text = f"User {user.name} has no permissions to run the '{command}' command"
        raise Refused("command", command.encode(), CommandError("NOPERM", text))
    if not user.is_operator and _is_about_everything(user, spec, args):
        raise Refused("key", b"*", NO_KEY)
    tag = user.tag if entered else b""
    refusals = [found for part in user.all_rules if (found := _refusal(part, spec, args, tag)) is not None]
    if len(refusals) == len(user.all_rules):
        raise next((one for one in refusals if one.reason != "command"), refusals[0])


def _is_about_everything(user: User, spec: CommandSpec, args: Sequence[Argument]) -> bool:
    if spec.name in WHOLE_STORE or (spec.name == "PION.STATS" and len(args) > 1):
        return True
    totals = spec.name in TOTALS or (spec.name in TOTALS_WITHOUT_NAME and len(args) == 1)
    return totals and bool(user.tenant)


def _refusal(part: Selector, spec: CommandSpec, args: Sequence[Argument], tag: bytes) -> Refused | None:
    """What one set of rules has against a command line."""
    if spec.name not in part.allowed:
        return Refused("command", spec.name.lower().encode(), NO_KEY)
    write = "readonly" not in spec.flags
    for index in _names(spec, args):
        name = _own(args[index], tag)
        if spec.name.startswith("V.") and name is not None:
            name = namespace_of(name) or name
        if name is None or not part.sees(name, write=write):
            return Refused("key", name or b"", NO_KEY)
    for index in _sources(spec, args):
        name = _own(args[index], tag)
        if name is None or not part.sees(name):
            return Refused("key", name or b"", NO_KEY)
    for index in _channels(spec, args) if spec.name in CHECKED else ():
        name = _own(args[index], tag)
        if name is None or not part.hears(name, pattern=spec.name == LISTEN_BY_PATTERN):
            return Refused("channel", name or b"", NO_CHANNEL)
    return None


def let_in(user: User, spec: CommandSpec, lines: Sequence[Sequence[Argument]]) -> bool:
    """Whether a user may run all of these lines of a command; their names are then as they are stored."""
    try:
        for args in lines:
            check(user, spec, args)
    except Refused:
        return False
    for args in lines:
        enter(user, spec, args)
    return True


def enter(user: User, spec: CommandSpec, args: Sequence[Argument]) -> None:
    """Replace the names of a command line, a list, by those under which a tenant's are stored."""
    if not user.tag:
        return
    for index in {*_names(spec, args), *_sources(spec, args), *_channels(spec, args)}:
        argument = args[index]
        if not isinstance(argument, Receiver):
            cast("list[Argument]", args)[index] = user.tag + bytes(argument)


def names(spec: CommandSpec, args: Sequence[Argument]) -> list[bytes]:
    """The names of a command line, each once, as patterns are compared with them."""
    found = (args[index] for index in (*_names(spec, args), *_sources(spec, args)))
    known = [bytes(argument) for argument in found if not isinstance(argument, Receiver)]
    if spec.name.startswith("V."):
        known = [namespace_of(name) or name for name in known]
    return list(dict.fromkeys(known))


def _own(argument: Argument, tag: bytes) -> bytes | None:
    """A name as the user says it; None for one that cannot be the user's."""
    if isinstance(argument, Receiver):
        return None
    name = bytes(argument)
    return name[len(tag) :] if name.startswith(tag) else None


def _names(spec: CommandSpec, args: Sequence[Argument]) -> Iterator[int]:
    """Where a command line has names."""
    if spec.first_key:
        last = spec.last_key if spec.last_key >= 0 else len(args) + spec.last_key
        yield from range(spec.first_key, min(last + 1, len(args)), spec.step)


def _sources(spec: CommandSpec, args: Sequence[Argument]) -> Iterator[int]:
    """Where names stand behind a word such as FROM: they are read, whatever the command does."""
    tokens = _tokens(spec.name)
    for index in range(spec.last_key + 2, len(args)) if tokens else ():
        if keyword(args[index - 1]) in tokens:
            yield index


def _channels(spec: CommandSpec, args: Sequence[Argument]) -> Iterator[int]:
    """Where a command line has channels."""
    if spec.name in CHANNELS:
        yield from range(len(args))[CHANNELS[spec.name]]


@cache
def _tokens(command: str) -> frozenset[str]:
    """Words after which another name may stand, such as FROM."""
    return frozenset(
        parameter.token
        for parameter in _all(COMMANDS[command].parameters)
        if parameter.token and "key" in (parameter.kind, parameter.parts[0].kind if parameter.parts else "")
    )


def _all(parameters: Sequence[Parameter]) -> Iterator[Parameter]:
    for parameter in parameters:
        yield parameter
        yield from _all(parameter.parts)

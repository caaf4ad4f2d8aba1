"""Whether a user may run a command on these names. The only place where this is decided.

What a rule's pattern is compared with:

    KV.PREFIX.*, SSM.PREFIX.*   the namespace
    V.*                         the namespace of a session `<ns>_pk` or `<ns>_pv`, else the session
    other commands              the plain key
    PUBLISH, SUBSCRIBE          the channel; for PSUBSCRIBE the pattern, letter by letter

Listings leave out what the user may not read (`User.sees`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from pionkv.protocol.errors import CommandError
from pionkv.protocol.spec import CommandSpec, Parameter
from pionkv.protocol.table import COMMANDS

from ..arguments import Argument, keyword
from ..notices import namespace_of
from ..receiving import Receiver
from .user import User

NO_KEY = CommandError("NOPERM", "No permissions to access a key")
NO_CHANNEL = CommandError("NOPERM", "No permissions to access a channel")
WHOLE_STORE = frozenset({"FLUSHALL", "FLUSHDB", "KV.PREFIX.SAVE"})
"""Commands on everything that is stored, whatever its name."""
SEND, LISTEN, LISTEN_BY_PATTERN = "PUBLISH", "SUBSCRIBE", "PSUBSCRIBE"


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


def check(user: User, spec: CommandSpec, args: Sequence[Argument]) -> None:
    """Whether a user may run a command line, as far as it has arrived.

    Raises:
        Refused: It may not.
    """
    if "no_auth" in spec.flags:
        return
    if spec.name not in user.allowed:
        command = spec.name.lower()
        text = f"User {user.name} has no permissions to run the '{command}' command"
        raise Refused("command", command.encode(), CommandError("NOPERM", text))
    if spec.name in WHOLE_STORE and not user.sees_everything:
        raise Refused("key", b"*", NO_KEY)
    write = "readonly" not in spec.flags
    for name in names(spec, args):
        if not user.sees(name, write=write):
            raise Refused("key", name, NO_KEY)
    for name in sources(spec, args):
        if not user.sees(name):
            raise Refused("key", name, NO_KEY)
    _check_channels(user, spec, args)


def allows(user: User, spec: CommandSpec, args: Sequence[Argument]) -> bool:
    """Whether a user may run a command line."""
    try:
        check(user, spec, args)
    except Refused:
        return False
    return True


def names(spec: CommandSpec, args: Sequence[Argument]) -> Iterator[bytes]:
    """The names that a command line uses, as patterns are compared with them."""
    if not spec.first_key:
        return
    last = spec.last_key if spec.last_key >= 0 else len(args) + spec.last_key
    for argument in args[spec.first_key : last + 1 : spec.step]:
        if isinstance(argument, Receiver):
            raise Refused("key", b"", NO_KEY)
        name = bytes(argument)
        yield (namespace_of(name) or name) if spec.name.startswith("V.") else name


def sources(spec: CommandSpec, args: Sequence[Argument]) -> Iterator[bytes]:
    """The names behind a word of their own, such as FROM: they are read, whatever the command does."""
    tokens = _tokens(spec.name)
    for word, argument in zip(args[1:], args[2:], strict=False) if tokens else ():
        if keyword(word) in tokens:
            yield b"" if isinstance(argument, Receiver) else bytes(argument)


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


def _check_channels(user: User, spec: CommandSpec, args: Sequence[Argument]) -> None:
    if spec.name not in (SEND, LISTEN, LISTEN_BY_PATTERN):
        return
    for argument in args[1:2] if spec.name == SEND else args[1:]:
        name = b"" if isinstance(argument, Receiver) else bytes(argument)
        if not user.hears(name, pattern=spec.name == LISTEN_BY_PATTERN):
            raise Refused("channel", name, NO_CHANNEL)

"""ACL and its subcommands."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.protocol.table import COMMANDS

from ..acl import permit
from ..acl.categories import CATEGORIES
from ..acl.log import KEPT, Refusal
from ..acl.selector import RuleError, Selector
from ..acl.user import DEFAULT, User
from ..acl.users import UsersError
from ..arguments import Argument, blob, integer, keyword, shown
from ..clients import Client
from ..dispatch import Handler
from ..questions import CAUGHT_UP, FORGET_REFUSALS, REFUSALS
from .command import help

PASSWORD_BITS, MOST_BITS, BITS_A_DIGIT = 256, 4096, 4
SHOWN_OF_LOG = 10
BAD_NAME = CommandError("ERR", "Usernames can't contain spaces or null characters")
NOT_DEFAULT = CommandError("ERR", "The 'default' user cannot be removed")
BAD_BITS = CommandError(
    "ERR",
    "ACL GENPASS argument must be the number of bits for the output password, "
    f"a positive number up to {MOST_BITS}",
)


def text_of(argument: Argument) -> str:
    """An argument as text from which the same bytes can be made again."""
    return blob(argument).decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """The reverse."""
    return text.encode("utf-8", "surrogateescape")


def whoami(client: Client, args: Sequence[Argument]) -> bytes:
    """ACL WHOAMI."""
    return reply.bulk(bytes_of(client.user.name))


def users(client: Client, args: Sequence[Argument]) -> bytes:
    """ACL USERS."""
    return reply.encode([bytes_of(user.name) for user in client.service.users], client.protocol)


def list_users(client: Client, args: Sequence[Argument]) -> bytes:
    """ACL LIST."""
    return reply.encode([bytes_of(user.full_line()) for user in client.service.users], client.protocol)


def cat(client: Client, args: Sequence[Argument]) -> bytes:
    """ACL CAT [category]."""
    if len(args) > 3:
        raise CommandError("ERR", "wrong number of arguments for 'acl|cat' command")
    if len(args) == 2:
        return reply.encode(list(CATEGORIES), client.protocol)
    commands = CATEGORIES.get(text_of(args[2]).lower())
    if commands is None:
        raise CommandError("ERR", f"Unknown category '{shown(args[2])}'")
    return reply.encode(sorted(name.lower() for name in commands), client.protocol)


def get_user(client: Client, args: Sequence[Argument]) -> bytes:
    """ACL GETUSER name."""
    user = client.service.users.get(text_of(args[2]))
    if user is None:
        return reply.null(client.protocol)
    fields: dict[bytes, object] = {
        b"flags": user.flags,
        b"passwords": user.hashes,
        **_permissions(user),
        b"selectors": [_permissions(selector) for selector in user.selectors],
    }
    service = client.service
    if user.tenant:
        stored, most = service.tenants()[user.tenant]
        fields |= {b"tenant": user.tenant, b"bytes": stored, b"max-bytes": most}
    if user.max_connections:
        fields |= {b"connections": service.connections_of(user), b"max-connections": user.max_connections}
    return reply.encode(fields, client.protocol)


def _permissions(selector: Selector) -> dict[bytes, object]:
    return {
        b"commands": selector.commands_text,
        b"keys": bytes_of(selector.keys_text),
        b"channels": bytes_of(selector.channels_text),
    }


async def set_user(client: Client, args: Sequence[Argument]) -> bytes:
    """ACL SETUSER name [rule ...]."""
    name = text_of(args[2])
    if not name or any(char.isspace() or char == "\0" for char in name):
        raise BAD_NAME.again()
    rules = [text_of(rule) for rule in args[3:]]
    if any(char.isspace() or char == "\0" for rule in rules if rule[:1] in "~%&" for char in rule):
        raise CommandError("ERR", "a pattern of names cannot contain spaces")
    try:
        client.service.users.change(name, rules)
    except (RuleError, UsersError) as error:
        raise CommandError("ERR", str(error)) from error
    await client.service.asking.all(CAUGHT_UP)
    return reply.OK


async def delete_user(client: Client, args: Sequence[Argument]) -> bytes:
    """ACL DELUSER name [name ...]."""
    names = [text_of(name) for name in args[2:]]
    if DEFAULT in names:
        raise NOT_DEFAULT.again()
    try:
        gone = client.service.users.remove(names)
    except UsersError as error:
        raise CommandError("ERR", str(error)) from error
    await client.service.asking.all(CAUGHT_UP)
    return reply.integer(gone)


def generate_password(client: Client, args: Sequence[Argument]) -> bytes:
    """ACL GENPASS [bits]."""
    if len(args) > 3:
        raise CommandError("ERR", "wrong number of arguments for 'acl|genpass' command")
    try:
        bits = integer(args[2]) if len(args) == 3 else PASSWORD_BITS
    except CommandError:
        raise BAD_BITS.again() from None
    if not 1 <= bits <= MOST_BITS:
        raise BAD_BITS.again()
    digits = -(-bits // BITS_A_DIGIT)
    return reply.bulk(secrets.token_hex(-(-digits // 2))[:digits].encode())


def dry_run(client: Client, args: Sequence[Argument]) -> bytes:
    """ACL DRYRUN name command [arg ...]."""
    user = client.service.users.get(text_of(args[2]))
    if user is None:
        raise CommandError("ERR", f"User '{shown(args[2])}' not found")
    line = args[3:]
    names = [keyword(line[0])]
    if len(line) > 1:
        names.insert(0, f"{names[0]}|{keyword(line[1])}")
    spec = next((COMMANDS[name] for name in names if name in COMMANDS), None)
    if spec is None:
        raise CommandError("ERR", f"Command '{shown(line[0])}' not found")
    if not spec.accepts(len(line)):
        raise spec.arity_error()
    try:
        permit.check(user, spec, line)
    except permit.Refused as refused:
        return reply.bulk(_refusal(user, refused))
    return reply.OK


def _refusal(user: User, refused: permit.Refused) -> bytes:
    object = refused.object.decode("utf-8", "replace")
    if refused.reason == "command":
        return f"User {user.name} has no permissions to run the '{object}' command".encode()
    return f"User {user.name} has no permissions to access the '{object}' {refused.reason}".encode()


async def log(client: Client, args: Sequence[Argument]) -> bytes:
    """ACL LOG [count|RESET]."""
    service = client.service
    if len(args) > 3:
        raise CommandError("ERR", "wrong number of arguments for 'acl|log' command")
    if len(args) == 3 and keyword(args[2]) == "RESET":
        await service.asking.all(FORGET_REFUSALS)
        return reply.OK
    count = max(0, integer(args[2])) if len(args) == 3 else SHOWN_OF_LOG
    now = service.clock()
    kept = [Refusal(*one) for answer in await service.asking.all(REFUSALS) for one in answer]
    newest = sorted(kept, key=lambda one: (one.created, one.id), reverse=True)[: min(count, KEPT)]
    return reply.encode([one.fields(now) for one in newest], client.protocol)


HANDLERS: dict[str, Handler] = {
    "ACL|CAT": cat,
    "ACL|DELUSER": delete_user,
    "ACL|DRYRUN": dry_run,
    "ACL|GENPASS": generate_password,
    "ACL|GETUSER": get_user,
    "ACL|HELP": help,
    "ACL|LIST": list_users,
    "ACL|LOG": log,
    "ACL|SETUSER": set_user,
    "ACL|USERS": users,
    "ACL|WHOAMI": whoami,
}

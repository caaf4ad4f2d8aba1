"""HELLO, AUTH, PING, ECHO, SELECT, READONLY, READWRITE, RESET, QUIT."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError

from ..acl.user import DEFAULT
from ..admission import too_many
from ..arguments import Argument, Cursor, blob, integer, shown
from ..clients import Client
from ..dispatch import Handler, Several
from ..pubsub import push
from ..service import REDIS_VERSION
from .client import check_name

PONG = reply.simple("PONG")
WRONG_PASSWORD = CommandError("WRONGPASS", "invalid username-password pair or user is disabled.")
HELLO_NOAUTH = CommandError(
    "NOAUTH",
    "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> "
    "<pass> option can be used to authenticate the client and select the RESP protocol version at the same "
    "time",
)


def ping(client: Client, args: Sequence[Argument]) -> bytes:
    """PING [message]."""
    if client.listens_to and client.protocol == 2:
        return push(client, b"pong", blob(args[1]) if len(args) > 1 else b"")
    if len(args) == 1:
        return PONG
    if len(args) == 2:
        return reply.bulk(blob(args[1]))
    raise CommandError("ERR", "wrong number of arguments for 'ping' command")


def pings(client: Client, lines: Sequence[list[bytes]], longest: int) -> bytes | None:
    """PING, several times, without a message, of a client that does not listen."""
    return PONG * len(lines) if longest == 1 else None


def echo(client: Client, args: Sequence[Argument]) -> bytes:
    """ECHO message."""
    return reply.bulk(blob(args[1]))


def auth(client: Client, args: Sequence[Argument]) -> bytes:
    """AUTH [username] password."""
    if len(args) > 3:
        raise CommandError("ERR", "syntax error")
    if len(args) == 2 and client.service.users.default.open:
        raise CommandError(
            "ERR",
            "AUTH <password> called without any password configured for the default user. "
            "Are you sure your configuration is correct?",
        )
    user, password = (DEFAULT.encode(), args[1]) if len(args) == 2 else (blob(args[1]), args[2])
    _authenticate(client, user, blob(password))
    return reply.OK


def _authenticate(client: Client, user: bytes, given: bytes) -> None:
    found = client.service.users.login(user.decode("utf-8", "surrogateescape"), given)
    if found is None:
        client.service.note_refusal(client, "auth", b"AUTH", "toplevel", user=shown(user))
        raise WRONG_PASSWORD.again()
    before = client.user, client.authenticated
    client.user, client.authenticated = found, True
    if (refusal := too_many(client)) is not None:
        client.user, client.authenticated = before
        client.service.sums.flush()
        client.service.note_refusal(client, "auth", b"AUTH", "toplevel", user=found.name)
        raise refusal
    client.service.connections[client.id].set_authenticated(True)


def hello(client: Client, args: Sequence[Argument]) -> bytes:
    """HELLO [2|3 [AUTH user password] [SETNAME name]]."""
    cursor = Cursor(args, 1)
    protocol = _protocol_version(cursor.take()) if cursor else client.protocol
    name: bytes | None = None
    while cursor:
        if cursor.left >= 3 and cursor.take_keyword("AUTH"):
            _authenticate(client, blob(cursor.take()), blob(cursor.take()))
        elif cursor.left >= 2 and cursor.take_keyword("SETNAME"):
            name = check_name(blob(cursor.take()))
        else:
            raise CommandError("ERR", f"Syntax error in HELLO option '{shown(cursor.take())}'")
    if not client.authenticated:
        raise HELLO_NOAUTH.again()
    client.protocol = protocol
    client.name = client.name if name is None else name
    return reply.encode(_greeting(client), protocol)


def _greeting(client: Client) -> dict[bytes, object]:
    return {
        b"server": b"redis",
        b"version": REDIS_VERSION.encode(),
        b"proto": client.protocol,
        b"id": client.id,
        b"mode": b"standalone",
        b"role": b"master",
        b"modules": [],
    }


def _protocol_version(argument: Argument) -> int:
    try:
        wanted = integer(argument)
    except CommandError:
        raise CommandError("ERR", "Protocol version is not an integer or out of range") from None
    if wanted not in (2, 3):
        raise CommandError("NOPROTO", "unsupported protocol version")
    return wanted


def select(client: Client, args: Sequence[Argument]) -> bytes:
    """SELECT 0: there is one database."""
    if integer(args[1]) != 0:
        raise CommandError("ERR", "DB index is out of range")
    return reply.OK


def no_cluster(client: Client, args: Sequence[Argument]) -> bytes:
    """READONLY, READWRITE: `valkey-cli` asks, and goes on if it is told just this."""
    raise CommandError("ERR", "This instance has cluster support disabled")


def reset(client: Client, args: Sequence[Argument]) -> bytes:
    """RESET: the connection as it was when it was new."""
    client.reset()
    let_in = client.user.needs_no_password and too_many(client) is None
    client.service.connections[client.id].set_authenticated(let_in)
    return reply.simple("RESET")


def quit(client: Client, args: Sequence[Argument]) -> bytes:
    """QUIT: answer and close."""
    client.closing = True
    return reply.OK


HANDLERS: dict[str, Handler] = {
    "AUTH": auth,
    "ECHO": echo,
    "HELLO": hello,
    "PING": ping,
    "QUIT": quit,
    "READONLY": no_cluster,
    "READWRITE": no_cluster,
    "RESET": reset,
    "SELECT": select,
}
SEVERAL: dict[str, Several] = {"PING": pings}

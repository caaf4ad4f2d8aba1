"""Which connections are served, what a command has to pass before it is run, and who is shown that it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pionkv.protocol.errors import CommandError

from .acl import permit
from .arguments import Argument

if TYPE_CHECKING:
    from .clients import Client
    from .dispatch import Entry

NOT_AUTHENTICATED = CommandError("NOAUTH", "Authentication required.")
FULL = CommandError("ERR", "max number of clients reached")
PROTECTED = CommandError(
    "DENIED",
    "pionkv is in protected mode: the default user needs no password, so only clients of this machine are "
    "served, over 127.0.0.1, ::1 or the Unix socket. To serve others give it a password: --password, "
    "PIONKV_PASSWORD, or from this machine CONFIG SET requirepass. If everybody who can reach the port may "
    "do everything: --protected-mode no, or from this machine CONFIG SET protected-mode no.",
)
WHILE_LISTENING = frozenset(
    {"PING", "PSUBSCRIBE", "PUNSUBSCRIBE", "QUIT", "RESET", "SUBSCRIBE", "UNSUBSCRIBE"}
)
ONLY_LISTENING = "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
"""In RESP2 a message looks like a reply: who listens can run nothing whose reply could be taken for one."""


def turned_away(client: Client) -> CommandError | None:
    """Why a new connection is not served; None: it is."""
    service = client.service
    if not client.loopback and service.settings.protected_mode == "yes" and service.users.default.open:
        return PROTECTED
    if service.clients() > service.settings.max_clients:
        return FULL
    return too_many(client) if client.authenticated else None


def too_many(client: Client) -> CommandError | None:
    """Why the client's user may not have this connection as well; None: it may."""
    user = client.user
    if not user.max_connections or (count := client.service.connections_of(user)) <= user.max_connections:
        return None
    text = f"user {user.name} would have {count} connections (max-connections {user.max_connections})"
    return CommandError("ERR", text)


def admit(client: Client, entry: Entry, args: Sequence[Argument]) -> None:
    """Let a command pass; its names become those under which a tenant's are stored.

    Raises:
        CommandError: It may not be run by this client now.
    """
    if entry.needs_auth and not client.authenticated:
        raise NOT_AUTHENTICATED.again()
    if client.user.restricted:
        check_permission(client, entry, args)
    if client.protocol == 2 and client.listens_to and entry.spec.name not in WHILE_LISTENING:
        raise CommandError("ERR", f"Can't execute '{entry.spec.name.lower()}': {ONLY_LISTENING}")
    if client.service.monitors:
        client.service.monitors.show(client, entry, args)
    permit.enter(client.user, entry.spec, args)


def check_permission(
    client: Client, entry: Entry, args: Sequence[Argument], *, entered: bool = False
) -> None:
    """Whether the client's user may run a command line, as far as it has arrived; a refusal is noted.

    Args:
        client: Who.
        entry: The command.
        args: The command line.
        entered: Its names are as they are stored already.

    Raises:
        CommandError: It may not.
    """
    try:
        permit.check(client.user, entry.spec, args, entered=entered)
    except permit.Refused as refused:
        context = "multi" if client.transaction.open else "toplevel"
        client.service.note_refusal(client, refused.reason, refused.object, context)
        raise refused.error.again() from None

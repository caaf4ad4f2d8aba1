"""What the server knows about each connected client."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeAlias

from pionkv.storage import EVERYTHING, Listing

from .acl.user import User
from .metrics import TCP, UNIX
from .output import Output
from .packing import Input
from .preparing import Preparations
from .transaction import Transaction

if TYPE_CHECKING:
    import asyncio

    from .service import Service


UNCOUNTED = ("qbuf", "qbuf-free", "argv-mem", "obl", "oll", "omem", "tot-mem")
"""Memory of one connection, not counted here. Older releases of redis-py fail where a name is missing."""


UNIX_SEND_BYTES = 1 << 20
"""What the system may hold of what a peer on a Unix socket has not read yet."""
UNPACED = b"reno"
"""Congestion control, for peers on this machine, that sends as fast as its window lets it."""

Filters: TypeAlias = Sequence[tuple[str, int | str]]
"""Names of facts about a client, and what they are to be."""


class ReplyMode(Enum):
    """CLIENT REPLY: which commands are answered."""

    ON = "on"
    OFF = "off"
    SKIP_NEXT = "skip next"
    SKIPPING = "skipping"


@dataclass(slots=True, eq=False)
class Client:
    """One connection as the commands see it."""

    id: int
    service: Service
    out: Output
    connected_at: float
    user: User
    address: str = ""
    local_address: str = ""
    same_machine: bool = False
    loopback: bool = False
    """It came by the loopback interface or the Unix socket."""
    protocol: int = 2
    authenticated: bool = True
    name: bytes = b""
    library: dict[str, bytes] = field(default_factory=dict)
    reply_mode: ReplyMode = ReplyMode.ON
    last_command: str = "NULL"
    last_active: float = 0.0
    no_evict: bool = False
    no_touch: bool = False
    closing: bool = False
    """Set by a command that ends the connection; it is closed when its reply has been sent."""
    ended: bool = False
    """Its connection is no more."""
    commands: int = 0
    transaction: Transaction = field(default_factory=Transaction)
    preparations: Preparations = field(default_factory=Preparations)
    claims: set[bytes] = field(default_factory=set)
    """Prefixes that it computes now."""
    channels: dict[bytes, None] = field(default_factory=dict)
    patterns: dict[bytes, None] = field(default_factory=dict)
    """What it listens to, in the order in which it began to; kept by `Channels`."""
    two_byte_input: Input = Input.F16
    """What two-byte elements of this client were last: the best guess before it has declared the next."""

    @property
    def claimant(self) -> bytes:
        """Its name among the clients of all servers on the data directory, ever."""
        return f"{self.service.place.run_id}:{self.id}".encode()

    @property
    def listing(self) -> Listing:
        """What listings show this client, and under which names."""
        user = self.user
        return Listing(user.tag, user.lists) if user.restricted else EVERYTHING

    @property
    def listens_to(self) -> int:
        """How many channels and patterns it listens to."""
        return len(self.channels) + len(self.patterns)

    def describe(self) -> str:
        """One line of CLIENT LIST."""
        fields = {
            "id": self.id,
            "addr": self.address,
            "laddr": self.local_address,
            "name": self.name.decode(),
            "age": int(self.service.clock() - self.connected_at),
            "idle": int(self.service.clock() - self.last_active),
            "flags": "P" if self.listens_to else "N",
            "db": 0,
            "sub": len(self.channels),
            "psub": len(self.patterns),
            "multi": len(self.transaction.queue) if self.transaction.open else -1,
            **dict.fromkeys(UNCOUNTED, 0),
            "tot-cmds": self.commands,
            "cmd": self.last_command.lower(),
            "user": self.user.name,
            "resp": self.protocol,
            "lib-name": self.library.get("lib-name", b"").decode(),
            "lib-ver": self.library.get("lib-ver", b"").decode(),
        }
        return " ".join(f"{name}={value}" for name, value in fields.items())

    def is_meant(self, filters: Filters) -> bool:
        """Whether all of these filters of CLIENT KILL fit it."""
        facts = {"ID": self.id, "ADDR": self.address, "LADDR": self.local_address, "USER": self.user.name}
        return all(facts[name] == value for name, value in filters)

    def after_command(self) -> None:
        """Move CLIENT REPLY SKIP along: the command after it is not answered, the one after that is."""
        if self.reply_mode is ReplyMode.SKIP_NEXT:
            self.reply_mode, self.out.muted = ReplyMode.SKIPPING, True
        elif self.reply_mode is ReplyMode.SKIPPING:
            self.set_reply_mode(ReplyMode.ON)

    def set_reply_mode(self, mode: ReplyMode) -> None:
        """CLIENT REPLY."""
        self.reply_mode = mode
        self.out.muted = mode is ReplyMode.OFF

    def reset(self) -> None:
        """Back to the state of a new connection (RESET)."""
        self.protocol = 2
        self.name = b""
        self.user = self.service.users.default
        self.set_reply_mode(ReplyMode.ON)
        self.no_evict = self.no_touch = False
        self.end()
        self.service.channels.forget(self)
        self.service.monitors.forget(self)

    def end(self, *, for_good: bool = False) -> None:
        """Let go of what only lives as long as the connection, which may go on after that."""
        self.ended = for_good
        self.transaction.close()
        self.preparations.close()
        while self.claims:
            self.service.release_claim(self.claims.pop(), self.claimant)


def lane_of(transport: asyncio.BaseTransport) -> str:
    """How bytes of a connection travel."""
    return TCP if isinstance(transport.get_extra_info("sockname"), tuple) else UNIX


def tune(transport: asyncio.BaseTransport, *, same_machine: bool) -> None:
    """Set up a connection's socket for the way by which its bytes travel. What is refused is left as it is.

    A Unix socket takes more bytes at a time: unlike TCP's, its buffer never grows by itself, and with the
    system's own a peer that is not reading just now stops the server after a fifth of a MB. Less than is
    asked for is granted where the system allows no more.

    TCP within a machine has no path on which to lose or queue anything. A system whose congestion control
    paces (BBR) would still set a timer between any two parts of a reply.
    """
    connection = transport.get_extra_info("socket")
    with suppress(OSError):
        if lane_of(transport) == UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BYTES)
        elif same_machine and hasattr(socket, "TCP_CONGESTION"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)


def read_addresses(client: Client, transport: asyncio.BaseTransport) -> None:
    """Note where the peer is, and whether it runs on this machine."""
    peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if isinstance(peer, tuple) and isinstance(local, tuple):
        client.address, client.local_address = _address(peer), _address(local)
        client.loopback = ip_address(peer[0]).is_loopback
        client.same_machine = client.loopback or peer[0] == local[0]
    else:
        client.address = client.local_address = f"{local or ''}:0"
        client.same_machine = client.loopback = True


def _address(pair: tuple[Any, ...]) -> str:
    host, port = pair[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

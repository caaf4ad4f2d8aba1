"""One node of the tier: connections on which commands go out, and replies come in where they stay.

A large value is received by the system into memory of its own, without a copy. A connection carries one
exchange at a time; an exchange that is given up, by a deadline or otherwise, ends its connection, so that no
reply is taken for another's.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
from pionkv.protocol.errors import CommandError, ProtocolError
from pionkv.protocol.events import NEED_DATA, Body, Reply, ReplyBulkStart
from pionkv.protocol.parser_replies import ReplyParser
from pionkv.protocol.request import Word, encode_command

Command: TypeAlias = Sequence[Word]
PORT = 6379
IDLE = 16
"""Connections to a node that are kept for later."""
SECURE = ("rediss", "rediss+cluster")
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password")
_OPTIONS = frozenset({*_FILES, "ssl_cert_reqs", "ssl_check_hostname", "username", "password", "db"})
_NO = ("0", "f", "false", "n", "no")


class WireLost(OSError):
    """The connection ended before the reply, or what came is no reply."""


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Login:
    """How connections begin.

    Attributes:
        greeting: Commands that every connection sends first.
        tls: Secures it.
    """

    greeting: tuple[Command, ...]
    tls: ssl.SSLContext | None


def parse(url: str) -> tuple[list[Address], Login]:
    """The nodes that an address names, and how to log in.

    Raises:
        ValueError: The address makes no sense, or names options that nobody knows.
        OSError: A certificate cannot be read.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(set(options) - _OPTIONS):
        raise ValueError(f"unknown options in the tier's address: {', '.join(unknown)}")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    user = unquote(user) or options.get("username", "")
    password = unquote(password) or options.get("password", "")
    greeting: list[Command] = []
    if password:
        greeting.append(("AUTH", user, password) if user else ("AUTH", password))
    if (db := parts.path.strip("/") or options.get("db", "0")) != "0":
        greeting.append(("SELECT", db))
    tls = _context(options) if parts.scheme in SECURE else None
    return [_address(host) for host in hosts.split(",")], Login(tuple(greeting), tls)


def _address(text: str) -> Address:
    found = urlsplit(f"//{text}")
    return Address(found.hostname or "localhost", found.port or PORT)


def _context(options: dict[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path")
    )
    if (certificate := options.get("ssl_certfile")) is not None:
        context.load_cert_chain(certificate, options.get("ssl_keyfile"), options.get("ssl_password", ""))
    verify = options.get("ssl_cert_reqs", "required").lower()
    if verify not in _VERIFY:
        raise ValueError(f"ssl_cert_reqs is {verify}, want one of {', '.join(_VERIFY)}")
    checked = options.get("ssl_check_hostname", "yes").lower() not in _NO
    context.check_hostname = checked and verify != "none"
    context.verify_mode = _VERIFY[verify]
    return context


class Wire(asyncio.BufferedProtocol):
    """One connection, with one exchange at a time."""

    def __init__(self) -> None:
        """Made by `open`."""
        self._parser = ReplyParser()
        self._transport: asyncio.Transport | None = None
        self._replies: list[object] = []
        self._wanted = 0
        self._done: asyncio.Future[None] | None = None
        self._value: memoryview | None = None
        """The large value that is being received as a reply of its own."""
        self._end: WireLost | None = None
        """Why the connection ended, if that was not our doing."""

    @classmethod
    async def open(cls, address: Address, login: Login) -> Wire:
        """Connect and log in.

        Raises:
            OSError: The node cannot be reached.
            CommandError: It refuses the login.
        """
        wire = await _connect(address, login.tls)
        try:
            for reply in await wire.ask(login.greeting) if login.greeting else ():
                if isinstance(reply, CommandError):
                    raise reply
        except BaseException:
            wire.close()
            raise
        return wire

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._transport is None

    def close(self) -> None:
        """End the connection at once; more than once does nothing."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    async def ask(self, commands: Sequence[Command]) -> list[object]:
        """The replies to some commands, refusals as `CommandError` among them; large values are views.

        Raises:
            WireLost: The connection ended.
        """
        transport = self._transport
        if transport is None:
            raise self._end or WireLost("the connection has ended")
        self._replies, self._wanted = [], len(commands)
        done = self._done = asyncio.get_running_loop().create_future()
        try:
            transport.writelines([piece for command in commands for piece in encode_command(command)])
            await done
        except BaseException:
            self.close()
            raise
        finally:
            self._done = None
        return self._replies

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: the value that is being received, or the parser's own buffer."""
        return self._parser.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come."""
        try:
            self._parser.received(nbytes)
            while (event := self._parser.next_event()) is not NEED_DATA:
                if isinstance(event, Reply):
                    self._take(event.value)
                elif isinstance(event, ReplyBulkStart):
                    self._place(event)
        except ProtocolError as error:
            self._lost(WireLost(f"no reply of RESP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._lost(WireLost(str(exc) if exc is not None else "the node closed the connection"))

    def _place(self, event: ReplyBulkStart) -> None:
        if event.path:
            self._parser.collect()
        else:
            # Not filled with zeros first, and its pages are used again.
            self._value = np.empty(event.length, np.uint8).data
            self._parser.direct(self._value)

    def _take(self, value: object) -> None:
        if isinstance(value, Body):
            value, self._value = self._value, None
        if self._done is None:
            # A node in protected mode does so, and closes; a later exchange must not have it.
            self._lost(WireLost(f"the node said, unasked: {value!s:.200}"))
            return
        self._replies.append(value)
        if len(self._replies) == self._wanted and not self._done.done():
            self._done.set_result(None)

    def _lost(self, error: WireLost) -> None:
        self._end = self._end or error
        self.close()
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


async def _connect(address: Address, tls: ssl.SSLContext | None) -> Wire:
    """Connect to the first of the host's addresses that answers. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    name = address.host if tls is not None else None
    lost = OSError(f"{address.host} has no address")
    # uvloop's `create_connection` would leave a name that is not found, after it was cancelled, to the log.
    for *_, place in await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        zone = f"%{place[3]}" if len(place) > 3 and place[3] else ""
        try:
            _, wire = await loop.create_connection(
                Wire, f"{place[0]}{zone}", address.port, ssl=tls, server_hostname=name
            )
        except OSError as error:
            lost = error
        else:
            return wire
    raise lost


class Node:
    """One server of the tier.

    Args:
        address: Where it listens.
        login: How connections begin.
    """

    def __init__(self, address: Address, login: Login) -> None:
        self.address = address
        self._login = login
        self._idle: list[Wire] = []

    async def ask(self, commands: Sequence[Command]) -> list[object]:
        """The replies to some commands.

        Raises:
            OSError: The node cannot be reached, or ended the connection.
            CommandError: It refuses the login.
        """
        kept = self._kept()
        if kept is not None:
            try:
                return self._keep(kept, await kept.ask(commands))
            except WireLost:
                # Kept while the node was away: that tells nothing of the node as it is now.
                pass
        wire = await Wire.open(self.address, self._login)
        return self._keep(wire, await wire.ask(commands))

    def close(self) -> None:
        """End all connections that nobody uses."""
        for wire in self._idle:
            wire.close()
        self._idle.clear()

    def _kept(self) -> Wire | None:
        while self._idle:
            wire = self._idle.pop()
            if not wire.closed:
                return wire
        return None

    def _keep(self, wire: Wire, replies: list[object]) -> list[object]:
        if len(self._idle) < IDLE:
            self._idle.append(wire)
        else:
            wire.close()
        return replies

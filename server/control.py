"""The channel between the supervisor and one worker: messages over a socket pair.

A message is a kind and its items, as msgpack after its length. From the supervisor: `setup`, once, then
`stop` and `hurry`. From a worker: `ready`, and `stop` when a client asks the server to stop. Anything else
is for the other workers, and passed on to them.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import asdict, dataclass
from typing import Any

import msgpack

from .config import Settings

SETUP, READY, STOP, HURRY, PUBLISH = "setup", "ready", "stop", "hurry", "publish"
CONFIGURE, RESET_STATISTICS, USERS = "configure", "reset-statistics", "users"
ASK, ANSWER, WATCHED = "ask", "answer", "watched"
RELAY_BYTES = 64 << 20
"""Bytes of messages to other workers that wait; with more, those for listeners are dropped."""
FOR_LISTENERS = frozenset({PUBLISH, WATCHED})
"""Messages that may be lost; on all others somebody relies."""
_LENGTH = 4

Message = tuple[Any, ...]
"""The kind, and what belongs to it."""


@dataclass(frozen=True)
class Setup:
    """What a worker is told first.

    Attributes:
        settings: Each setting as text.
        number: Which worker it is.
        lives: How many processes had the number before.
        run_id: Names this run of the server.
        started_at: When the server started.
        counters: Handle of the shared counters.
        tcp: Handles of the sockets to accept from.
        tls: Handles of those that speak TLS.
        binary: Handles of those of the binary lane.
        unix: Handle of the Unix socket, or None.
        file: Where the settings were read from, or None.
    """

    settings: dict[str, str]
    number: int
    lives: int
    run_id: str
    started_at: float
    counters: int
    tcp: list[int]
    tls: list[int]
    binary: list[int]
    unix: int | None
    file: str | None

    def message(self) -> dict[str, Any]:
        """As it is sent."""
        return asdict(self)


def texts_of(settings: Settings) -> dict[str, str]:
    """Each setting that is set, as the text that `config.load` reads."""
    found = {name: getattr(settings, name) for name in settings.printable()}
    return {name: str(value) for name, value in found.items() if value is not None}


class Control:
    """One end of the channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> Control:
        """Use one socket of a pair."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, kind: str, *items: Any) -> None:
        """Send a message; nothing happens when the other end is gone."""
        if not self._writer.is_closing():
            body = msgpack.packb((kind, *items), unicode_errors="surrogateescape")
            self._writer.write(len(body).to_bytes(_LENGTH, "big") + body)

    def relay(self, kind: str, *items: Any) -> None:
        """Send a message for other workers; not to listeners, if too much waits already."""
        transport: asyncio.WriteTransport = self._writer.transport
        if kind not in FOR_LISTENERS or transport.get_write_buffer_size() <= RELAY_BYTES:
            self.send(kind, *items)

    async def receive(self) -> Message | None:
        """The next message; None when the other end is gone."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH), "big")
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return None
        message: Message = msgpack.unpackb(body, use_list=False, unicode_errors="surrogateescape")
        return message

    def close(self) -> None:
        """Let the other end see the end."""
        self._writer.close()

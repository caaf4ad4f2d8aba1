"""MONITOR: every command, as a line, to those who asked for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pionkv.protocol import reply

from .arguments import Argument
from .control import WATCHED
from .receiving import Receiver

if TYPE_CHECKING:
    from .clients import Client
    from .dispatch import Entry

LONGEST = 1024
"""Bytes of one argument that are shown."""
SECRET = frozenset({"ACL|SETUSER", "AUTH", "CONFIG|SET", "HELLO"})
"""Commands that may carry passwords."""

_ESCAPES = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", 7: "\\a", 8: "\\b", 34: '\\"', 92: "\\\\"}


def quoted(argument: Argument, limit: int = LONGEST) -> str:
    """An argument in double quotes, with escapes for what cannot be printed, and cut when it is long."""
    if isinstance(argument, Receiver):
        return f"({argument.length} bytes)"
    text = "".join(
        _ESCAPES.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}")
        for byte in bytes(argument[:limit])
    )
    return f'"{text}"' if len(argument) <= limit else f'"{text}..." ({len(argument)} bytes)'


class Monitors:
    """The clients that watch what the server does.

    Args:
        tell: Sends a message to every other worker.
        elsewhere: How many watch there; None: there are no others.

    Attributes:
        coming: Clients that will watch as soon as the other workers know that somebody does.
    """

    def __init__(self, tell: Callable[..., None], elsewhere: Callable[[], int] | None) -> None:
        self.coming = 0
        self._clients: dict[int, Client] = {}
        self._tell = tell
        self._elsewhere = elsewhere

    def __bool__(self) -> bool:
        return bool(self._clients) or (self._elsewhere is not None and self._elsewhere() > 0)

    @property
    def here(self) -> int:
        """Clients of this worker that watch."""
        return len(self._clients)

    def __contains__(self, client: Client) -> bool:
        return client.id in self._clients

    def add(self, client: Client) -> None:
        """From now on it gets a line for each command."""
        self._clients[client.id] = client

    def forget(self, client: Client) -> None:
        """It is gone, or starts anew."""
        self._clients.pop(client.id, None)

    def show(self, client: Client, entry: Entry, args: Sequence[Argument]) -> None:
        """A client runs a command. Those flagged `admin` are left out, as in Redis."""
        if entry.spec.name in SECRET or "admin" in entry.spec.flags:
            return
        words = " ".join(map(quoted, args))
        line = reply.simple(f"{client.service.clock():.6f} [0 {client.address}] {words}")
        if self._elsewhere is not None and self._elsewhere():
            self._tell(WATCHED, line)
        self.deliver(line)

    def deliver(self, line: bytes) -> None:
        """Show a line to those who watch here."""
        for watcher in list(self._clients.values()):
            watcher.out.push(line)

"""Who listens to which channel of this worker, and messages on their way to all who listen.

Messages are not stored: who is not listening does not get them, and who does not read them is cut off
before they pile up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pionkv.protocol import reply

from .control import PUBLISH
from .glob import matches

if TYPE_CHECKING:
    from .clients import Client

Listeners = dict[bytes, dict[int, "Client"]]
"""Channel or pattern -> those who listen to it, by their id."""


def push(client: Client, kind: bytes, *items: bytes | int | None) -> bytes:
    """A message of some kind, as this client's protocol has it."""
    parts = [reply.encode(item, client.protocol) for item in (kind, *items)]
    return b"".join((reply.push_header(len(parts), client.protocol), *parts))


class Channels:
    """The channels and patterns of all clients of a worker.

    Args:
        tell: Sends a message to every other worker.
        elsewhere: How many listen there; None: there are no others.

    Attributes:
        coming: Clients that will listen as soon as the other workers know that somebody does.
    """

    def __init__(self, tell: Callable[..., None], elsewhere: Callable[[], int] | None) -> None:
        self.channels: Listeners = {}
        self.patterns: Listeners = {}
        self.coming = 0
        self._tell = tell
        self._elsewhere = elsewhere

    def __bool__(self) -> bool:
        """Whether anybody listens."""
        if self.channels or self.patterns:
            return True
        return self._elsewhere is not None and self._elsewhere() > 0

    @property
    def here(self) -> int:
        """Channels and patterns that somebody here listens to."""
        return len(self.channels) + len(self.patterns)

    def listen(self, client: Client, name: bytes, *, pattern: bool) -> None:
        """A client listens to a channel, or to all that match a pattern."""
        (self.patterns if pattern else self.channels).setdefault(name, {})[client.id] = client
        (client.patterns if pattern else client.channels)[name] = None

    def leave(self, client: Client, name: bytes, *, pattern: bool) -> None:
        """It does no more."""
        all_of_them = self.patterns if pattern else self.channels
        (client.patterns if pattern else client.channels).pop(name, None)
        listeners = all_of_them.get(name, {})
        listeners.pop(client.id, None)
        if not listeners:
            all_of_them.pop(name, None)

    def forget(self, client: Client) -> None:
        """A client is gone, or starts anew."""
        for name in list(client.channels):
            self.leave(client, name, pattern=False)
        for name in list(client.patterns):
            self.leave(client, name, pattern=True)

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message to all who listen; how many times it was sent by this worker."""
        self._tell(PUBLISH, channel, message)
        return self.deliver(channel, message)

    def deliver(self, channel: bytes, message: bytes) -> int:
        """Send a message to those who listen here; how many times it was sent."""
        sent = 0
        for client, text in list(self._messages(channel, message)):
            client.out.push(text)
            sent += 1
        return sent

    def _messages(self, channel: bytes, message: bytes) -> Iterator[tuple[Client, bytes]]:
        for client in self.channels.get(channel, {}).values():
            yield client, push(client, b"message", client.user.shown(channel), message)
        for pattern, listeners in self.patterns.items():
            if matches(pattern, channel):
                for client in listeners.values():
                    shown = client.user.shown
                    yield client, push(client, b"pmessage", shown(pattern), shown(channel), message)

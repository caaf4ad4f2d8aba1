"""The replies of a connection, out of the bytes that arrive on it. Does no I/O: whoever reads brings them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from pionkv.protocol.errors import CommandError
from pionkv.protocol.events import NEED_DATA, Body, BulkMore, Push, Reply, ReplyBulkStart
from pionkv.protocol.parser_replies import ReplyEvent, ReplyParser

from .errors import BadReply, ServerRefused

Place = Callable[[int, int], memoryview]
"""Given the position of a bulk string in a reply and its length, the writable bytes it goes to, as many."""


LARGE_BYTES = 1 << 16
LINE_BYTES = 64
"""After a bulk string of so many bytes no more than a line is received, which announces the next one: what
comes with it has to be copied to where it belongs."""


class More(Enum):
    """More bytes have to arrive first."""

    NEEDED = 0


class Replies:
    """What has arrived, reply by reply.

    `get_buffer` says where the next bytes go, `received` how many came, `next` what they make.
    """

    def __init__(self) -> None:
        # Rows of a short prefix are small bulks: announced like large ones, they take the same path.
        self._parser = ReplyParser(large_bulk=1)
        self._after_large = False

    def get_buffer(self) -> memoryview:
        """Where the next bytes go."""
        room = self._parser.get_buffer()
        return room[:LINE_BYTES] if self._after_large and not self.fills else room

    @property
    def fills(self) -> bool:
        """Whether that is where rows belong: all of these bytes are certain to come."""
        return self._parser.fills_body

    def received(self, count: int) -> None:
        """So many have been written there."""
        self._parser.received(count)

    def next(self, place: Place | None) -> object:
        """The next reply, or `More.NEEDED`: then the same is to be asked again when more has arrived.

        Args:
            place: Where the bulk strings of a reply of rows go; None collects them.

        Raises:
            BadReply: `place` refused a length, or rows are within a nested array.
            ProtocolError: The server broke the protocol.
        """
        parser = self._parser
        while True:
            event: ReplyEvent = parser.next_event()
            if event is NEED_DATA:
                return More.NEEDED
            if isinstance(event, Reply):
                self._after_large = False
                return event.value
            if isinstance(event, ReplyBulkStart):
                self._after_large = place is not None and event.length >= LARGE_BYTES
                if place is None:
                    parser.collect()
                else:
                    parser.direct(_destination(place, event))
            elif isinstance(event, BulkMore):
                raise BadReply("a destination is shorter than its bulk string")
            elif not isinstance(event, Push):
                raise AssertionError(f"unknown event {event!r}")


def plain(value: object) -> object:
    """A reply, its bulk strings as bytes.

    Raises:
        ServerRefused: It is an error reply.
    """
    return raised_or(_as_bytes(value))


def count_rows(value: object) -> int:
    """How many bulk strings a reply of rows had; 0 for an error reply.

    Raises:
        BadReply: It is neither a bulk string, nor an array of them, nor an error.
    """
    items = value if isinstance(value, list) else [value]
    if isinstance(value, CommandError):
        return 0
    if not all(isinstance(item, Body) for item in items):
        raise BadReply("the reply holds something else than rows")
    return len(items)


def raised_or(value: object) -> object:
    """The reply, unless it is an error reply: that is raised as `ServerRefused`."""
    if isinstance(value, CommandError):
        raise ServerRefused(str(value))
    return value


def _as_bytes(value: object) -> object:
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, list):
        return [_as_bytes(item) for item in value]
    return value


def _destination(place: Place, bulk: ReplyBulkStart) -> memoryview:
    if len(bulk.path) > 1:
        raise BadReply("rows within a nested array")
    destination = place(bulk.path[0] if bulk.path else 0, bulk.length)
    if destination.nbytes != bulk.length:
        raise BadReply(f"{bulk.length} bytes of rows where {destination.nbytes} were expected")
    return destination

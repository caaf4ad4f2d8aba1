"""Drives a parser as a connection does, and writes down what it reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pionkv.protocol.errors import ProtocolError
from pionkv.protocol.events import NEED_DATA, Body, BulkMore, BulkStart, Command, Push, Reply, ReplyBulkStart
from pionkv.protocol.parser import RequestParser
from pionkv.protocol.parser_replies import ReplyParser

BY_HAND = {"large_bulk": 8 * 1024}
"""Below the size of a batch, so nothing goes through one."""


def command(*args: bytes) -> bytes:
    """A command on the wire."""
    return b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%b\r\n" % (len(arg), arg) for arg in args)


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """`data` cut before each of these positions."""
    marks = [0, *sorted(cuts), len(data)]
    return [data[start:end] for start, end in zip(marks, marks[1:], strict=False) if end > start]


def one_by_one(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


class Dialogue:
    """Feeds a parser and gathers events.

    Commands are gathered as lists of bytes, replies as values; a directed body is put together again. A
    protocol error is gathered as the text `! <error>` and ends everything.
    """

    def __init__(self, parser: RequestParser | ReplyParser, bodies: str | Iterable[int] = "collect") -> None:
        """`bodies`: what becomes of them: `collect`, `discard`, or the sizes of the buffers to direct to."""
        self.parser = parser
        self.seen: list[Any] = []
        self.bulks: list[tuple[Any, int]] = []
        self.over = False
        self._bodies = bodies
        self._sizes = iter(()) if isinstance(bodies, str) else iter(bodies)
        self._buffers: list[bytearray] = []
        self._body_length = 0
        self._arrived: list[bytes] = []

    def feed(self, *chunks: bytes) -> list[Any]:
        """Receive these chunks one after the other; everything gathered so far."""
        for chunk in chunks:
            rest = chunk
            while rest and not self.over:
                buffer = self.parser.get_buffer()
                count = min(len(buffer), len(rest))
                buffer[:count] = rest[:count]
                rest = rest[count:]
                self.parser.received(count)
                self._gather()
        return self.seen

    def _gather(self) -> None:
        while True:
            if isinstance(self.parser, RequestParser) and (batch := self.parser.take_batch()):
                used = (len(batch) + 1) // 2
                self.seen += batch[:used]
                if used < len(batch):
                    self.parser.give_back(batch[used:])
                elif self.parser.empty:
                    assert self.parser.next_event() is NEED_DATA
                continue
            try:
                event = self.parser.next_event()
            except ProtocolError as error:
                self.seen.append(f"! {error}")
                self.over = True
                return
            if event is NEED_DATA:
                return
            if isinstance(event, BulkStart | ReplyBulkStart):
                self._start(event)
            elif isinstance(event, BulkMore):
                self._direct(event.remaining)
            else:
                self._whole(event)

    def _start(self, event: BulkStart | ReplyBulkStart) -> None:
        where = event.index if isinstance(event, BulkStart) else event.path
        self.bulks.append((where, event.length))
        self._finish_body()
        self._body_length = event.length
        if self._bodies == "collect":
            self.parser.collect()
        elif self._bodies == "discard":
            self.parser.discard()
        else:
            self._direct(event.length)

    def _direct(self, remaining: int) -> None:
        buffer = bytearray(next(self._sizes, remaining))
        self._buffers.append(buffer)
        self.parser.direct(buffer)

    def _finish_body(self) -> None:
        if self._buffers:
            self._arrived.append(b"".join(self._buffers)[: self._body_length])
            self._buffers = []

    def _whole(self, event: Command | Reply | Push) -> None:
        self._finish_body()
        value = {Command: "args", Reply: "value", Push: "items"}[type(event)]
        self.seen.append(self._filled(getattr(event, value)))

    def _filled(self, value: Any) -> Any:
        if isinstance(value, Body):
            return value if value.discarded else self._arrived.pop(0)
        if isinstance(value, memoryview):
            return bytes(value)
        if isinstance(value, list):
            return [self._filled(item) for item in value]
        if isinstance(value, dict):
            return {key: self._filled(item) for key, item in value.items()}
        return value


def commands(*chunks: bytes, bodies: str | Iterable[int] = "collect", **options: Any) -> list[Any]:
    """What a `RequestParser` makes of these chunks."""
    return Dialogue(RequestParser(**options), bodies).feed(*chunks)


def replies(*chunks: bytes, bodies: str | Iterable[int] = "collect", **options: Any) -> list[Any]:
    """What a `ReplyParser` makes of these chunks."""
    return Dialogue(ReplyParser(**options), bodies).feed(*chunks)


Reader = Callable[..., list[Any]]

"""A connection of an event loop that moves rows: received straight into their destination, as `Lane` does.

Nothing is awaited for longer than a deadline. Whatever ends an exchange before its reply has been taken, a
cancellation included, closes the connection: bytes of an unfinished reply must not be taken for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar, cast

from pionkv.protocol.errors import ProtocolError
from pionkv.protocol.request import Word, encode_command

from .deadline import Deadline
from .endpoint import Endpoint
from .errors import BadReply, ConnectionLost, ServerRefused, TimedOut
from .replies import More, Place, Replies, count_rows, plain, raised_or
from .tls import explained

T = TypeVar("T")

PIECE_BYTES = 1 << 20
"""Sent at once: what the system does not take the event loop copies."""


class AsyncLane(asyncio.BufferedProtocol):
    """One connection to a server. One exchange at a time.

    Attributes:
        pending: Commands sent whose replies have not been received.
    """

    def __init__(self) -> None:
        """Made by `open`."""
        self.pending = 0
        self._replies = Replies()
        self._place: Place | None = None
        self._moved = 0
        self._reply: asyncio.Future[object] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, endpoint: Endpoint, deadline: Deadline) -> AsyncLane:
        """Connect, say who we are, and see that the server answers.

        Raises:
            Unavailable: The server cannot be reached or does not answer in time.
            ServerRefused: The server wants another password.
        """
        async with _translated():
            lane = await asyncio.wait_for(_connect(endpoint), deadline.wait())
        try:
            for command in endpoint.greeting:
                await lane.send(command, deadline)
                await lane.receive(deadline)
        except ConnectionLost as error:
            raise error if endpoint.tls is None else ConnectionLost(explained(str(error))) from error
        except BaseException:
            lane.close()
            raise
        return lane

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._transport is None

    def close(self) -> None:
        """Close the connection at once; more than once does nothing."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    async def send(self, command: Sequence[Word], deadline: Deadline) -> None:
        """Send a command; its reply is to be received later, in order. Raises as `Lane.send`."""
        async with self._closing_on_error() as transport:
            for piece in encode_command(command):
                view = memoryview(piece).cast("B")
                for start in range(0, len(view), PIECE_BYTES):
                    transport.write(view[start : start + PIECE_BYTES])
                    if self._drained is not None:
                        await self._within(self._drained, deadline)
        self.pending += 1

    async def receive(self, deadline: Deadline) -> object:
        """The next reply; bulk strings in it are bytes. Raises as `Lane.receive`."""
        async with self._closing_on_error() as transport:
            value = await self._next_reply(transport, deadline, None)
        return plain(value)

    async def receive_any(self, deadline: Deadline) -> object:
        """The next reply, or a `ServerRefused`. Raises as `Lane.receive_any`."""
        try:
            return await self.receive(deadline)
        except ServerRefused as error:
            return error

    async def receive_rows(self, place: Place, deadline: Deadline) -> int:
        """The next reply, rows, put where `place` says: how many runs. Raises as `Lane.receive_rows`."""
        async with self._closing_on_error() as transport:
            value = await self._next_reply(transport, deadline, place)
            count = count_rows(value)
        raised_or(value)
        return count

    async def _next_reply(
        self, transport: asyncio.Transport, deadline: Deadline, place: Place | None
    ) -> object:
        value = self._replies.next(place)
        if value is More.NEEDED:
            self._place, self._reply = place, asyncio.get_running_loop().create_future()
            transport.resume_reading()
            value = await self._within(self._reply, deadline)
        self.pending -= 1
        return value

    async def _within(self, awaited: asyncio.Future[T], deadline: Deadline) -> T:
        while not awaited.done():
            moved = self._moved
            await asyncio.wait((awaited,), timeout=deadline.wait())
            if not awaited.done() and self._moved == moved:
                deadline.wait()  # raises when the whole time is over; else it was a silence
                raise TimedOut("the server is silent")
        return awaited.result()

    @asynccontextmanager
    async def _closing_on_error(self) -> AsyncIterator[asyncio.Transport]:
        if self._transport is None:
            raise ConnectionLost("the connection is closed")
        try:
            async with _translated():
                yield self._transport
        except BaseException:
            self.close()
            raise

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio's. Nothing is read before somebody waits for it, and says where it goes."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._transport.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """As asyncio's: where the next bytes go."""
        return self._replies.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """As asyncio's: so many have been written there."""
        self._moved += nbytes
        self._replies.received(nbytes)
        if self._reply is None or self._reply.done():
            return
        try:
            value = self._replies.next(self._place)
        except Exception as error:
            self._end(error)
            return
        if value is not More.NEEDED:
            self._place = None  # it holds the rows
            self._reply.set_result(value)
            if self._transport is not None:
                self._transport.pause_reading()

    def eof_received(self) -> bool:
        """As asyncio's: the transport is closed."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio's: what is waited for does not come any more."""
        self._end(ConnectionLost(str(exc or "the server ended the connection")))

    def pause_writing(self) -> None:
        """As asyncio's: something has been written that the system has not taken."""
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """As asyncio's: it has taken everything."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def _end(self, error: Exception) -> None:
        self.close()
        for waiting in (self._reply, self._drained):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # nobody may be waiting any more, which is not to be reported


async def _connect(endpoint: Endpoint) -> AsyncLane:
    loop = asyncio.get_running_loop()
    if endpoint.unix_socket_path is not None:
        return (await loop.create_unix_connection(AsyncLane, endpoint.unix_socket_path))[1]
    context = None if endpoint.tls is None else endpoint.tls.context
    name = None if context is None else endpoint.host
    transport, lane = await loop.create_connection(
        AsyncLane, endpoint.host, endpoint.port, ssl=context, server_hostname=name
    )
    endpoint.tune(transport.get_extra_info("socket"))
    return lane


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise TimedOut("no connection in time") from error
    except OSError as error:
        raise ConnectionLost(str(error)) from error
    except ProtocolError as error:
        raise BadReply(str(error)) from error

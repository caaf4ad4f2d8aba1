"""Replies of one connection on their way out: small ones gathered, large ones sliced from where they lie.

The transport's high-water mark is 0: it tells as soon as the socket does not take everything, and again when
all was sent. So a slow reader holds at most one slice here, and a buffer may be reused once `send` returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from .metrics import Metrics

GATHER_BYTES = 1 << 16
"""Small replies are written together; beyond this many bytes they go out before the read batch ends."""

SLICE_BYTES = 1 << 20
"""Large replies are handed to the transport in slices of this size."""

TURN_BYTES = 4 << 20
"""After so many bytes sent without waiting, other connections get their turn."""


class Output:
    """The writing half of a connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: Metrics) -> None:
        self.blocked = False
        """The socket does not take more now. Nobody should produce further replies until it does."""
        self.muted = False
        """Replies are dropped (CLIENT REPLY)."""
        self.unfinished = False
        """A reply in parts was begun and not completed: nothing but the rest of it may be sent."""
        self.sent = 0
        self._loop = loop
        self._metrics = metrics
        self._transport: asyncio.Transport | None = None
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._turn = TURN_BYTES

    def attach(self, transport: asyncio.Transport) -> None:
        """Write to `transport` from now on."""
        transport.set_write_buffer_limits(high=0)
        self._transport = transport

    def detach(self) -> None:
        """The connection is gone: who waits to send gets `ConnectionResetError`, further replies vanish."""
        self._transport = None
        self._gathered.clear()
        self._wake(ConnectionResetError("the peer is gone"))

    @property
    def attached(self) -> bool:
        """Whether the connection still exists."""
        return self._transport is not None

    def write(self, reply: bytes) -> None:
        """Queue a small, complete reply."""
        if self.muted:
            return
        self._gathered.append(reply)
        self._gathered_bytes += len(reply)
        if self._gathered_bytes > GATHER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand what was gathered to the transport in one write."""
        if not self._gathered:
            return
        data = self._gathered[0] if len(self._gathered) == 1 else b"".join(self._gathered)
        self._gathered.clear()
        self._gathered_bytes = 0
        self._push(data)

    @contextmanager
    def reply_in_parts(self) -> Iterator[None]:
        """Mark a reply that is written in several steps; when it breaks off, the connection cannot go on."""
        self.unfinished = True
        yield
        self.unfinished = False

    async def send(self, buffers: Iterable[memoryview]) -> None:
        """Send large buffers without copying them; returns when the system has taken every byte.

        Raises:
            ConnectionResetError: The peer went away before the end.
        """
        if self.muted:
            return
        self.flush()
        for buffer in buffers:
            for start in range(0, buffer.nbytes, SLICE_BYTES):
                await self._send_slice(buffer[start : start + SLICE_BYTES])

    async def _send_slice(self, piece: memoryview) -> None:
        if self.blocked:
            await self.drained()
        self._push(piece)
        if self.blocked:
            await self.drained()
            self._turn = TURN_BYTES
        self._turn -= piece.nbytes
        if self._turn <= 0:
            self._turn = TURN_BYTES
            await asyncio.sleep(0)

    def _push(self, data: bytes | memoryview) -> None:
        if self._transport is None:
            return
        size = len(data)
        self.sent += size
        self._metrics.bytes_written += size
        self._transport.write(data)

    async def drained(self) -> None:
        """Wait until the system has taken everything written so far.

        Raises:
            ConnectionResetError: The peer went away.
        """
        if self._transport is None:
            raise ConnectionResetError("the peer is gone")
        if self.blocked:
            self._waiter = self._loop.create_future()
            await self._waiter

    def pause(self) -> None:
        """The transport holds bytes that the socket did not take."""
        self.blocked = True

    def resume(self) -> None:
        """The transport holds nothing any more."""
        self.blocked = False
        self._wake(None)

    def _wake(self, error: Exception | None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)

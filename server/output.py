"""Replies of one connection on their way out: small ones gathered, large ones sliced from where they lie.

The transport's high-water mark is as low as it goes: it tells as soon as the socket does not take everything,
and again when all was sent. So a slow reader holds at most one slice here (with TLS two), and a buffer may be
reused once `send` returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from .metrics import UNIX, Metrics

GATHER_BYTES = 1 << 16
"""Small replies are written together; beyond this many bytes they go out before the read batch ends."""

COPY_BYTES = 1 << 14
"""Buffers below this size are copied and gathered, too: a write of their own would cost more."""

SLICE_BYTES = 4 << 20
"""Large replies are handed to the transport in slices of this size; they stay where they lie."""

TLS_SLICE_BYTES = 1 << 20
"""The same where the transport encrypts what it is handed, and holds that until the peer has read it."""

COPIED_SLICE_BYTES = 1 << 16
"""Buffers that are wanted back are copied in slices of this size; the transport holds one of them at most."""

PUSH_BYTES = 8 << 20
"""Messages that wait for a peer which does not read them; beyond this it is cut off."""

STALL_SECONDS = 1.0
"""A peer that reads nothing for so long has stopped to read."""

FIRST_BYTES = (1 << 15) - 16
"""A large reply over TCP begins with a write of so many bytes.

Linux copies what is sent into blocks of 32 KiB, one for each thread, and takes a new one when less than 32
bytes are left. Rows begin at a page of memory. A few bytes of header in front of them, at the beginning of
a block, have each of them copied to a place that is just ahead of its own within a page, and processors
that tell places apart by that wait for every store. The rest of this block is too small for what follows.
"""

TURN_BYTES = 4 << 20
"""After so many bytes sent without waiting, other connections get their turn."""


class Departures:
    """Replies of many connections that leave together, at the end of a turn of the event loop.

    The first of them wakes their reader, and the others find it awake: written one by one, between the
    commands of other connections, each would have to wake it, which costs as much as a dozen small commands.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Output] = []

    def add(self, output: Output) -> None:
        """Flush it at the end of this turn, or when `leave` is called before."""
        if not self._waiting:
            self._loop.call_soon(self.leave)
        self._waiting.append(output)

    def leave(self) -> None:
        """Flush all that wait."""
        waiting, self._waiting = self._waiting, []
        for output in waiting:
            output.flush()


class Output:
    """The writing half of a connection.

    Args:
        loop: The event loop.
        metrics: Where bytes are counted.
        departures: Those of all connections.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: Metrics, departures: Departures) -> None:
        self.blocked = False
        """The socket does not take more now. Nobody should produce further replies until it does."""
        self.held = False
        """Replies are gathered and not sent: what they answer is not on the disk yet."""
        self.muted = False
        """Replies are dropped (CLIENT REPLY)."""
        self.unfinished = False
        """A reply in parts was begun and not completed: nothing but the rest of it may be sent."""
        self._loop = loop
        self._metrics = metrics
        self._departures = departures
        self._transport: asyncio.Transport | None = None
        self._gathered: list[bytes | memoryview] = []
        self._gathered_bytes = 0
        self._pushes: list[bytes] = []
        self._pushed_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self.turn = TURN_BYTES
        """Bytes that may be sent until others have their turn; anew when the event loop comes round."""
        self._slice = SLICE_BYTES
        self._first = 0
        """Bytes of the first write of a large reply; 0: there is no need for one of its own."""
        self._lane = ""

    def attach(self, transport: asyncio.Transport, lane: str) -> None:
        """Write to `transport` from now on."""
        # uvloop's TLS takes a mark of 0 to be passed even when nothing waits.
        plain = transport.can_write_eof()
        transport.set_write_buffer_limits(high=0 if plain else 1, low=0)
        self._slice = SLICE_BYTES if plain else TLS_SLICE_BYTES
        self._first = FIRST_BYTES if plain and lane != UNIX else 0
        self._transport = transport
        self._lane = lane

    def detach(self) -> None:
        """The connection is gone: who waits to send gets `ConnectionResetError`, further replies vanish."""
        self._transport = None
        self._gathered.clear()
        self._pushes.clear()
        self._wake(ConnectionResetError("the peer is gone"))

    @property
    def attached(self) -> bool:
        """Whether the connection still exists."""
        return self._transport is not None

    def write(self, reply: bytes) -> None:
        """Queue a small, complete reply, or a small piece of one; an empty one was sent by other means."""
        if self.muted or not reply:
            return
        self._gathered.append(reply)
        self._gathered_bytes += len(reply)
        if self._gathered_bytes > GATHER_BYTES:
            self.flush()

    def push(self, message: bytes) -> None:
        """Send a message that answers no command, after a reply in parts if one is under way.

        Who does not read its messages is cut off.
        """
        self._pushes.append(message)
        self._pushed_bytes += len(message)
        if self._transport is None:
            return
        if self._pushed_bytes + self._transport.get_write_buffer_size() > PUSH_BYTES:
            self._transport.abort()
        elif not self.unfinished:
            self._release_pushes()
            self.flush()

    def _release_pushes(self) -> None:
        self._gathered += self._pushes
        self._gathered_bytes += self._pushed_bytes
        self._pushes.clear()
        self._pushed_bytes = 0

    def flush_soon(self) -> None:
        """Hand what was gathered to the transport at the end of the event loop's turn."""
        if self._gathered and not self.held:
            self._departures.add(self)

    def flush(self) -> None:
        """Hand what was gathered to the transport, in one vectored write or two."""
        gathered = self._gathered
        if not gathered or self.held:
            return
        self._gathered, size, self._gathered_bytes = [], self._gathered_bytes, 0
        if self._transport is None:
            return
        self._metrics.sent[self._lane] += size
        self.turn -= size
        if size <= GATHER_BYTES:
            self._transport.write(b"".join(gathered))
        else:
            # Copying takes its time: what is small goes first.
            self._departures.leave()
            if self._first and isinstance(gathered[0], bytes):
                first, gathered = _cut(gathered, self._first)
                self._transport.writelines(first)
            self._transport.writelines(gathered)

    def send_whole(self, parts: Sequence[bytes | memoryview], size: int) -> bool:
        """Send a complete reply of at most a slice in one write, if nobody has to wait for it; whether so.

        Args:
            parts: The reply; they must stay as they are until they have been sent.
            size: Bytes of all of them.
        """
        if self.blocked or self.turn <= 0 or size > self._slice:
            return False
        if not self.muted:
            self._gathered += parts
            self._gathered_bytes += size
            self.flush()
        return True

    @contextmanager
    def reply_in_parts(self) -> Iterator[None]:
        """Mark a reply that is written in several steps; when it breaks off, the connection cannot go on."""
        self.unfinished = True
        yield
        self.unfinished = False
        self._release_pushes()

    async def send(self, buffers: Iterable[memoryview]) -> None:
        """Send buffers, large ones without copying; they must stay as they are until they have been sent.

        Raises:
            ConnectionResetError: The peer went away before the end.
        """
        if self.muted:
            return
        for buffer in buffers:
            for start in range(0, buffer.nbytes, self._slice):
                piece = buffer[start : start + self._slice]
                if self._gathered_bytes > GATHER_BYTES:
                    self.flush()
                await self._breathe()
                if piece.nbytes < COPY_BYTES:
                    self.write(bytes(piece))
                else:
                    # What follows it, such as the CRLF, goes out in the same write.
                    self._gathered.append(piece)
                    self._gathered_bytes += piece.nbytes

    async def send_copies(self, data: memoryview) -> int:
        """Send as much of `data` as the peer reads; how many bytes, all of which are copied when it returns.

        It is all of them, unless the peer has read nothing for `STALL_SECONDS`.

        Raises:
            ConnectionResetError: The peer went away.
        """
        taken = 0
        while taken < data.nbytes and not self.muted:
            if self.blocked and not await self._drained_within(STALL_SECONDS):
                return taken
            piece = data[taken : taken + COPIED_SLICE_BYTES]
            self.write(bytes(piece))
            self.flush()
            taken += piece.nbytes
            if not self.blocked:
                await self._breathe()
        return data.nbytes if self.muted else taken

    async def _drained_within(self, seconds: float) -> bool:
        waiter = self._waiter = self._loop.create_future()
        await asyncio.wait((waiter,), timeout=seconds)
        if not waiter.done():
            return False
        waiter.result()
        return True

    async def _breathe(self) -> None:
        """Wait for a slow peer; and let other connections have their turn, however fast this one is."""
        if self.blocked:
            await self.drained()
        elif self.turn <= 0:
            await asyncio.sleep(0)
        else:
            return
        self.turn = TURN_BYTES

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


def _cut(
    parts: list[bytes | memoryview], count: int
) -> tuple[list[bytes | memoryview], list[bytes | memoryview]]:
    """The first `count` bytes of them, and the rest, without copying; there must be more."""
    at = 0
    while len(parts[at]) <= count:
        count -= len(parts[at])
        at += 1
    whole = memoryview(parts[at])
    return [*parts[:at], whole[:count]], [whole[count:], *parts[at + 1 :]]

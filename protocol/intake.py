"""The half that both parsers share: where received bytes go, and the bodies of large bulk strings.

A parser owns one buffer. `get_buffer` lends its free end to whoever reads the socket, `received` says how
much was written there. Between the two marks `_head` and `_tail` lies what has not been parsed yet.

While the body of a large bulk string is expected, `get_buffer` lends the caller's own destination instead, so
that the kernel writes the body where it belongs. Invariant: as long as the destination has room, the parser's
own buffer is empty; the part of a body that came with its header is copied when the destination is given.

The buffer starts small and follows the traffic: it doubles when a read fills it, and halves when it is empty
and the last read was far below its size. It is replaced, never resized: somebody may still hold a view of it.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from .errors import ProtocolError, UsageError
from .events import NEED_DATA, Body, BulkMore, NeedDataType
from .limits import KIB, MIB

if TYPE_CHECKING:
    from typing_extensions import Buffer

SMALLEST_BUFFER = 16 * KIB
LARGEST_BUFFER = 256 * KIB
"""Bound of growth by choice; one item that is longer makes the buffer as long as it needs."""

LARGE_BULK = 64 * KIB
"""Bulk strings of at least this many bytes are offered to the caller before their body is read."""

MAP_FROM = 4 * MIB
"""Collected bodies of this size and more are mapped: memory appears as bytes arrive, not when announced.
Smaller ones come from the heap, which hands out the same pages again and again, without faults."""

HEADER_BYTES = 32
"""No header is longer: a type, 20 digits, CRLF."""

CR, LF = 0x0D, 0x0A


Event = TypeVar("Event")


class Intake(ABC, Generic[Event]):
    """Receives bytes. See the module's text for the rules."""

    __slots__ = (
        "_body", "_buffer", "_capacity", "_dead", "_head", "_large", "_last", "_meagre", "_most", "_offered",
        "_reads", "_scanned", "_tail", "_view", "_whole",
    )  # fmt: skip

    def __init__(self, large_bulk: int, longest_line: int) -> None:
        if large_bulk < 1:
            raise UsageError(f"large_bulk is {large_bulk}, want at least 1")
        self._large = large_bulk
        self._most = 2 * max(LARGEST_BUFFER, large_bulk + HEADER_BYTES, longest_line + HEADER_BYTES)
        self._head = self._tail = 0
        self._scanned = 0
        """Bytes from `_head` on in which no line end was found."""
        self._last = 0
        """Bytes of the last read."""
        self._reads = 0
        """Number of reads into the parser's own buffer."""
        self._whole = False
        """The last read filled the buffer to its end."""
        self._offered: memoryview | None = None
        self._body: LargeBody | None = None
        self._dead: ProtocolError | None = None
        self._view = memoryview(b"")
        self._meagre = 0
        """After a read of fewer bytes an empty buffer is halved."""
        self._replace_buffer(SMALLEST_BUFFER)

    def next_event(self) -> Event:
        """What has arrived next.

        Raises:
            ProtocolError: The other side broke the framing; every later call raises it again.
            UsageError: The event before was not answered.
        """
        if self._dead is not None:
            raise self._dead
        try:
            return self._advance()
        except ProtocolError as error:
            self._fail(error)
            raise

    @abstractmethod
    def _advance(self) -> Event:
        """Parse the next event. Raises as `next_event`."""

    def get_buffer(self) -> memoryview:
        """Where the next received bytes go: writable, never empty, to be filled from its beginning.

        Raises:
            UsageError: A `BulkStart` or `BulkMore` has not been answered, or `next_event` was not called
                until it returned `NEED_DATA`.
        """
        body = self._body
        if body is None or body.discarded:
            if self._head == self._tail and not self._whole and self._last >= self._meagre:
                self._head = self._tail = 0
                self._offered = offered = self._view
            else:
                self._offered = offered = self._own_room()
        else:
            self._offered = offered = body.room()
            if not offered:
                self._offered = offered = self._room_beside(body)
        return offered

    @property
    def fills_body(self) -> bool:
        """Whether the next received bytes go to where the body of a large bulk string belongs."""
        body = self._body
        return body is not None and bool(body.room())

    def received(self, count: int) -> bool:
        """Say that `count` bytes were written to the buffer that `get_buffer` returned last.

        Returns:
            Whether `next_event` may tell anything: not as long as the destination of a body has room.

        Raises:
            UsageError: More than fits, or `get_buffer` was not called.
        """
        offered, self._offered = self._offered, None
        if offered is None or not 0 <= count <= len(offered):
            raise UsageError(f"received({count}) does not fit what get_buffer() returned")
        if self._dead is not None:
            return True
        body = self._body
        if body is not None and offered.obj is not self._buffer:
            body.advance(count)
            return count == len(offered)
        self._tail += count
        self._last = count
        self._reads += 1
        self._whole = self._tail == self._capacity
        return True

    def direct(self, buffer: Buffer) -> None:
        """Have the body written into `buffer`, as far as it reaches.

        Args:
            buffer: Writable and C-contiguous, at least one byte. When it is shorter than the rest of the
                body, `BulkMore` asks for the next; when it is longer, its end stays untouched.

        Raises:
            UsageError: No body waits for an answer, or the buffer does not fit.
        """
        body = self._unanswered()
        view = memoryview(buffer)
        if view.readonly or not view.c_contiguous or not view.nbytes:
            raise UsageError("a destination must be writable, contiguous and not empty")
        body.begin(view.cast("B"))
        self._copy_arrived(body)

    def collect(self) -> None:
        """Have the parser allocate memory for the whole body; the argument becomes a read-only view of it.

        Raises:
            UsageError: No `BulkStart` waits for an answer.
            MemoryError: The body does not fit the address space.
        """
        body = self._unanswered()
        if body.remaining != body.length:
            raise UsageError("collect() answers a BulkStart only")
        memory = allocate(body.length)
        body.kept = memory.toreadonly()
        body.begin(memory)
        self._copy_arrived(body)

    def discard(self) -> None:
        """Have the rest of the body read and dropped, so that the connection stays usable.

        Raises:
            UsageError: No body waits for an answer.
        """
        self._unanswered().drop()

    # The parser's own buffer

    def _replace_buffer(self, capacity: int) -> None:
        buffer = bytearray(capacity)
        view = memoryview(buffer)
        pending = self._tail - self._head
        if pending:
            view[:pending] = self._view[self._head : self._tail]
        self._buffer, self._view, self._capacity = buffer, view, capacity
        self._meagre = capacity // 8 if capacity > SMALLEST_BUFFER else 0
        self._head, self._tail = 0, pending

    def _own_room(self) -> memoryview:
        pending, capacity = self._tail - self._head, self._capacity
        wanted = self._wanted_capacity(pending)
        if wanted != capacity:
            self._replace_buffer(wanted)
        elif not pending:
            self._head = self._tail = 0
        elif capacity - self._tail < capacity // 2:
            self._view[:pending] = self._view[self._head : self._tail]
            self._head, self._tail = 0, pending
        self._whole = False
        return self._view[self._tail :]

    def _wanted_capacity(self, pending: int) -> int:
        capacity = self._capacity
        if pending > capacity // 2 or (self._whole and capacity < LARGEST_BUFFER):
            if 2 * capacity <= self._most:
                return 2 * capacity
            if pending == capacity:
                raise UsageError("call next_event() until it returns NEED_DATA before receiving more")
        elif not pending and self._last < self._meagre:
            return capacity // 2
        return capacity

    def _line(self, limit: int) -> bytes | None:
        """Take a line, without its LF; None when it has not arrived.

        Raises:
            ProtocolError: It is longer than `limit`.
        """
        head = self._head
        end = self._buffer.find(LF, head + self._scanned, min(self._tail, head + limit))
        if end < 0:
            self._scanned = min(self._tail - head, limit)
            if self._scanned == limit:
                raise LineTooLong
            return None
        self._scanned = 0
        self._head = end + 1
        return bytes(self._view[head:end])

    def _crlf_at(self, at: int) -> bool:
        """Whether the CRLF that must stand here after a bulk string has arrived."""
        arrived = self._tail - at
        if (arrived > 0 and self._buffer[at] != CR) or (arrived > 1 and self._buffer[at + 1] != LF):
            raise ProtocolError("expected CRLF after a bulk string")
        return arrived > 1

    # Large bodies

    def _open_body(self, length: int) -> None:
        self._body = LargeBody(length)
        self._whole = False

    def _unanswered(self) -> LargeBody:
        if self._body is None or self._body.answered:
            raise UsageError("no bulk string waits for a destination")
        return self._body

    def _room_beside(self, body: LargeBody) -> memoryview:
        """The destination is full or missing: only what follows a complete body goes to our own buffer."""
        if body.remaining or not body.answered:
            raise UsageError("call next_event(), and answer BulkStart and BulkMore, before receiving more")
        return self._own_room()

    def _copy_arrived(self, body: LargeBody) -> None:
        room = body.room()
        count = min(len(room), self._tail - self._head)
        room[:count] = self._view[self._head : self._head + count]
        self._head += count
        body.advance(count)

    def _body_step(self) -> NeedDataType | BulkMore | None:
        """Go on with the open body; None when it and what ends it are complete."""
        body = self._body
        assert body is not None
        if not body.answered:
            raise UsageError("answer BulkStart and BulkMore with direct(), collect() or discard()")
        if body.discarded:
            count = min(body.remaining, self._tail - self._head)
            self._head += count
            body.remaining -= count
        if body.remaining:
            return NEED_DATA if body.discarded or body.room() else body.ask_for_more()
        return None if self._after_body() else NEED_DATA

    def _after_body(self) -> bool:
        """Take what must stand after a body; False when it has not arrived."""
        if not self._crlf_at(self._head):
            return False
        self._head += 2
        return True

    def _close_body(self) -> memoryview | Body:
        body, self._body = self._body, None
        assert body is not None
        return Body(body.length, body.discarded) if body.kept is None or body.discarded else body.kept

    def _fail(self, error: ProtocolError) -> None:
        """Nothing after a broken frame can be understood: drop it, and what still arrives."""
        self._dead = error
        self._body = None
        self._head = self._tail = self._scanned = 0


class LineTooLong(Exception):
    """Each caller of `Intake._line` has its own text for this."""


class LargeBody:
    """How far the body of one large bulk string has come."""

    __slots__ = ("answered", "discarded", "kept", "length", "remaining", "_destination")

    def __init__(self, length: int) -> None:
        self.length = length
        self.remaining = length
        self.answered = False
        self.discarded = False
        self.kept: memoryview | None = None
        self._destination = memoryview(b"")

    def begin(self, destination: memoryview) -> None:
        """Fill this next."""
        self.answered = True
        self._destination = destination[: self.remaining]

    def room(self) -> memoryview:
        """What is left of the destination."""
        return self._destination

    def advance(self, count: int) -> None:
        """So many bytes were written into the room."""
        self.remaining -= count
        self._destination = self._destination[count:]

    def drop(self) -> None:
        """What still comes is of no use."""
        self.answered = self.discarded = True
        self._destination = memoryview(b"")

    def ask_for_more(self) -> BulkMore:
        """The destination is full."""
        self.answered = False
        return BulkMore(self.remaining)


def allocate(length: int) -> memoryview:
    """Writable memory whose pages appear as they are written."""
    if length < MAP_FROM:
        return memoryview(bytearray(length))
    try:
        memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for a bulk string of {length} bytes") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Faults on small pages would cost more than the copy from the socket.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)

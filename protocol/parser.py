"""The server's side of the wire: bytes in, commands out. Does no I/O.

    buffer = parser.get_buffer(); parser.received(socket.recv_into(buffer))
    while (event := parser.next_event()) is not NEED_DATA:
        ...

What is accepted: arrays of bulk strings, and inline commands. An array of no elements or of a negative number
of them is skipped, as Redis 7 does. Stricter than Redis: every header ends in CRLF, and so does every body,
and there are at most `Limits.array_elements` arguments. Numbers are canonical: `$007` and `$-0` are refused.

Every limit is checked on the header that announces something. Text of errors is Redis' where Redis has one.

Two lanes lead to the same result. By hand, an argument at a time, goes whatever is incomplete, large, inline
or wrong. Small commands that have arrived whole go through `batch`, several times faster.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from . import batch
from .errors import ProtocolError
from .events import NEED_DATA, Argument, Body, BulkMore, BulkStart, Command, NeedDataType
from .inline import split_inline
from .intake import CR, HEADER_BYTES, LARGE_BULK, LF, Intake, LineTooLong
from .limits import DEFAULT_LIMITS, Limits
from .scanning import ARRAY, BULK

__all__ = [
    "NEED_DATA", "Argument", "Body", "BulkMore", "BulkStart", "Command", "RequestEvent", "RequestParser",
]  # fmt: skip

RequestEvent: TypeAlias = NeedDataType | Command | BulkStart | BulkMore

UNKNOWN = -1

_ARRAY_HEADER = re.compile(rb"\*(0|-?[1-9][0-9]{0,18})\r\n").match
_HEADER_START = re.compile(rb"(-?|0|-?[1-9][0-9]{0,18})\r?").fullmatch
_BULK_HEADER = re.compile(rb"\$(0|[1-9][0-9]{0,18})\r\n").match


class RequestParser(Intake[RequestEvent]):
    """Parses what a client sends.

    Attributes:
        authenticated: False switches the limits to those for strangers. May be changed between two events.
        alike: The commands that `take_batch` returned last have one name and one number of arguments.
    """

    __slots__ = (
        "authenticated",
        "alike",
        "_args",
        "_batches",
        "_hopeless",
        "_kept",
        "_length",
        "_limits",
        "_missing",
        "_notable",
        "_ready",
    )

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        *,
        large_bulk: int = LARGE_BULK,
        authenticated: bool = True,
    ) -> None:
        """Make a parser for one connection.

        Args:
            limits: What the client may ask for.
            large_bulk: Arguments of at least this many bytes are announced by `BulkStart`.
            authenticated: Whether the client needs no password, or has given it.
        """
        super().__init__(large_bulk, limits.inline_bytes)
        self.authenticated = authenticated
        self.alike = False
        self._limits = limits
        self._args: list[Argument] = []
        self._missing = 0
        """Arguments of the open command still to come."""
        self._length = UNKNOWN
        """Length of the small argument whose header was read and whose body was not."""
        self._kept = 0
        """Bytes of the open command's small arguments."""
        self._notable = min(large_bulk, limits.bulk_bytes, limits.unauthenticated_bulk_bytes)
        """Length from which on an argument may meet a limit."""
        self._ready: list[list[bytes]] = []
        """Commands of a batch that were not reported yet, the last one first."""
        self._batches = (
            min(large_bulk, limits.bulk_bytes, limits.array_elements, limits.command_bytes) >= batch.LONGEST
        )
        """No limit can be met within a batch. Otherwise all is parsed by hand."""
        self._hopeless = -1
        """The read in which a batch failed: its rest is parsed by hand, so that nothing is tried twice."""

    def next_event(self) -> RequestEvent:
        """See `Intake.next_event`."""
        if self._ready:
            return self._next_ready()
        if self._head == self._tail and not self._missing and self._body is None and self._dead is None:
            # Between two commands, and nothing has come: what everybody finds whose pipeline was answered.
            return NEED_DATA
        return super().next_event()

    def take_batch(self) -> list[list[bytes]]:
        """The arguments of small commands that have arrived together, and come next; none: see `next_event`.

        What is not used is to be given back.
        """
        if not self._ready:
            if self._head == self._tail or self._args or self._missing or self._body is not None:
                return []
            return self._parse_batch()
        commands, self._ready, self.alike = self._ready, [], False
        commands.reverse()
        return commands

    @property
    def empty(self) -> bool:
        """Nothing is left of what has arrived; true after `take_batch` means that `NEED_DATA` comes next."""
        return self._head == self._tail and not self._ready

    def give_back(self, commands: list[list[bytes]]) -> None:
        """The last of the commands that `take_batch` returned, which are reported again."""
        commands.reverse()
        self._ready = commands

    def _next_ready(self) -> Command:
        return Command([*self._ready.pop()])

    def _advance(self) -> RequestEvent:
        if self._body is not None:
            event = self._body_step()
            if event is not None:
                return event
            self._args.append(self._close_body())
            self._missing -= 1
        if not self._args and not self._missing:
            opened = self._open_command()
            if opened is not None:
                return opened
        return self._read_arguments()

    def _open_command(self) -> NeedDataType | Command | None:
        """Read an array's header, or a whole inline command; None when an array was opened."""
        while self._head < self._tail:
            if self._buffer[self._head] == ARRAY:
                if commands := self._parse_batch():
                    self.give_back(commands)
                    return self._next_ready()
                count = self._array_header()
                if count is None:
                    return NEED_DATA
                if count > 0:
                    self._missing, self._kept = count, 0
                    return None
            else:
                line = self._inline_line()
                if line is None:
                    return NEED_DATA
                if words := split_inline(line):
                    return Command([*words])
        return NEED_DATA

    def _read_arguments(self) -> RequestEvent:
        # Written with an eye on speed: this loop is what a single small command costs.
        buffer, view, tail, args = self._buffer, self._view, self._tail, self._args
        while self._missing:
            length = self._length
            if length == UNKNOWN:
                header = _BULK_HEADER(buffer, self._head, tail)
                if header is None:
                    self._expect_header(BULK, "bulk")
                    return NEED_DATA
                length = int(header[1])
                if length >= self._notable:
                    self._check_length(length)
                self._head = header.end()
                if length >= self._large:
                    self._open_body(length)
                    return BulkStart(args, length)
                self._length = length
                self._kept += length
                if self._kept > self._limits.command_bytes:
                    raise ProtocolError("too big command")
            head = self._head
            end = head + length
            if (tail < end + 2 or buffer[end] != CR or buffer[end + 1] != LF) and not self._crlf_at(end):
                return NEED_DATA
            args.append(bytes(view[head:end]))
            self._head = end + 2
            self._missing -= 1
            self._length = UNKNOWN
        self._args = []
        return Command(args)

    def _parse_batch(self) -> list[list[bytes]]:
        """The small commands that begin here and have arrived whole."""
        head = self._head
        if (
            self._hopeless == self._reads
            or not (self._batches and self.authenticated)
            or self._buffer[head] != ARRAY
        ):
            return []
        found = batch.parse_batch(bytes(self._view[head : min(self._tail, head + batch.LONGEST)]))
        if found is None:
            self._hopeless = self._reads
            return []
        commands, self.alike, end = found
        self._head = head + end
        return commands

    # Headers

    def _array_header(self) -> int | None:
        header = _ARRAY_HEADER(self._buffer, self._head, self._tail)
        if header is None:
            self._expect_header(ARRAY, "multibulk")
            return None
        count = int(header[1])
        if count > self._limits.array_elements:
            raise ProtocolError("invalid multibulk length")
        if not self.authenticated and count > self._limits.unauthenticated_array_elements:
            raise ProtocolError("unauthenticated multibulk length")
        self._head = header.end()
        return count

    def _check_length(self, length: int) -> None:
        if length > self._limits.bulk_bytes:
            raise ProtocolError("invalid bulk length")
        if not self.authenticated and length > self._limits.unauthenticated_bulk_bytes:
            raise ProtocolError("unauthenticated bulk length")

    def _expect_header(self, kind: int, name: str) -> None:
        """Raise if what stands here cannot become a header of this kind."""
        start = bytes(self._view[self._head : min(self._tail, self._head + HEADER_BYTES)])
        if start and start[0] != kind:
            got = chr(start[0]) if 0x20 <= start[0] < 0x7F else " "
            raise ProtocolError(f"expected '{chr(kind)}', got '{got}'")
        if not _HEADER_START(start[1:]):
            raise ProtocolError(f"invalid {name} length")

    def _inline_line(self) -> bytes | None:
        try:
            return self._line(self._limits.inline_bytes)
        except LineTooLong:
            raise ProtocolError("too big inline request") from None

"""The server's side of the wire: bytes in, commands out. Does no I/O.

    buffer = parser.get_buffer(); parser.received(socket.recv_into(buffer))
    while (event := parser.next_event()) is not NEED_DATA:
        ...

What is accepted: arrays of bulk strings, and inline commands. An array of no elements or of a negative number
of them is skipped, as Redis 7 does. Stricter than Redis: every header ends in CRLF, and so does every body,
and there are at most `Limits.array_elements` arguments. Numbers are canonical: `$007` and `$-0` are refused.

Every limit is checked on the header that announces something. Text of errors is Redis' where Redis has one.
"""

from __future__ import annotations

from typing import TypeAlias

from .errors import ProtocolError
from .events import NEED_DATA, Argument, Body, BulkMore, BulkStart, Command, NeedDataType
from .inline import split_inline
from .intake import CR, HEADER_BYTES, LARGE_BULK, Intake, LineTooLong
from .limits import DEFAULT_LIMITS, Limits

__all__ = [
    "NEED_DATA", "Argument", "Body", "BulkMore", "BulkStart", "Command", "RequestEvent", "RequestParser",
]  # fmt: skip

RequestEvent: TypeAlias = NeedDataType | Command | BulkStart | BulkMore

ARRAY, BULK = ord("*"), ord("$")
UNKNOWN = -1


class RequestParser(Intake):
    """Parses what a client sends.

    Attributes:
        authenticated: False switches the limits to those for strangers. May be changed between two events.
    """

    __slots__ = ("authenticated", "_args", "_kept", "_length", "_limits", "_missing")

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
        self._limits = limits
        self._args: list[Argument] = []
        self._missing = 0
        """Arguments of the open command still to come."""
        self._length = UNKNOWN
        """Length of the small argument whose header was read and whose body was not."""
        self._kept = 0
        """Bytes of the open command's small arguments."""

    def next_event(self) -> RequestEvent:
        """What has arrived next.

        Raises:
            ProtocolError: The client broke the framing; every later call raises it again.
            UsageError: The event before was not answered.
        """
        if self._dead is not None:
            raise self._dead
        try:
            return self._advance()
        except ProtocolError as error:
            self._fail(error)
            raise

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
                if (count := self._array_header()) is None:
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
        while self._missing:
            if self._length == UNKNOWN:
                length = self._bulk_header()
                if length is None:
                    return NEED_DATA
                if length >= self._large:
                    self._open_body(length)
                    return BulkStart(self._args, length)
                self._length = length
            argument = self._take(self._length, "a bulk string")
            if argument is None:
                return NEED_DATA
            self._args.append(argument)
            self._missing -= 1
            self._length = UNKNOWN
        args, self._args = self._args, []
        return Command(args)

    # Headers

    def _array_header(self) -> int | None:
        line = self._header("mbulk")
        if line is None:
            return None
        if line[:1] == b"-" and number(line[1:]):
            return 0
        count = number(line)
        if count is None or count > self._limits.array_elements:
            raise ProtocolError("invalid multibulk length")
        if not self.authenticated and count > self._limits.unauthenticated_array_elements:
            raise ProtocolError("unauthenticated multibulk length")
        return count

    def _bulk_header(self) -> int | None:
        if self._head == self._tail:
            return None
        if (found := self._buffer[self._head]) != BULK:
            raise ProtocolError(f"expected '$', got '{chr(found) if 0x20 <= found < 0x7F else ' '}'")
        line = self._header("bulk")
        if line is None:
            return None
        length = number(line)
        if length is None or length > self._limits.bulk_bytes:
            raise ProtocolError("invalid bulk length")
        if not self.authenticated and length > self._limits.unauthenticated_bulk_bytes:
            raise ProtocolError("unauthenticated bulk length")
        if length < self._large:
            self._kept += length
            if self._kept > self._limits.command_bytes:
                raise ProtocolError("too big command")
        return length

    def _header(self, kind: str) -> bytes | None:
        """What stands between the type and the CRLF."""
        try:
            line = self._line(HEADER_BYTES)
        except LineTooLong:
            raise ProtocolError(f"too big {kind} count string") from None
        if line is None:
            return None
        if line[-1] != CR:
            raise ProtocolError(f"invalid {'multibulk' if kind == 'mbulk' else kind} length")
        return line[1:-1]

    def _inline_line(self) -> bytes | None:
        try:
            return self._line(self._limits.inline_bytes)
        except LineTooLong:
            raise ProtocolError("too big inline request") from None


def number(digits: bytes) -> int | None:
    """The value of a canonical decimal number: digits only, no leading zero."""
    if digits.isdigit() and (digits[0] != 0x30 or len(digits) == 1):
        return int(digits)
    return None

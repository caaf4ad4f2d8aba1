"""The client's side of the wire: bytes in, replies of RESP2 and RESP3 out. Does no I/O.

What a reply becomes: a status line `str`, an error `CommandError` (as a value, not raised), an integer or big
number `int`, a bulk string `bytes`, a double `float`, a boolean `bool`, a null of any kind `None`, a verbatim
string `Verbatim`, an array or set `list`, a map `dict` (aggregates as keys become tuples). Attributes are
dropped. A bulk string of at least `large_bulk` bytes, at any depth, is announced by `ReplyBulkStart`, and its
bytes go where the caller says. The streamed types of RESP3, which no server sends, are refused.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from .errors import CommandError, ProtocolError
from .events import NEED_DATA, Body, BulkMore, NeedDataType, Push, Reply, ReplyBulkStart
from .intake import CR, LARGE_BULK, Intake, LineTooLong
from .limits import DEFAULT_LIMITS, Limits
from .values import Verbatim

__all__ = ["NEED_DATA", "Body", "BulkMore", "Push", "Reply", "ReplyBulkStart", "ReplyEvent", "ReplyParser"]

ReplyEvent: TypeAlias = NeedDataType | Reply | Push | ReplyBulkStart | BulkMore

_AGGREGATES = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2, ord("|"): 2}
"""Type -> how many items one counted element has."""
_DOUBLE = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|inf|nan)").fullmatch
_BULKS = frozenset(b"$=!")
_ATTRIBUTE, _MAP, _PUSH = ord("|"), ord("%"), ord(">")


class _Open:
    """An aggregate whose items are still arriving."""

    __slots__ = ("items", "kind", "missing")

    def __init__(self, kind: int, missing: int) -> None:
        self.kind = kind
        self.missing = missing
        self.items: list[object] = []


class ReplyParser(Intake[ReplyEvent]):
    """Parses what a server sends."""

    __slots__ = ("_bulk", "_length", "_limits", "_stack")

    def __init__(self, limits: Limits = DEFAULT_LIMITS, *, large_bulk: int = LARGE_BULK) -> None:
        """Make a parser for one connection.

        Args:
            limits: What the server may send.
            large_bulk: Bulk strings of at least this many bytes are announced by `ReplyBulkStart`.
        """
        super().__init__(large_bulk, limits.inline_bytes)
        self._limits = limits
        self._stack: list[_Open] = []
        self._bulk = 0
        """Type of the small bulk string whose header was read and whose body was not; 0: there is none."""
        self._length = 0

    def _advance(self) -> ReplyEvent:
        if self._body is not None:
            if (pause := self._body_step()) is not None:
                return pause
            if (whole := self._deliver(self._close_body())) is not None:
                return whole
        while True:
            event = self._read_bulk() if self._bulk else self._read_item()
            if event is not None:
                return event

    def _read_item(self) -> ReplyEvent | None:
        """Read one line; None when more is to be read after it."""
        line = self._reply_line()
        if line is None:
            return NEED_DATA
        kind, text = line[0], line[1:-1]
        if kind in _BULKS:
            return self._open_bulk(kind, text)
        if kind in _AGGREGATES:
            return self._open_aggregate(kind, text)
        return self._deliver(_scalar(kind, text))

    def _reply_line(self) -> bytes | None:
        try:
            line = self._line(self._limits.inline_bytes)
        except LineTooLong:
            raise ProtocolError(f"line longer than {self._limits.inline_bytes} bytes") from None
        if line is not None and (len(line) < 2 or line[-1] != CR):
            raise ProtocolError("expected CRLF after a line")
        return line

    # Bulk strings

    def _open_bulk(self, kind: int, text: bytes) -> ReplyEvent | None:
        if text == b"-1" and kind == ord("$"):
            return self._deliver(None)
        length = self._count(text, self._limits.bulk_bytes, "bulk")
        if length >= self._large and kind == ord("$"):
            self._open_body(length)
            return ReplyBulkStart(tuple(len(aggregate.items) for aggregate in self._stack), length)
        self._bulk, self._length = kind, length
        return None

    def _read_bulk(self) -> ReplyEvent | None:
        head = self._head
        end = head + self._length
        if not self._crlf_at(end):
            return NEED_DATA
        data = bytes(self._view[head:end])
        self._head = end + 2
        kind, self._bulk = self._bulk, 0
        if kind == ord("="):
            if data[3:4] != b":":
                raise ProtocolError("invalid verbatim string")
            return self._deliver(Verbatim(data[4:], data[:3].decode("latin-1")))
        return self._deliver(_error(data) if kind == ord("!") else data)

    # Aggregates

    def _open_aggregate(self, kind: int, text: bytes) -> ReplyEvent | None:
        if text == b"-1" and kind == ord("*"):
            return self._deliver(None)
        count = self._count(text, self._limits.array_elements, "multibulk") * _AGGREGATES[kind]
        if len(self._stack) == self._limits.reply_depth:
            raise ProtocolError(f"aggregates nested more than {self._limits.reply_depth} deep")
        if kind == _PUSH and self._stack:
            raise ProtocolError("push message within a reply")
        aggregate = _Open(kind, count)
        if count:
            self._stack.append(aggregate)
            return None
        return self._finish(aggregate)

    def _deliver(self, value: object) -> Reply | Push | None:
        """Put a value where it belongs; the event, when that completes a reply."""
        if not self._stack:
            return Reply(value)
        aggregate = self._stack[-1]
        aggregate.items.append(value)
        aggregate.missing -= 1
        if aggregate.missing:
            return None
        self._stack.pop()
        return self._finish(aggregate)

    def _finish(self, aggregate: _Open) -> Reply | Push | None:
        items = aggregate.items
        if aggregate.kind == _ATTRIBUTE:
            return None
        if aggregate.kind == _PUSH:
            return Push(items)
        if aggregate.kind == _MAP:
            pairs = zip(items[::2], items[1::2], strict=True)
            return self._deliver({_key(key): value for key, value in pairs})
        return self._deliver(items)

    def _count(self, text: bytes, limit: int, what: str) -> int:
        count = _number(text)
        if count is None or count > limit:
            raise ProtocolError(f"invalid {what} length")
        return count


def _number(digits: bytes) -> int | None:
    """The value of a canonical decimal number: digits only, no leading zero."""
    if digits.isdigit() and (digits[0] != 0x30 or len(digits) == 1):
        return int(digits)
    return None


def _scalar(kind: int, text: bytes) -> object:
    try:
        match chr(kind):
            case "+":
                return text.decode("utf-8", "surrogateescape")
            case "-":
                return _error(text)
            case ":" | "(":
                return _integer(text)
            case "," if _DOUBLE(text):
                return float(text)
            case "#" if text in (b"t", b"f"):
                return text == b"t"
            case "_" if not text:
                return None
    except ValueError:
        pass
    raise ProtocolError(f"invalid reply {bytes([kind]) + text[:32]!r}")


def _integer(text: bytes) -> int:
    if _number(text.lstrip(b"+-") if text[:1] in b"+-" else text) is None:
        raise ValueError
    return int(text)


def _error(text: bytes) -> CommandError:
    code, _, message = text.decode("utf-8", "surrogateescape").partition(" ")
    return CommandError(code, message)


def _key(value: object) -> object:
    """Something to look up by: aggregates become tuples, and what was collected becomes bytes."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, list):
        return tuple(_key(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _key(item)) for key, item in value.items())
    return value

"""The binary lane's frames: bytes in, commands out, and replies as frames. Does no I/O.

    request   [u16 0xCA5E][u8 opcode][u32 length][body]
    reply     [u16 0xCA5E][u8 status][u32 length][body]

Numbers are little-endian. A frame is another spelling of a command: `FrameParser` yields the same `Command`
as `RequestParser`, and `FrameReplies` spells the reply: checks and handlers are those of the command.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from .errors import CommandError, ProtocolError
from .events import NEED_DATA, BulkMore, BulkStart, Command, NeedDataType
from .frame_bodies import OPCODES, Opcode, name_of
from .intake import LARGE_BULK, LF, Intake
from .limits import DEFAULT_LIMITS, Limits

MAGIC = 0xCA5E
HEADER = struct.Struct("<HBI")
"""Magic, opcode or status, bytes of the body."""

_LARGEST_NUMBER = struct.Struct("<q")
_COLD = b"-COLDMISS"
_EMPTY = re.compile(rb"[$*]-1|_|\*0").fullmatch


class Status(IntEnum):
    """The second field of a reply."""

    OK = 0
    MISS = 1
    """There is no such thing; the body is empty."""
    ERROR = 2
    """The body is the text of the error, its code first."""
    COLDMISS = 3
    """What is asked must be warmed first; the body is the text of the error."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A whole frame that is no command: it is answered with an error, and the connection goes on."""

    error: CommandError


FrameEvent: TypeAlias = NeedDataType | Command | BulkStart | BulkMore | Refusal


def frame_header(kind: int, length: int) -> bytes:
    """What stands before a body of so many bytes.

    Args:
        kind: The opcode or the status.
        length: Bytes of the body, less than 4 GiB.
    """
    return HEADER.pack(MAGIC, kind, length)


def read_header(data: bytes, most: int) -> tuple[int, int]:
    """The opcode or status of a header, and the bytes of the body.

    Args:
        data: The seven bytes.
        most: How long a body may be.

    Raises:
        ProtocolError: It is no header, or the body is longer than allowed.
    """
    magic, kind, length = HEADER.unpack(data)
    if magic != MAGIC:
        raise ProtocolError(f"a frame begins with 0x{MAGIC:04X}, not 0x{magic:04X}")
    if length > most:
        raise ProtocolError(f"frame of {length} bytes, at most {most} are taken")
    return kind, length


class FrameParser(Intake[FrameEvent]):
    """Parses what a client sends on the binary lane; used as a `RequestParser` is.

    Attributes:
        authenticated: False switches the limit of a body to that for strangers.
    """

    __slots__ = ("authenticated", "_limits", "_opcode", "_length")

    def __init__(self, limits: Limits = DEFAULT_LIMITS, *, authenticated: bool = True) -> None:
        """Make a parser for one connection.

        Args:
            limits: What the client may ask for; a body may be as long as a bulk string.
            authenticated: Whether the client needs no password, or has given it.
        """
        super().__init__(LARGE_BULK, LARGE_BULK)
        self.authenticated = authenticated
        self._limits = limits
        self._opcode: int | None = None
        """That of the frame whose header was read and whose body was not."""
        self._length = 0

    def take_batch(self) -> list[list[bytes]]:
        """Frames do not come in batches."""
        return []

    def _advance(self) -> FrameEvent:
        if self._body is not None:
            if (pause := self._body_step()) is not None:
                return pause
            body = self._close_body()
            return self._finish(body if isinstance(body, memoryview) else memoryview(b""))
        if self._opcode is None:
            if self._tail - self._head < HEADER.size:
                return self._check_beginning()
            self._read_header()
            if self._length >= self._large:
                return self._announce()
        end = self._head + self._length
        if self._tail < end:
            return NEED_DATA
        body = memoryview(bytes(self._view[self._head : end]))
        self._head = end
        return self._finish(body)

    def _check_beginning(self) -> NeedDataType:
        """Two bytes are enough to see that this is something else."""
        if self._tail - self._head >= 2:
            start = bytes(self._view[self._head : self._head + 2]).ljust(HEADER.size, b"\0")
            read_header(start, 0)
        return NEED_DATA

    def _read_header(self) -> None:
        end = self._head + HEADER.size
        self._opcode, self._length = read_header(bytes(self._view[self._head : end]), self._limits.bulk_bytes)
        self._head = end
        most = self._limits.unauthenticated_bulk_bytes
        if not self.authenticated and self._length > most:
            raise ProtocolError(f"unauthenticated frame of {self._length} bytes, at most {most} are taken")

    def _announce(self) -> FrameEvent:
        """Offer a large body, or drop one that nobody can understand."""
        self._open_body(self._length)
        if self._opcode in OPCODES:
            return BulkStart([], self._length)
        self.discard()
        return self._advance()

    def _after_body(self) -> bool:
        return True

    def _finish(self, body: memoryview) -> Command | Refusal:
        opcode, self._opcode = self._opcode, None
        assert opcode is not None
        known: Opcode | None = OPCODES.get(opcode)
        if known is None:
            return Refusal(CommandError("ERR", f"unknown opcode {name_of(opcode)}"))
        try:
            return Command(known.words(body))
        except CommandError as error:
            return Refusal(error)


class FrameReplies:
    """Turns replies of RESP2 into frames, piece by piece: a large body passes through as it is."""

    def __init__(self) -> None:
        self._line = b""
        """The beginning of a line whose end has not come."""
        self._left = 0
        """Bytes of the body and its line end that are still to come."""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """The pieces of frames that a piece of the replies becomes.

        Args:
            data: Any part of the replies, in order.
        """
        view = memoryview(data).cast("B")
        while view.nbytes:
            if self._left:
                yield from self._body_piece(view[: self._left])
                taken = min(self._left, view.nbytes)
                self._left -= taken
                view = view[taken:]
                continue
            end = bytes(view[:LARGE_BULK]).find(LF)
            if end < 0:
                self._line += bytes(view)
                return
            line, self._line = self._line + bytes(view[:end]), b""
            view = view[end + 1 :]
            yield self._begin(line.rstrip(b"\r"))

    def _body_piece(self, piece: memoryview) -> Iterator[memoryview]:
        """What of the piece belongs to the body: its line end does not."""
        body = self._left - 2
        if body > 0:
            yield piece[:body]

    def _begin(self, line: bytes) -> bytes:
        kind, text = line[:1], line[1:]
        if _EMPTY(line):
            return frame_header(Status.MISS, 0)
        if kind == b"$":
            self._left = int(text) + 2
            return frame_header(Status.OK, int(text))
        if kind == b"+":
            return frame_header(Status.OK, 0)
        if kind == b":":
            body = _LARGEST_NUMBER.pack(int(text))
            return frame_header(Status.OK, len(body)) + body
        status = Status.COLDMISS if line.startswith(_COLD) else Status.ERROR
        return frame_header(status, len(text)) + text

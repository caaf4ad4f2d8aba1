"""A client that knows nothing of ours: a socket, and hiredis to read the replies."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any

import hiredis

Argument = str | bytes | int | memoryview


class ErrorReply(Exception):
    """An error that the server answered; its text has the code in front."""


class Wire:
    """One blocking connection. Replies are what hiredis makes: bytes, int, list, dict, None, `ErrorReply`."""

    def __init__(self, port: int, *, timeout: float = 60) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(replyError=ErrorReply, protocolError=AssertionError)

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def command(self, *arguments: Argument) -> Any:
        """Send one command and read its reply; an error reply is returned, not raised."""
        for piece in encode(*arguments):
            self.send(piece)
        return self.read()

    def ok(self, *arguments: Argument) -> Any:
        """As `command`, but an error reply is raised."""
        reply = self.command(*arguments)
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    def read(self) -> Any:
        """The next reply.

        Raises:
            ConnectionError: The server closed the connection.
        """
        while (reply := self._reader.gets()) is False:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("closed by the server")
            self._reader.feed(data)
        return reply

    def read_to_close(self) -> bytes:
        """Everything up to the end of the connection."""
        data = bytearray()
        while piece := self.socket.recv(1 << 16):
            data += piece
        return bytes(data)


def encode(*arguments: Argument) -> list[bytes | memoryview]:
    """A command as bytes; large binary arguments stay pieces of their own."""
    pieces: list[bytes | memoryview] = []
    small = bytearray(b"*%d\r\n" % len(arguments))
    for argument in arguments:
        body = memoryview(argument if isinstance(argument, bytes | memoryview) else str(argument).encode())
        small += b"$%d\r\n" % body.nbytes
        if body.nbytes < 1 << 16:
            small += body
        else:
            pieces += [bytes(small), body]
            small.clear()
        small += b"\r\n"
    return [*pieces, bytes(small)]

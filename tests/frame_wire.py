"""A client of the binary lane that sees every byte."""

from __future__ import annotations

import socket
import struct

PING, AUTH, AUTH_USER, FUSED = 0xFF, 0x37, 0x38, 0x24
OK, MISS, ERROR, COLD = range(4)
SECONDS = 60


def frame(kind: int, body: bytes = b"") -> bytes:
    """A frame, as the contract writes it."""
    return struct.pack("<HBI", 0xCA5E, kind, len(body)) + body


def named(name: bytes, rest: bytes = b"") -> bytes:
    """A body that begins with a name."""
    return struct.pack("<H", len(name)) + name + rest


class FrameWire:
    """One connection."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), SECONDS)

    def ask(self, opcode: int, body: bytes = b"") -> tuple[int, bytes]:
        """Send a frame; status and body of the reply."""
        self.socket.sendall(frame(opcode, body))
        return self.reply()

    def reply(self) -> tuple[int, bytes]:
        """The next reply."""
        magic, status, length = struct.unpack("<HBI", self.read(7))
        assert magic == 0xCA5E
        return status, self.read(length)

    def read(self, count: int) -> bytes:
        """So many bytes; `EOFError` when the server closes before."""
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise EOFError(f"closed after {len(data)} of {count} bytes")
            data += piece
        return bytes(data)

    def ended(self) -> bool:
        """Whether the server has closed."""
        return self.socket.recv(1) == b""

    def close(self) -> None:
        self.socket.close()

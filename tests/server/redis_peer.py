"""A real redis-server, and connections that keep what they received, byte for byte."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pionkv.protocol.events import NEED_DATA, Reply, ReplyBulkStart
from pionkv.protocol.parser_replies import ReplyParser
from pionkv.protocol.request import encode_command

SECONDS = 30


class RedisServer:
    """A redis-server that keeps nothing, on a Unix socket.

    Raises:
        RuntimeError: There is none on this machine.
    """

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise RuntimeError("redis-server is not installed: `make system` installs it where apt is there")
        self.path = folder / "redis.sock"
        flags = ("--port", "0", "--unixsocket", str(self.path), "--save", "", "--dir", str(folder))
        self._process = subprocess.Popen([program, *flags], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "eady to accept connections" in line:
                return
        raise RuntimeError("redis-server ended at once")

    def connect(self) -> socket.socket:
        """A new connection."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))
        return connection

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.communicate()


class Recorder:
    """A connection whose replies are known both as values and as bytes."""

    def __init__(self, connection: socket.socket, protocol: int) -> None:
        connection.settimeout(SECONDS)
        self._socket = connection
        self._parser = ReplyParser()
        if protocol == 3:
            self.ask(("HELLO", "3"))

    def ask(self, args: Sequence[bytes | str]) -> tuple[bytes, Any]:
        """Send a command; its reply as bytes and as a value."""
        self._socket.sendall(b"".join(encode_command(args)))
        raw = bytearray()
        while True:
            event = self._parser.next_event()
            if isinstance(event, Reply):
                return bytes(raw), event.value
            if isinstance(event, ReplyBulkStart):
                self._parser.collect()
            elif event is NEED_DATA:
                raw += self._receive()

    def _receive(self) -> bytes:
        buffer = self._parser.get_buffer()
        count = self._socket.recv_into(buffer)
        if not count:
            raise EOFError("the server closed the connection")
        data = bytes(buffer[:count])
        self._parser.received(count)
        return data

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def now() -> int:
    """Seconds since 1970: the clock that both servers look at."""
    return int(time.time())

"""Peers that misbehave on purpose, and a clock that is set by hand."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

SECONDS = 20

Script = Callable[[socket.socket], None]


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Peer:
    """A server that plays one script for each connection, in the order in which they come.

    A script is a function of the connected socket; the socket is closed when it returns.

    Attributes:
        port: Its TCP port.
        connections: Connections accepted so far.
    """

    def __init__(self, *scripts: Script) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self._threads: list[threading.Thread] = []
        self._start(self._accept, scripts)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, scripts: tuple[Script, ...]) -> None:
        with suppress(OSError):
            for script in scripts:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._start(self._play, script, connection)

    def _play(self, script: Script, connection: socket.socket) -> None:
        connection.settimeout(SECONDS)
        with connection, suppress(OSError):
            script(connection)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive()


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Receive until the bytes end with `end`, and nothing of what follows."""
    data = b""
    while not data.endswith(end):
        piece = connection.recv(1)
        if not piece:
            raise OSError("ended")
        data += piece
    return data


def greet(connection: socket.socket) -> None:
    """Answer the opening PING."""
    read_until(connection, b"PING\r\n")
    connection.sendall(b"+PONG\r\n")


@dataclass
class Fault:
    """What a proxy does to the bytes that come from the server.

    Attributes:
        after: Bytes that pass unharmed, over all connections.
        action: "stall", "close", "flip" (one bit of each later byte), "drip" (a byte at a time), or "kill"
            (call `kill`, and hand on what the server still said).
        kill: Ends the server.
    """

    after: int
    action: str
    kill: Callable[[], object] | None = None


@dataclass
class Proxy:
    """Stands between a client and a server, and spoils what the server says once a fault is set.

    Attributes:
        upstream: The server's port.
        fault: What to do; None passes everything.
        passed: Bytes that went from the server to the client.
    """

    upstream: int
    fault: Fault | None = None
    passed: int = 0
    port: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self.upstream)) as server:
            while not self._stop.is_set():
                readable, _, _ = select.select([client, server], [], [], 0.05)
                if client in readable:
                    data = client.recv(1 << 20)
                    if not data:
                        return
                    server.sendall(data)
                if server in readable:
                    data = server.recv(1 << 16)
                    if not data or not self._pass(client, data):
                        return

    def _pass(self, client: socket.socket, data: bytes) -> bool:
        """Hand on what the server said; False ends the connection."""
        fault = self.fault
        whole = len(data) if fault is None else max(0, min(len(data), fault.after - self.passed))
        # Counted first: once the client has the bytes, the test may look at the count.
        self.passed += whole
        client.sendall(data[:whole])
        rest = data[whole:]
        if not rest or fault is None:
            return True
        if fault.action == "stall":
            self._stop.wait(SECONDS)
            return False
        if fault.action == "kill" and fault.kill is not None:
            fault.kill()
            self.fault = None
            client.sendall(rest)
            self.passed += len(rest)
            return True
        if fault.action == "flip":
            client.sendall(bytes(byte ^ 1 for byte in rest))
            return True
        if fault.action == "drip":
            for byte in rest:
                client.sendall(bytes([byte]))
                if self._stop.wait(0.01):
                    return False
            return True
        return False

    def close(self) -> None:
        self._stop.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive()

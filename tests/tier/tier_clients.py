"""A client of one server of a tier, and waiting for what is written behind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from server_process import ServerProcess

SECONDS = 20


def until(true: Callable[[], Any], what: str = "it") -> Any:
    """Wait for something; what it is."""
    end = time.monotonic() + SECONDS
    while not (found := true()):
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.01)
    return found


class Relay:
    """Stands before a node of the tier, and does something when so many bytes have come from it."""

    def __init__(self, port: int) -> None:
        self._node = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._left: int | None = None
        self._act: Callable[[], None] = lambda: None
        self.passed = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def after(self, nbytes: int, act: Callable[[], None]) -> None:
        """Count from now on, and do this once."""
        with self._lock:
            self.passed, self._left, self._act = 0, nbytes, act

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(SECONDS)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            node = socket.create_connection(("127.0.0.1", self._node))
            self._sockets += [client, node]
            self._start(self._copy, client, node, lambda count: None)
            self._start(self._copy, node, client, self._count)

    def _copy(self, source: socket.socket, target: socket.socket, note: Callable[[int], None]) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
                note(len(data))
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self.passed += nbytes
            if self._left is not None and self.passed >= self._left:
                self._left = None
                self._act()


class Peer:
    """One server and a connection to it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.client = self.connect()

    def connect(self) -> redis.Redis:
        """Another connection."""
        return redis.Redis(
            "127.0.0.1",
            self.server.port,
            socket_timeout=SECONDS,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            single_connection_client=True,
        )

    def command(self, *words: Any) -> Any:
        """A reply, errors as values."""
        try:
            found = self.client.execute_command(*words)
        except redis.ResponseError as error:
            return error
        return found.decode() if isinstance(found, bytes) and found in (b"OK", b"HIT", b"MISS") else found

    def lookup(self, name: str) -> Any:
        """What a lookup answers."""
        return self.command("KV.PREFIX.LOOKUP", name)

    def explain(self, name: str) -> dict[str, Any]:
        """Why, and where it is."""
        found = self.command("KV.PREFIX.EXPLAIN", name)
        pairs = {key.decode(): value for key, value in zip(found[::2], found[1::2], strict=True)}
        return {key: value.decode() if isinstance(value, bytes) else value for key, value in pairs.items()}

    def tier(self) -> dict[str, Any]:
        """The section of INFO."""
        return dict(self.client.info("tier"))

    def written(self, name: str) -> None:
        """Wait until the tier holds a prefix as it is here."""
        until(lambda: self.explain(name).get("tier") == "the same", f"{name} in the tier")

    def close(self) -> None:
        self.client.close()

"""A server in this process, and clients that see every byte."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import pytest
import uvloop
from pionkv.protocol.events import NEED_DATA, Reply, ReplyBulkStart
from pionkv.protocol.parser_replies import ReplyParser
from pionkv.protocol.request import encode_command
from pionkv.server import logs
from pionkv.server.app import App, store_options
from pionkv.server.config import Settings
from pionkv.storage import Store
from prefix_rows import baseline, expected, publish, whole

sys.path.insert(0, str(Path(__file__).parent))

SECONDS = 30


class Wire:
    """A connection that sends and reads bytes, or commands and replies."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SECONDS)
        self.socket = connection
        self._parser = ReplyParser()

    def send(self, data: bytes | memoryview) -> Self:
        """Send bytes as they are."""
        self.socket.sendall(data)
        return self

    def expect(self, data: bytes) -> None:
        """The next bytes are these."""
        assert self.read(len(data)) == data

    def read(self, count: int) -> bytes:
        """So many bytes, or fewer when the server closes."""
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                break
            data += piece
        return bytes(data)

    def read_to_end(self) -> bytes:
        """Everything until the server closes."""
        data = bytearray()
        while piece := self.socket.recv(65536):
            data += piece
        return bytes(data)

    def command(self, *args: bytes | str | int | memoryview) -> Any:
        """Send a command and read its reply; an error reply is a `CommandError` as value."""
        for piece in encode_command(args):
            self.socket.sendall(piece)
        return self.reply()

    def reply(self) -> Any:
        """The next reply."""
        while True:
            event = self._parser.next_event()
            if isinstance(event, Reply):
                return event.value
            if isinstance(event, ReplyBulkStart):
                self._parser.collect()
            elif event is NEED_DATA:
                count = self.socket.recv_into(self._parser.get_buffer())
                if not count:
                    raise EOFError("the server closed the connection")
                self._parser.received(count)

    def wait_for_kernels(self) -> None:
        """Until the server has loaded its kernels: only then its memory tells anything."""
        while b"kernels_loading:0" not in self.command("INFO", "pion"):
            pass

    def close(self) -> None:
        self.socket.close()


class LocalServer:
    """A server on a thread of this process.

    Attributes:
        app: Its application; only to be looked at, it belongs to its own thread.
        settings: Its settings.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        logs.configure(settings.log_level, settings.log_format)
        self.app: App | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._ready.wait(SECONDS)
        assert self._failure is None, self._failure
        self._open: list[Wire] = []

    def _serve(self) -> None:
        try:
            uvloop.run(self._run())
        except BaseException as error:
            self._failure = error
            self._ready.set()

    async def _run(self) -> None:
        with closing(Store.open(self.settings.data_dir, store_options(self.settings))) as store:
            self.app = App(self.settings, store)
            await self.app.start()
            self._ready.set()
            await self.app.serve()

    @property
    def port(self) -> int:
        assert self.app is not None
        return self.app.service.ports.tcp

    def call(self, function: Callable[[App], Any]) -> Any:
        """Run a function in the server's thread; its result."""
        assert self.app is not None

        async def run() -> Any:
            return function(self.app)

        return asyncio.run_coroutine_threadsafe(run(), self.app.loop).result(SECONDS)

    def connect(self, protocol: int = 2) -> Wire:
        """A new client, over TCP."""
        wire = Wire(socket.create_connection(("127.0.0.1", self.port)))
        self._open.append(wire)
        if protocol == 3:
            wire.command("HELLO", 3)
        return wire

    def stop(self) -> None:
        """A graceful stop."""
        for wire in self._open:
            wire.close()
        if self._thread.is_alive():
            self.call(lambda app: app.stop())
        self.join()

    def join(self) -> None:
        """Wait until it has stopped."""
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        assert self._failure is None, self._failure


@pytest.fixture
def start_local(tmp_path: Path) -> Iterator[Callable[..., LocalServer]]:
    """Starts servers in this process; keyword arguments are settings."""
    started: list[LocalServer] = []

    def start(**changes: Any) -> LocalServer:
        settings = Settings(port=0, data_dir=tmp_path / f"local{len(started)}", log_level="error")
        started.append(LocalServer(dataclasses.replace(settings, **changes)))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def server(start_local: Callable[..., LocalServer]) -> LocalServer:
    """A server with default settings."""
    return start_local()


@pytest.fixture
def wire(server: LocalServer) -> Wire:
    """A client of `server` that speaks RESP2."""
    return server.connect()


@pytest.fixture(params=[2, 3])
def either(request: pytest.FixtureRequest, server: LocalServer) -> Wire:
    """A client of `server`, once with each protocol."""
    return server.connect(request.param)


@pytest.fixture
def wire_class() -> type[Wire]:
    """`Wire` itself, for connections that a test makes on its own."""
    return Wire


@pytest.fixture
def before(server: LocalServer, wire: Wire) -> Any:
    """A prefix `n` of 3 tokens is there, and what the server holds because of it."""
    publish(wire, "n", 1, 0, 3)
    assert whole(wire, "n", 3) == expected((1, 0, 3))
    return baseline(server)

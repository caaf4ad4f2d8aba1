"""The life of a server process: open the store, listen, run, stop gracefully."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import closing
from pathlib import Path

import uvloop
from pionkv.storage import Durability, StorageError, Store, StoreOptions

from . import logs
from .commands import make_dispatcher
from .config import Settings
from .connection import Connection
from .metrics import Every
from .service import Service

TICK_SECONDS = 1.0
SOCKET_MODE = 0o700
EXIT_FAILURE = 1


class ListenError(Exception):
    """An address to listen on cannot be had."""


class App:
    """One server: its listeners and its stop. Make it and `run` it inside a running event loop."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.loop = asyncio.get_running_loop()
        self.service = Service(settings, store, self.loop, request_stop=self.stop)
        self._dispatcher = make_dispatcher()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._listeners: list[asyncio.Server] = []
        self._ticker: Every | None = None

    async def start(self) -> None:
        """Listen. `service.tcp_port` is the real port from then on.

        Raises:
            ListenError: The port or the socket path is taken or not allowed.
        """
        settings = self.service.settings
        try:
            listener = await self.loop.create_server(
                self._connect, settings.host, settings.port, backlog=settings.backlog, reuse_address=True
            )
            self._listeners.append(listener)
            self.service.tcp_port = listener.sockets[0].getsockname()[1]
            if settings.unix_socket is not None:
                self._listeners.append(await self._listen_unix(settings.unix_socket, settings.backlog))
        except OSError as error:
            raise ListenError(str(error)) from error
        self.service.lag.start()
        self.service.kernels.start()
        self._ticker = Every(self.loop, TICK_SECONDS, self._tick)

    def addresses(self) -> str:
        """Where clients connect, as the ready line shows it."""
        settings = self.service.settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        unix = f" unix://{settings.unix_socket}" if settings.unix_socket else ""
        return f"tcp://{host}:{self.service.tcp_port}{unix}"

    def stop(self) -> None:
        """Begin a graceful stop; asked a second time, do not wait for commands in flight."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def serve(self) -> None:
        """Return after a graceful stop: no new connections, commands in flight finished, replies sent."""
        await self._stop.wait()
        self.service.stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self.service.connections.values()):
            connection.stop_when_idle()
        await self._wait_for_clients(self.service.settings.stop_seconds)
        if self.service.connections:
            logs.logger().warning("commands in flight cut off", clients=len(self.service.connections))
        for connection in list(self.service.connections.values()):
            connection.abort()
        await self.service.no_connections.wait()
        self._shut_down()

    async def _wait_for_clients(self, seconds: float) -> None:
        """Until all connections are gone, the time is over, or somebody is in a hurry."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self.service.no_connections, self._hurry)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _shut_down(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        self.service.lag.stop()
        self.service.kernels.stop()
        self.service.threads.shutdown(wait=True)
        self.service.exports.close()
        if (path := self.service.settings.unix_socket) is not None:
            path.unlink(missing_ok=True)

    def _connect(self) -> Connection:
        return Connection(self.service, self._dispatcher)

    def _tick(self) -> None:
        try:
            self.service.store.tick()
        except (StorageError, OSError) as error:
            logs.logger().error("housekeeping failed", exc_info=error)

    async def _listen_unix(self, path: Path, backlog: int) -> asyncio.Server:
        remove_dead_socket(path)
        before = os.umask(0o777 & ~SOCKET_MODE)
        try:
            return await self.loop.create_unix_server(self._connect, str(path), backlog=backlog)
        finally:
            os.umask(before)


def remove_dead_socket(path: Path) -> None:
    """Remove a socket that nobody listens on any more.

    Raises:
        OSError: Somebody does, or the path is something else.
    """
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(f"{path}: a server listens here already")


def store_options(settings: Settings) -> StoreOptions:
    """The part of the settings that storage understands."""
    return StoreOptions(max_bytes=settings.max_bytes or None, durability=Durability(settings.durability))


async def _main(settings: Settings) -> None:
    with closing(Store.open(settings.data_dir, store_options(settings))) as store:
        app = App(settings, store)
        for number in (signal.SIGTERM, signal.SIGINT):
            app.loop.add_signal_handler(number, app.stop)
        await app.start()
        print(f"pionkv ready on {app.addresses()}", flush=True)
        logs.logger().info("ready", address=app.addresses(), data=str(settings.data_dir), pid=os.getpid())
        await app.serve()
        logs.logger().info("stopped")


def run(settings: Settings) -> int:
    """Serve until told to stop; the process's exit code."""
    logs.configure(settings.log_level, settings.log_format)
    try:
        uvloop.run(_main(settings))
    except (ListenError, StorageError, OSError) as error:
        print(f"pionkv: {error}", file=sys.stderr)
        return EXIT_FAILURE
    return 0

"""The life of a serving process: open the store, accept, run, stop gracefully."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import uvloop
from pionkv.storage import Durability, StorageError, Store, StoreOptions

from . import logs
from .acl.users import UsersError
from .commands import make_dispatcher
from .config import Settings
from .connection import Connection
from .framed import FrameConnection
from .listening import EXIT_FAILURE, ListenError, Listeners, Ports, announce
from .metrics import Every
from .place import Place
from .service import Service
from .tls import HANDSHAKE_SECONDS, SHUTDOWN_SECONDS, TlsError, context_of

if TYPE_CHECKING:
    from .web.site import Site

TICK_SECONDS = 1.0
FLUSH_SECONDS = 0.1


class App:
    """One serving process. Make it and `run` it inside a running event loop.

    Args:
        settings: The settings.
        store: Where everything is.
        place: Which worker this is.
        request_stop: Called when a client asks the server to stop; by default this process stops.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        place: Place | None = None,
        *,
        request_stop: Callable[[], None] | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.service = Service(
            settings, store, self.loop, request_stop=request_stop or self.stop, place=place
        )
        self._dispatcher = make_dispatcher()
        self.service.take_entries(self._dispatcher.entries)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._listeners: Listeners | None = None
        self._servers: list[asyncio.Server] = []
        self._secured: list[asyncio.Server] = []
        """Those of them that speak TLS."""
        self._secured_ports: list[tuple[list[socket.socket], Callable[[], Connection]]] = []
        """What they listen on, kept so that they can be made anew."""
        self._renewing: asyncio.Task[None] | None = None
        self._timers: list[Every] = []
        self._sites: list[Site] = []

    async def start(self) -> None:
        """Bind and accept. `service.ports` are the real ports from then on.

        Raises:
            ListenError: A port or the socket path is taken or not allowed.
            TlsError: The certificate, or what it is checked with, cannot be used.
        """
        self.service.users.insist(self.service.settings.password)
        self._listeners = Listeners(self.service.settings)
        listeners = self._listeners
        await self.accept(listeners.tcp(), listeners.tls(), listeners.binary(), listeners.unix)

    async def accept(
        self,
        tcp: Sequence[socket.socket],
        tls: Sequence[socket.socket],
        binary: Sequence[socket.socket],
        unix: socket.socket | None,
    ) -> None:
        """Accept connections from sockets that listen already.

        Raises:
            TlsError: The certificate, or what it is checked with, cannot be used.
        """
        service = self.service
        context = context_of(service.settings)
        await self._accept_from(tcp, self._connect, None)
        over_tls = service.settings.binary_over_tls
        if not over_tls:
            await self._accept_from(binary, self._connect_framed, None)
        self._secured_ports = [
            ([listener.dup() for listener in tls], self._connect),
            ([listener.dup() for listener in binary if over_tls], self._connect_framed),
        ]
        await self._accept_secured(context)
        service.ports = Ports(_port(tcp), _port(tls), _port(binary))
        if unix is not None:
            # From 3.13 on whoever closes a Unix socket removes its path, unless told that others use it.
            keep: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
            backlog = service.settings.backlog
            server = await self.loop.create_unix_server(self._connect, sock=unix, backlog=backlog, **keep)
            self._servers.append(server)
        await self._open_sites(context)
        service.open_tier()
        self.service.lag.start()
        self.service.kernels.start()
        self._timers.append(Every(self.loop, TICK_SECONDS, self._tick))
        if self.service.place.workers > 1:
            self._timers.append(Every(self.loop, FLUSH_SECONDS, self.service.sums.flush))

    async def _accept_from(
        self,
        listeners: Sequence[socket.socket],
        connect: Callable[[], Connection],
        context: ssl.SSLContext | None,
    ) -> None:
        """Accept what connects to one port, with TLS where there is a context."""
        secured: dict[str, Any] = {}
        if context is not None:
            secured["ssl"] = context
            secured["ssl_handshake_timeout"] = HANDSHAKE_SECONDS
            secured["ssl_shutdown_timeout"] = SHUTDOWN_SECONDS
        backlog = self.service.settings.backlog
        for listener in listeners:
            server = await self.loop.create_server(connect, sock=listener, backlog=backlog, **secured)
            (self._servers if context is None else self._secured).append(server)

    async def _accept_secured(self, context: ssl.SSLContext | None) -> None:
        """Accept what connects to the ports that speak TLS."""
        for listeners, connect in self._secured_ports:
            await self._accept_from([listener.dup() for listener in listeners], connect, context)

    def renew_certificates(self) -> None:
        """Read the certificates anew, for connections from now on; wrong ones change nothing."""
        self._renewing = self.loop.create_task(self._renew_certificates())

    async def _renew_certificates(self) -> None:
        try:
            context = context_of(self.service.settings)
        except TlsError as error:
            logs.logger().error("certificates not renewed", error=str(error))
            return
        before, self._secured = self._secured, []
        # The new servers accept from the same queue before the old ones stop: nobody is refused.
        await self._accept_secured(context)
        for server in before:
            server.close()
        for site in self._sites:
            await site.renew(context)
        logs.logger().info("certificates renewed")

    async def _open_sites(self, context: ssl.SSLContext | None) -> None:
        """Open the HTTP ports that are asked for: the first worker shows the numbers of all."""
        service = self.service
        settings = service.settings
        if service.place.number:
            return
        if settings.http_port >= 0:
            service.http_port = await self._open_site(settings.http_port, context, page=True)
        if settings.metrics_port >= 0:
            service.metrics_port = await self._open_site(settings.metrics_port, context, page=False)

    async def _open_site(self, port: int, context: ssl.SSLContext | None, *, page: bool) -> int:
        # Its libraries are a quarter of what a start costs, and most servers have no such port.
        from .web.site import Site

        site = Site(self.service, page=page)
        self._sites.append(site)
        host = self.service.settings.host
        try:
            real = await site.start(host, port, context)
        except OSError as error:
            raise ListenError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        scheme = "http" if context is None else "https"
        logs.logger().info("http", address=f"{scheme}://{host}:{real}/" + ("" if page else "metrics"))
        return real

    def stop(self) -> None:
        """Begin a graceful stop."""
        self._stop.set()

    def hurry(self) -> None:
        """Stop, and do not wait for commands in flight."""
        self._hurry.set()
        self._stop.set()

    def signalled(self) -> None:
        """A signal asks to stop; a second one to hurry."""
        if self._stop.is_set():
            self.hurry()
        self.stop()

    async def serve(self) -> None:
        """Return after a graceful stop: no new connections, commands in flight finished, replies sent."""
        await self._stop.wait()
        self.service.stopping = True
        for server in (*self._servers, *self._secured):
            server.close()
        for listeners, _ in self._secured_ports:
            for listener in listeners:
                listener.close()
        for connection in list(self.service.connections.values()):
            connection.stop_when_idle()
        await self._wait_for_clients(self.service.settings.stop_seconds)
        if self.service.connections:
            logs.logger().warning("commands in flight cut off", clients=len(self.service.connections))
        for connection in list(self.service.connections.values()):
            connection.abort()
        await self.service.no_connections.wait()
        for site in self._sites:
            await site.stop()
        if self.service.tier is not None:
            await self.service.tier.close()
        self._shut_down()

    async def _wait_for_clients(self, seconds: float) -> None:
        """Until all connections are gone, the time is over, or somebody is in a hurry."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self.service.no_connections, self._hurry)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _shut_down(self) -> None:
        for timer in self._timers:
            timer.stop()
        self.service.lag.stop()
        self.service.kernels.stop()
        self.service.attention.close()
        self.service.threads.shutdown(wait=True)
        self.service.exports.close()
        self.service.sums.flush()
        if self._listeners is not None:
            self._listeners.close()

    def _connect(self) -> Connection:
        return Connection(self.service, self._dispatcher)

    def _connect_framed(self) -> Connection:
        return FrameConnection(self.service, self._dispatcher)

    def look_at_users(self) -> None:
        """Take over what other processes have changed about users; what cannot be read changes nothing."""
        try:
            self.service.users.look()
        except UsersError as error:
            logs.logger().error("users not read", exc_info=error)

    def _tick(self) -> None:
        self.service.close_idle()
        self.look_at_users()
        self.service.misses.examine(self.service.store, self.service.clock())
        self.service.attention.tick()
        self.service.share_budget()
        try:
            if self.service.tier is not None:
                self.service.tier.tick()
            self.service.store.tick()
        except (StorageError, OSError) as error:
            logs.logger().error("housekeeping failed", error=str(error))


def _port(listeners: Sequence[socket.socket]) -> int:
    return int(listeners[0].getsockname()[1]) if listeners else -1


def store_options(settings: Settings, worker: int = 0) -> StoreOptions:
    """The part of the settings that storage understands.

    Under `always` it makes checkpoints as under `everysec`, one before each answer: see `Disk`.
    """
    durability = Durability(settings.durability)
    return StoreOptions(
        max_bytes=settings.max_bytes or None,
        durability=Durability.EVERYSEC if durability is Durability.ALWAYS else durability,
        worker=worker,
        tiered=settings.tier is not None,
    )


def own_process(app: App) -> None:
    """Nothing but this server is in the process: what it has loaded once stays.

    A full garbage collection holds up the event loop, for 0.1 s when it looks at all of that. It passes by
    what was there when the kernels were loaded.
    """
    app.service.kernels.afterwards = gc.freeze


async def _serve_alone(settings: Settings) -> None:
    with closing(Store.open(settings.data_dir, store_options(settings))) as store:
        app = App(settings, store)
        own_process(app)
        for number in (signal.SIGTERM, signal.SIGINT):
            app.loop.add_signal_handler(number, app.signalled)
        app.loop.add_signal_handler(signal.SIGHUP, app.renew_certificates)
        await app.start()
        announce(settings, app.service.ports)
        await app.serve()
        logs.logger().info("stopped")


def run(settings: Settings) -> int:
    """Serve in this process until told to stop; its exit code."""
    logs.configure(settings.log_level, settings.log_format)
    try:
        uvloop.run(_serve_alone(settings))
    except (ListenError, StorageError, TlsError, UsersError, OSError) as error:
        print(f"pionkv: {error}", file=sys.stderr)
        return EXIT_FAILURE
    return 0

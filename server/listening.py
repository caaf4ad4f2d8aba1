"""The sockets that a server listens on: bound once, by whoever starts it, and handed to those who accept.

Where the system spreads connections over the sockets that share a port (SO_REUSEPORT on Linux) each worker
has a socket of its own; elsewhere all workers accept from one. A Unix socket is always shared.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from . import logs
from .config import Settings

EXIT_FAILURE = 1
SOCKET_MODE = 0o700
BALANCES = sys.platform == "linux" and hasattr(socket, "SO_REUSEPORT")
"""Elsewhere SO_REUSEPORT gives every connection to one of the sockets."""


class ListenError(Exception):
    """An address to listen on cannot be had."""


class PortSockets:
    """The sockets of one TCP port.

    Args:
        host: Address or name to listen on; every address of a name is.
        port: TCP port; 0 picks a free one.
        backlog: Connections waiting to be accepted, per socket.
        workers: How many processes accept.

    Attributes:
        port: The real port.

    Raises:
        ListenError: The port is taken or not allowed.
    """

    def __init__(self, host: str, port: int, backlog: int, workers: int) -> None:
        self._backlog = backlog
        self._balanced = BALANCES and workers > 1
        self._sockets: dict[int, list[socket.socket]] = {}
        self.port = port
        try:
            self._addresses = _addresses(host, port)
            self._sockets[0] = self._bind_first()
            for number in range(1, workers if self._balanced else 1):
                self._sockets[number] = self._bind_again()
        except OSError as error:
            self.close()
            raise ListenError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error

    def of(self, worker: int) -> list[socket.socket]:
        """The sockets of a worker; bound anew when they were given up."""
        if not self._balanced:
            return self._sockets[0]
        if worker not in self._sockets:
            self._sockets[worker] = self._bind_again()
        return self._sockets[worker]

    def give_up(self, worker: int) -> None:
        """Nobody accepts for this worker for a while: others get its connections, where each has a socket."""
        if self._balanced:
            for listener in self._sockets.pop(worker, ()):
                listener.close()

    def close(self) -> None:
        """Close every socket."""
        for listeners in self._sockets.values():
            for listener in listeners:
                listener.close()
        self._sockets.clear()

    def _bind_first(self) -> list[socket.socket]:
        """Bind alone first: sockets that share a port do not notice another server on it."""
        alone = [self._bind(family, address, shared=False) for family, address in self._addresses]
        if not self._balanced:
            return alone
        for listener in alone:
            listener.close()
        return self._bind_again()

    def _bind_again(self) -> list[socket.socket]:
        return [self._bind(family, address, shared=True) for family, address in self._addresses]

    def _bind(self, family: int, address: tuple[str, int], *, shared: bool) -> socket.socket:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], self.port, *address[2:]))
            listener.listen(self._backlog)
        except BaseException:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        return listener


class Ports(NamedTuple):
    """The real ports of a server; -1: there is none of the kind. In the order of the ready line."""

    tcp: int = -1
    tls: int = -1
    binary: int = -1


class Listeners:
    """The sockets of one server: plain port, TLS port, binary lane and Unix socket, each where it is wanted.

    Args:
        settings: What to listen on.

    Raises:
        ListenError: A port or the socket path is taken or not allowed, or there is nothing to listen on.
    """

    def __init__(self, settings: Settings) -> None:
        self._path = settings.unix_socket
        self._of: dict[str, PortSockets] = {}
        """By the field of `Ports`."""
        self._unix: socket.socket | None = None
        wanted = Ports(settings.port, settings.tls_port, settings.binary_port)
        if wanted.tcp < 0 and wanted.tls < 0 and self._path is None:
            raise ListenError("nothing to listen on: port and tls_port are -1, and there is no unix_socket")
        try:
            for kind, port in wanted._asdict().items():
                if port >= 0:
                    self._of[kind] = PortSockets(settings.host, port, settings.backlog, settings.workers)
            if self._path is not None:
                self._unix = _bind_unix(self._path, settings.backlog)
        except OSError as error:
            self.close()
            raise ListenError(f"cannot listen on {self._path}: {error.strerror or error}") from error
        except ListenError:
            self.close()
            raise

    def tcp(self, worker: int = 0) -> list[socket.socket]:
        """The sockets of the plain port that a worker accepts from."""
        return self._sockets("tcp", worker)

    def tls(self, worker: int = 0) -> list[socket.socket]:
        """The sockets of the TLS port that a worker accepts from."""
        return self._sockets("tls", worker)

    def binary(self, worker: int = 0) -> list[socket.socket]:
        """The sockets of the binary lane that a worker accepts from."""
        return self._sockets("binary", worker)

    @property
    def unix(self) -> socket.socket | None:
        """The Unix socket, that of all workers."""
        return self._unix

    @property
    def ports(self) -> Ports:
        """The real ports."""
        return Ports(**{kind: sockets.port for kind, sockets in self._of.items()})

    def give_up(self, worker: int) -> None:
        """Nobody accepts for this worker for a while."""
        for sockets in self._of.values():
            sockets.give_up(worker)

    def close(self) -> None:
        """Close every socket, and remove the Unix socket's path."""
        for sockets in self._of.values():
            sockets.close()
        if self._unix is not None and self._path is not None:
            self._unix.close()
            self._unix = None
            self._path.unlink(missing_ok=True)

    def _sockets(self, kind: str, worker: int) -> list[socket.socket]:
        return self._of[kind].of(worker) if kind in self._of else []


def _addresses(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(errno.EADDRNOTAVAIL, error.strerror) from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))  # type: ignore[misc]


def _bind_unix(path: Path, backlog: int) -> socket.socket:
    _remove_dead_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~SOCKET_MODE)
    try:
        listener.bind(str(path))
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _remove_dead_socket(path: Path) -> None:
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
            with suppress(FileNotFoundError):
                path.unlink()
            return
    raise OSError(errno.EADDRINUSE, f"{path}: a server listens here already")


def addresses(settings: Settings, ports: Ports) -> str:
    """Where clients connect, as the ready line shows it."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    found = [f"{kind}://{host}:{number}" for kind, number in ports._asdict().items() if number >= 0]
    if settings.unix_socket:
        found.append(f"unix://{settings.unix_socket}")
    return " ".join(found)


def announce(settings: Settings, ports: Ports) -> None:
    """Say, on standard output and in the log, that clients may connect."""
    address = addresses(settings, ports)
    print(f"pionkv ready on {address}", flush=True)
    logs.logger().info("ready", address=address, data=str(settings.data_dir), pid=os.getpid())

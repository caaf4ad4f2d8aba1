"""Where a server is, and what it wants to hear first."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from .deadline import Deadline
from .tls import Tls

DEFAULT_PORT = 1974
TLS_WORDS = {"ssl_ca_certs": "ca_file", "ssl_certfile": "cert_file", "ssl_keyfile": "key_file"}
"""What may follow `?` in a rediss:// address, under redis-py's names, beside `ssl_cert_reqs`."""
VERIFY = {"required": True, "none": False}


@dataclass(frozen=True)
class Endpoint:
    """The address of a server. Raises `ValueError` for a port that is none, or TLS files that cannot be used.

    Attributes:
        host: Name or address; an address spares the name lookup, which no deadline bounds.
        port: TCP port.
        unix_socket_path: If given, used instead of host and port.
        username: User that the password belongs to, if the server has users.
        password: Password, if the server wants one.
        tls: How TCP connections are secured; None: they are not.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    unix_socket_path: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None

    def __post_init__(self) -> None:
        if self.unix_socket_path is None and not 0 < self.port <= 65535:
            raise ValueError(f"port is {self.port}, it must be within 1..65535")
        if self.tls is not None:
            _ = self.tls.context

    @classmethod
    def of(
        cls,
        host: str,
        port: int,
        unix_socket_path: str | None,
        username: str | None,
        password: str | None,
        tls: Tls | None,
        url: str | None,
    ) -> Endpoint:
        """An address in parts, or whole. Raises `ValueError` as `from_url`."""
        return (
            cls(host, port, unix_socket_path, username, password, tls) if url is None else cls.from_url(url)
        )

    @classmethod
    def from_url(cls, url: str) -> Endpoint:
        """Read an address as redis-py writes it.

        Args:
            url: `redis://[[user]:password@]host[:port]`, `unix://[[user]:password@]/path`, or for TLS
                `rediss://...`, perhaps with `?ssl_ca_certs=`, `ssl_certfile=`, `ssl_keyfile=` (files) and
                `ssl_cert_reqs=none`.

        Raises:
            ValueError: It is something else, or a file that it names is not what it should be.
        """
        parts = urlsplit(url)
        given: dict[str, Any] = {"username": _text(parts.username), "password": _text(parts.password)}
        if parts.scheme == "unix" and parts.path and not parts.query:
            return cls(unix_socket_path=unquote(parts.path), **given)
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.path not in ("", "/", "/0"):
            raise ValueError("an address is redis://host:port, rediss://host:port (TLS) or unix:///path")
        words = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.scheme == "rediss":
            given["tls"] = _tls(words)
        elif words:
            raise ValueError(f"redis:// takes no {', '.join(words)}; TLS is rediss://")
        return cls(parts.hostname, DEFAULT_PORT if parts.port is None else parts.port, **given)

    def __str__(self) -> str:
        return self.unix_socket_path or f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine, as far as the address tells."""
        if self.unix_socket_path is not None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def may_have_unix_twin(self) -> bool:
        """Whether it is reached over TCP and may listen on a Unix socket of this machine, too."""
        return self.is_local and self.unix_socket_path is None

    @property
    def greeting(self) -> tuple[tuple[str, ...], ...]:
        """The commands that open a connection."""
        if self.password is None:
            return (("PING",),)
        user = () if self.username is None else (self.username,)
        return (("AUTH", *user, self.password), ("PING",))

    @property
    def redis_options(self) -> dict[str, Any]:
        """The same address for redis-py."""
        secured = {} if self.tls is None or self.unix_socket_path is not None else self.tls.redis_options()
        return {
            "host": self.host,
            "port": self.port,
            "unix_socket_path": self.unix_socket_path,
            "username": self.username,
            "password": self.password,
            **secured,
        }

    def tune(self, connection: socket.socket) -> None:
        """Set up a socket for TCP: no waiting for more to send, and within a machine no pacing.

        There is no path within a machine on which to lose or queue anything; a system whose congestion
        control paces (BBR) would still set a timer between any two parts of what is stored.
        """
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.is_local and hasattr(socket, "TCP_CONGESTION"):
            with suppress(OSError):  # a system without it
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")

    def connect(self, deadline: Deadline) -> socket.socket:
        """Open a connection.

        Raises:
            OSError: It was refused, took too long, or the server's certificate is not trusted.
        """
        if self.unix_socket_path is not None:
            return _connect_unix(self.unix_socket_path, deadline)
        connection = socket.create_connection((self.host, self.port), timeout=deadline.wait())
        try:
            self.tune(connection)
            if self.tls is None:
                return connection
            connection.settimeout(deadline.wait())
            return self.tls.context.wrap_socket(connection, server_hostname=self.host)
        except BaseException:
            connection.close()
            raise


def _connect_unix(path: str, deadline: Deadline) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(deadline.wait())
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def _tls(words: dict[str, str]) -> Tls:
    verify = words.pop("ssl_cert_reqs", "required")
    unknown = words.keys() - TLS_WORDS.keys()
    if unknown or verify not in VERIFY:
        allowed = f"{', '.join(TLS_WORDS)}, and ssl_cert_reqs, which is one of {', '.join(VERIFY)}"
        raise ValueError(f"rediss:// takes {allowed}")
    return Tls(**{TLS_WORDS[word]: text for word, text in words.items()}, verify=VERIFY[verify])


def _text(part: str | None) -> str | None:
    """A part of a URL; empty ones are none."""
    return unquote(part) if part else None

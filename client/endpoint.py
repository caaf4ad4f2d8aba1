"""Where a server is, and what it wants to hear first."""

import socket
from dataclasses import dataclass, field
from ipaddress import ip_address

from .deadline import Deadline

DEFAULT_PORT = 1974


@dataclass(frozen=True)
class Endpoint:
    """The address of a server.

    Attributes:
        host: Name or address; an address spares the name lookup, which no deadline bounds.
        port: TCP port.
        unix_socket_path: If given, used instead of host and port.
        username: User that the password belongs to, if the server has users.
        password: Password, if the server wants one.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    unix_socket_path: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)

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
    def greeting(self) -> tuple[tuple[str, ...], ...]:
        """The commands that open a connection."""
        if self.password is None:
            return (("PING",),)
        user = () if self.username is None else (self.username,)
        return (("AUTH", *user, self.password), ("PING",))

    def connect(self, deadline: Deadline) -> socket.socket:
        """Open a connection.

        Raises:
            OSError: It was refused, or took too long.
        """
        if self.unix_socket_path is None:
            connection = socket.create_connection((self.host, self.port), timeout=deadline.wait())
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(deadline.wait())
            connection.connect(self.unix_socket_path)
        except BaseException:
            connection.close()
            raise
        return connection

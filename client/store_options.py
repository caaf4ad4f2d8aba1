"""What the clients of a store are told: where it is, and how long a call may take."""

from __future__ import annotations

from abc import ABC, abstractmethod

from .buffers import KEPT_BYTES, Buffers
from .endpoint import DEFAULT_PORT, Endpoint
from .files import Files
from .tls import Tls


class StoreOptions(ABC):
    """The base of `StoreClient` and `AsyncStoreClient`, which are made alike.

    Attributes:
        endpoint: Where the server is.
        buffers: The memory that fetched rows come in.
        files: What came out of the server's files, and why the rest did not.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        unix_socket_path: str | None = None,
        username: str | None = None,
        password: str | None = None,
        tls: Tls | None = None,
        url: str | None = None,
        timeout: float = 30.0,
        silence: float = 5.0,
        connect_timeout: float = 2.0,
        kept_bytes: int = KEPT_BYTES,
        prefer_unix: bool = True,
        prefer_files: bool = True,
    ) -> None:
        """Prepare; a connection is opened when it is needed.

        Args:
            host: The server's name or address.
            port: The server's TCP port.
            unix_socket_path: Path of the server's Unix socket, used instead of host and port.
            username: User that the password belongs to.
            password: The server's password.
            tls: How TCP connections are secured; None: they are not.
            url: All of these as one address, see `Endpoint.from_url`: `rediss://host:port` is TLS.
            timeout: Seconds that one call may take in all, the wait for its turn aside.
            silence: Seconds without a byte moving after which the server counts as hung.
            connect_timeout: Seconds within which a new connection must have answered.
            kept_bytes: Bytes of memory of fetched rows that are kept for the next ones, at most.
            prefer_unix: Whether rows take the Unix socket of a server on this machine, if it has one, once
                a MiB has moved over TCP.
            prefer_files: Whether ranges of 4 MiB and more are taken from the files of a server on this
                machine, where they can be read and hold the rows in the form that is asked for.

        Raises:
            ValueError: The address is none, or `kept_bytes` is below 0.
        """
        self.endpoint = Endpoint.of(host, port, unix_socket_path, username, password, tls, url)
        self.buffers = Buffers(kept_bytes)
        self.files = Files(prefer_files and self.endpoint.is_local)
        self._prepare(timeout, silence, connect_timeout, prefer_unix)

    @abstractmethod
    def _prepare(self, timeout: float, silence: float, connect: float, prefer_unix: bool) -> None:
        """Make what connects to the endpoint; `prefer_unix`: it may be exchanged for a Unix socket."""

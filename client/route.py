"""How rows come to a client: out of the server's files, over a Unix socket, or over TCP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .endpoint import Endpoint

LaneName = Literal["auto", "map", "unix", "tcp"]
"""`auto`: files and Unix socket of a server on this machine, where they can be used; `map`: try files
whatever the address looks like; `unix`, `tcp`: the connection as it was asked for, no files."""

LANES: tuple[LaneName, ...] = ("auto", "map", "unix", "tcp")


@dataclass(slots=True)
class Route:
    """What is tried, and what came of it.

    Attributes:
        maps: Whether the server's files are tried first.
        mapped_bytes: Bytes taken from files.
        not_mapped: Why the last prefix was not taken from files although that was tried.
    """

    maps: bool = False
    mapped_bytes: int = 0
    not_mapped: str | None = None

    @classmethod
    def of(cls, lane: LaneName, endpoint: Endpoint) -> Route:
        """The route for a lane.

        Raises:
            ValueError: There is no such lane, or it needs the path of a socket.
        """
        if lane not in LANES:
            raise ValueError(f"lane is {lane!r}, it must be one of {', '.join(LANES)}")
        if lane == "unix" and endpoint.unix_socket_path is None:
            raise ValueError("lane 'unix' needs unix_socket_path; 'auto' finds it")
        return cls(maps=lane == "map" or (lane == "auto" and endpoint.is_local))

"""How rows come to a client: out of the server's files, over a Unix socket, or over TCP."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from .endpoint import Endpoint

LaneName = Literal["auto", "map", "unix", "tcp"]
"""`auto`: files and Unix socket of a server on this machine, where they can be used; `map`: try files
whatever the address looks like; `unix`, `tcp`: the connection as it was asked for, no files."""

MOST_CONNECTIONS = 4
"""For one prefix at once: more of them were not measured."""

LANES: tuple[LaneName, ...] = ("auto", "map", "unix", "tcp")


def connections_here() -> int:
    """How many connections pay on this machine: the server, or the model, needs cores, too."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_CONNECTIONS, cores // 2))


@dataclass(slots=True)
class Route:
    """What is tried, and what came of it.

    Attributes:
        maps: Whether the server's files are tried first.
        connections: Over how many of them a large prefix comes at once, at most, where it comes over them.
        mapped_bytes: Bytes taken from files.
        used: Connections that the last prefix came over; 0: none did.
        not_mapped: Why the last prefix was not taken from files although that was tried.
    """

    maps: bool = False
    connections: int = 1
    mapped_bytes: int = 0
    used: int = 0
    not_mapped: str | None = None

    @classmethod
    def of(cls, lane: LaneName, endpoint: Endpoint, connections: int | None = None) -> Route:
        """The route for a lane.

        Args:
            lane: Its name.
            endpoint: Where the server is.
            connections: At once, at most; None: as many as pay on this machine.

        Raises:
            ValueError: There is no such lane, or it needs the path of a socket, or connections are fewer
                than 1.
        """
        if lane not in LANES:
            raise ValueError(f"lane is {lane!r}, it must be one of {', '.join(LANES)}")
        if lane == "unix" and endpoint.unix_socket_path is None:
            raise ValueError("lane 'unix' needs unix_socket_path; 'auto' finds it")
        if connections is not None and connections < 1:
            raise ValueError(f"connections is {connections}, it must be at least 1")
        most = connections_here() if connections is None else connections
        return cls(connections=most, maps=lane == "map" or (lane == "auto" and endpoint.is_local))

"""A server on this machine may be listening on a Unix socket, too, which moves more bytes a second."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

from . import requests
from .deadline import Deadline
from .endpoint import Endpoint
from .errors import ServerRefused, Unavailable
from .lane import Lane, Traffic

WORTH_BYTES = 1 << 20
"""Bytes that must have moved over TCP before it is looked for: short exchanges gain nothing."""


def unix_twin(
    lane: Lane, endpoint: Endpoint, deadline: Deadline, traffic: Traffic
) -> tuple[Endpoint, Lane] | None:
    """The same server's Unix socket and a connection to it; None when there is none that can be used.

    Args:
        lane: A connection to the server, without replies outstanding.
        endpoint: Where it was connected to.
        deadline: Bounds the questions.
        traffic: Where the new connection's bytes are counted.

    Raises:
        Unavailable: `lane` broke.
    """
    try:
        path = _told(lane, ("CONFIG", "GET", "unixsocket"), deadline)
        run = _run(lane, deadline)
    except ServerRefused:
        return None
    if not path or not _is_socket(path):
        return None
    twin = replace(endpoint, unix_socket_path=os.fsdecode(path))
    try:
        found = Lane.open(twin, deadline, traffic)
        if _run(found, deadline) == run != "":
            return twin, found
        found.close()
    except (Unavailable, ServerRefused):
        pass
    return None


def _told(lane: Lane, command: tuple[str, ...], deadline: Deadline) -> bytes:
    lane.send(command, deadline)
    reply = lane.receive(deadline)
    value = reply[1] if isinstance(reply, list) and len(reply) == 2 else b""
    return value if isinstance(value, bytes) else b""


def _run(lane: Lane, deadline: Deadline) -> str:
    """What names this run of the server: a path alone may mean another one's socket."""
    lane.send(("INFO", "server"), deadline)
    return requests.read_lines(lane.receive(deadline)).get("run_id", "")


def _is_socket(path: bytes) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False

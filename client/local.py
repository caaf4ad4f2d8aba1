"""A server on this machine may be listening on a Unix socket, too, which moves more bytes a second."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

from . import requests
from .async_lane import AsyncLane
from .deadline import Deadline
from .endpoint import Endpoint
from .errors import ServerRefused, Unavailable
from .lane import Lane, Traffic

WORTH_BYTES = 1 << 20
"""Bytes that must have moved over TCP before it is looked for: short exchanges gain nothing."""

_PATH = ("CONFIG", "GET", "unixsocket")
_RUN = ("INFO", "server")
"""Names this run of the server: a path alone may mean another one's socket."""


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
        twin = _twin_of(endpoint, _told(lane, _PATH, deadline))
        run = _run_of(_told(lane, _RUN, deadline))
    except ServerRefused:
        return None
    if twin is None:
        return None
    try:
        found = Lane.open(twin, deadline, traffic)
        if _run_of(_told(found, _RUN, deadline)) == run != "":
            return twin, found
        found.close()
    except (Unavailable, ServerRefused):
        pass
    return None


async def async_unix_twin(
    lane: AsyncLane, endpoint: Endpoint, deadline: Deadline
) -> tuple[Endpoint, AsyncLane] | None:
    """As `unix_twin`, of a connection of an event loop."""
    try:
        twin = _twin_of(endpoint, await _async_told(lane, _PATH, deadline))
        run = _run_of(await _async_told(lane, _RUN, deadline))
    except ServerRefused:
        return None
    if twin is None:
        return None
    try:
        found = await AsyncLane.open(twin, deadline)
    except (Unavailable, ServerRefused):
        return None
    try:
        if _run_of(await _async_told(found, _RUN, deadline)) == run != "":
            return twin, found
    except (Unavailable, ServerRefused):
        pass
    except BaseException:
        found.close()
        raise
    found.close()
    return None


def _told(lane: Lane, command: tuple[str, ...], deadline: Deadline) -> object:
    lane.send(command, deadline)
    return lane.receive(deadline)


async def _async_told(lane: AsyncLane, command: tuple[str, ...], deadline: Deadline) -> object:
    await lane.send(command, deadline)
    return await lane.receive(deadline)


def _twin_of(endpoint: Endpoint, reply: object) -> Endpoint | None:
    """Where the server says that its Unix socket is; None: it has none, or that is no socket here."""
    path = reply[1] if isinstance(reply, list) and len(reply) == 2 else b""
    if not isinstance(path, bytes) or not path or not _is_socket(path):
        return None
    return replace(endpoint, unix_socket_path=os.fsdecode(path))


def _run_of(reply: object) -> str:
    return requests.read_lines(reply).get("run_id", "")


def _is_socket(path: bytes) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False

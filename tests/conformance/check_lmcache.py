"""LMCache's Redis connectors: the real package where it was asked for, and the commands that they send."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import peers
from outcome import Check
from server_process import ServerProcess

SECONDS = 600


def checks(server: ServerProcess, *, long: bool) -> Iterator[Check]:
    """The command pattern always; the package, which brings torch, in the long version."""
    _, path = peers.redis_client("redis-py 8", fast=True)
    run = partial(peers.run_driver, timeout=SECONDS)
    pattern = partial(run, sys.executable, "lmcache_pattern", str(server.port), path=path, bare=True)
    yield Check(
        "LMCache's commands over redis-py", "put, contains, get, list, remove", lambda: pattern().strip()
    )
    if long:
        yield Check(
            peers.LMCACHE.replace("==", " "),
            "RedisConnector and RESPConnector (C++)",
            lambda: run(peers.lmcache_python(), "lmcache_real", str(server.port)).splitlines()[-1],
        )

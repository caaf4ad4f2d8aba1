"""redis-py and valkey-py, release by release, with and without their C parser, in each of their protocols."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial

import peers
from outcome import Check, holds
from server_process import ServerProcess

PASSWORD = "correct horse"
SECONDS = 600
PROTOCOLS = {0: "its own choice of protocol", 2: "RESP2", 3: "RESP3"}
ONE_PROTOCOL = {"redis-py 4.6"}
"""Releases that know RESP2 only and have no argument for it."""


def checks(server: ServerProcess, *, long: bool) -> Iterator[Check]:
    """Each client in each way that it can be set up."""
    locked = ServerProcess(server.data_dir.with_name("locked"), "--password", PASSWORD)
    locked.start()
    try:
        for name in peers.REDIS_CLIENTS:
            for fast in (False, True):
                for protocol in (0,) if name in ONE_PROTOCOL else PROTOCOLS:
                    parser = "C parser" if fast else "Python parser"
                    yield Check(
                        f"{name}, {parser}",
                        PROTOCOLS[protocol],
                        partial(drive, server.port, locked.port, name, fast, protocol),
                    )
    finally:
        locked.close()


def drive(port: int, locked_port: int, name: str, fast: bool, protocol: int) -> str:
    """Run the whole surface through one client."""
    module, path = peers.redis_client(name, fast=fast)
    arguments = (module, str(port), str(locked_port), str(protocol))
    printed = peers.run_driver(
        sys.executable, "redis_client", *arguments, path=path, bare=True, timeout=SECONDS
    )
    result = json.loads(printed)
    holds("\n".join(f"{check}: {trace}" for check, trace in result["failed"].items()), not result["failed"])
    return f"{result['version']}: {len(result['passed'])} groups of commands"

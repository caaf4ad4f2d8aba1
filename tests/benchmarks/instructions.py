"""Instructions of the server's process for one small command in a pipeline of 16, counted by valgrind.

Counts do not depend on what else the machine does. Connections are driven in the process, without sockets:
what the system and the event loop add is left out. A count is the difference of two runs.

    python tests/benchmarks/instructions.py [PING GET ...]     (needs valgrind)
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from pionkv.protocol import batch
from pionkv.protocol.request import encode_command
from pionkv.server import timing
from pionkv.server.app import store_options
from pionkv.server.commands import make_dispatcher
from pionkv.server.compiled import compile_scan
from pionkv.server.config import Settings
from pionkv.server.connection import Connection
from pionkv.server.service import Service
from pionkv.storage import Store

CONNECTIONS = PIPELINE = 16
MAP_BYTES = 1 << 30
"""Of the catalog: as many as valgrind can map."""
SHORT, LONG = 50, 1050
"""Rounds of the two runs; in a round each connection sends one pipeline. What else a run does takes a hundred
million instructions more or fewer from one time to the next: with few rounds that would be counted."""
ROW = bytes(128)
PREPARED = [
    ("SET", "key:__rand_int__", "VXK"),
    ("KV.PREFIX.REGISTER", "there", 64, "fp16"),
    *[("V.STOREBATCH", f"there_{side}", 0, 0, 1, ROW, "FMT", "F16") for side in ("pk", "pv")],
]
WORKS: dict[str, tuple[str, ...]] = {
    "PING": ("PING",),
    "SET": ("SET", "key:__rand_int__", "VXK"),
    "GET": ("GET", "key:__rand_int__"),
    "LOOKUP, a miss": ("KV.PREFIX.LOOKUP", "none"),
    "LOOKUP, a hit": ("KV.PREFIX.LOOKUP", "there"),
}


class Transport:
    """Takes replies and keeps the last."""

    def __init__(self) -> None:
        self.last = b""

    def get_extra_info(self, name: str) -> Any:
        return self if name == "socket" else ("127.0.0.1", 1)

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        self.last = data

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: None


def feed(connection: Connection, data: bytes) -> None:
    buffer = connection.get_buffer(len(data))
    buffer[: len(data)] = data
    connection.buffer_updated(len(data))


def encoded(*words: bytes | str | int) -> bytes:
    return b"".join(map(bytes, encode_command(words)))


async def run(work: str, rounds: int, folder: Path) -> None:
    # Valgrind is dozens of times slower than the machine: what is quick would count as slow.
    timing.NS_A_MILLISECOND = timing.NEVER
    batch.use(compile_scan())
    settings = Settings(data_dir=folder, slowlog_log_slower_than=-1)
    store = Store.open(folder, replace(store_options(settings), catalog_map_bytes=MAP_BYTES))
    service, dispatcher = Service(settings, store, asyncio.get_running_loop()), make_dispatcher()
    service.take_entries(dispatcher.entries)
    transports = [Transport() for _ in range(CONNECTIONS)]
    connections = [Connection(service, dispatcher) for _ in transports]
    for connection, transport in zip(connections, transports, strict=True):
        connection.connection_made(transport)  # type: ignore[arg-type]
    for words in PREPARED:
        feed(connections[0], encoded(*words))
        await asyncio.sleep(0.01)
        assert transports[0].last == b"+OK\r\n", transports[0].last
    data = encoded(*WORKS[work]) * PIPELINE
    for _ in range(rounds):
        for connection in connections:
            feed(connection, data)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    first = transports[0].last
    assert first and not first.startswith(b"-") and all(one.last == first for one in transports), first
    store.close()


def counted(work: str, rounds: int) -> int:
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command += [sys.executable, __file__, "--run", work, str(rounds)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "0"}
    )
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    assert found, done.stderr
    return int(found[1].replace(",", ""))


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(run(sys.argv[2], int(sys.argv[3]), Path(folder)))
        return
    commands = (LONG - SHORT) * CONNECTIONS * PIPELINE
    for work in sys.argv[1:] or WORKS:
        counted(work, 1)  # compiles what was edited
        print(f"{work}: {(counted(work, LONG) - counted(work, SHORT)) // commands} instructions", flush=True)


if __name__ == "__main__":
    main()

"""What drives a server in a benchmark: a lean client, contents for it, engines to compare with, and cores."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MIB = 1 << 20
DIM = 1024
ROW = 2 * DIM
DISTINCT = 3
"""Different contents that rounds rotate through."""


class Wire:
    """A lean client: commands out in as few sends as they have large parts, bulk strings into one buffer."""

    def __init__(self, address: tuple[str, int] | str, room: int = 65 * MIB) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.connect(address)
        if family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.room = memoryview(np.ones(room, np.uint8)).cast("B")
        self._rest = b""

    def send(self, *args: bytes | memoryview) -> None:
        small = b"*%d\r\n" % len(args)
        for arg in args:
            small += b"$%d\r\n" % len(arg)
            if len(arg) < 1 << 14:
                small += bytes(arg)
            else:
                self.socket.sendall(small)
                self.socket.sendall(arg)
                small = b""
            small += b"\r\n"
        self.socket.sendall(small)

    def line(self) -> bytes:
        while b"\r\n" not in self._rest:
            self._rest += self.socket.recv(4096)
        line, self._rest = self._rest.split(b"\r\n", 1)
        if line.startswith(b"-"):
            raise RuntimeError(line.decode())
        return line

    def bulk(self, at: int = 0) -> int:
        """Receive one bulk string to `room[at:]`; its length."""
        size = int(self.line()[1:])
        have = min(len(self._rest), size)
        self.room[at : at + have] = self._rest[:have]
        self._rest = self._rest[have:]
        while have < size:
            have += self.socket.recv_into(self.room[at + have : at + size])
        while len(self._rest) < 2:
            self._rest += self.socket.recv(2 - len(self._rest))
        self._rest = self._rest[2:]
        return size

    def call(self, *args: bytes | memoryview) -> bytes:
        self.send(*args)
        return self.line()


class Contents:
    """Random halfs, finite, in several versions."""

    def __init__(self, size: int) -> None:
        rng = np.random.default_rng(size)
        self.versions = [
            memoryview(rng.standard_normal(size // 2).astype(np.float16)).cast("B") for _ in range(DISTINCT)
        ]
        self.turn = 0

    def next(self) -> memoryview:
        self.turn += 1
        return self.versions[self.turn % DISTINCT]


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process so far, to the nanosecond: /proc counts in hundredths."""
    return time.clock_gettime((~pid << 3) | 2)  # its clock, as clock_getcpuclockid(3) makes it on Linux


@contextmanager
def bare_sender(kind: str, data: memoryview, cores: set[int]) -> Iterator[Callable[[memoryview], None]]:
    """A thread-less peer process that sends `data` for each byte it gets: the socket's own speed."""
    if kind == "TCP":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address: Any = listener.getsockname()
            ours = socket.create_connection(address)
            theirs, _ = listener.accept()
    else:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, cores)
        ours.close()
        while theirs.recv(1):
            theirs.sendall(data)
        os._exit(0)
    theirs.close()

    def receive(room: memoryview) -> None:
        ours.send(b"x")
        have = 0
        while have < len(data):
            have += ours.recv_into(room[have : len(data)])

    try:
        yield receive
    finally:
        ours.close()
        os.waitpid(child, 0)


def two_cores() -> tuple[set[int], set[int]]:
    """Two cores that share nothing if there are such, else two of those there are, or twice the same."""
    first, *others = sorted(os.sched_getaffinity(0))
    topology = Path(f"/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list")
    siblings = re.findall(r"\d+", topology.read_text()) if topology.exists() else []
    apart = [core for core in others if str(core) not in siblings] or others or [first]
    return {first}, {apart[0]}


class PeerServer(NamedTuple):
    """A server beside ours."""

    port: int
    pid: int


@contextmanager
def peer_server(program: str = "redis-server") -> Iterator[PeerServer]:
    """A server of plain keys without persistence, as Redis and Valkey are."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [program, "--port", str(port), "--save", "", "--appendonly", "no", "--io-threads", "1"],
        stdout=subprocess.DEVNULL,
    )
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                threading.Event().wait(0.05)
        yield PeerServer(port, process.pid)
    finally:
        process.terminate()
        process.wait()

"""Peers that do not read, or send slowly: others do not notice, and memory stays flat."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import numpy as np
import pytest
from pionkv.kernels import Element, LayerSpec, pack, unpack

DIM, COUNT = 1024, 8_000
ROWS = np.random.default_rng(8).standard_normal((COUNT, DIM), np.float32)
STALLED = 40
MIB = 1 << 20


def anonymous_bytes(pid):
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"Anonymous:\s+(\d+) kB", text)[1]) * 1024


class Remote:
    """Connections to a server process, with small receive buffers: a peer that does not read stalls soon."""

    def __init__(self, port, wire_class):
        self.port = port
        self.wire_class = wire_class

    def connect(self):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.connect(("127.0.0.1", self.port))
        return self.wire_class(connection)


@pytest.fixture
def remote(server_process, wire_class):
    return Remote(server_process.port, wire_class)


@pytest.mark.parametrize("format, fetch", [("fp32", "RAW"), ("mlx4g32", "F32"), ("mlx4g32", "F16")])
def test_clients_that_never_read(format, fetch, remote, server_process) -> None:
    wire = remote.connect()
    wire.wait_for_kernels()
    wire.command("V.CREATE", "s", DIM, "VQUANT", format)
    assert wire.command("V.STOREBATCH", "s", 0, 0, COUNT, ROWS.tobytes()) == "OK"
    expected = wire.command("V.FETCH", "s", 0, "RANGE", 0, COUNT, "FMT", fetch)
    assert expected == expected_bytes(format, fetch)
    before = anonymous_bytes(server_process.pid)
    stalled = [remote.connect() for _ in range(STALLED)]
    for peer in stalled:
        peer.send(b"V.FETCH s 0 RANGE 0 %d FMT %b\r\nPING\r\n" % (COUNT, fetch.encode()))
    while b"cmd=v.fetch" not in wire.command("CLIENT", "LIST"):
        pass
    for _ in range(200):
        assert wire.command("PING") == "PONG"
    # What is kept for a peer that does not read is given back a second after it has stopped.
    while anonymous_bytes(server_process.pid) > before + 16 * MIB:
        assert wire.command("PING") == "PONG"
    assert wire.command("V.FETCH", "s", 0, "RANGE", 0, COUNT, "FMT", fetch) == expected
    for peer in stalled[:3]:
        assert peer.reply() == expected
        assert peer.reply() == "PONG"
    for peer in stalled:
        peer.close()
    assert b"evictions:0" in wire.command("INFO", "pion")


def expected_bytes(format, fetch):
    spec = LayerSpec(format, DIM)
    packed = bytearray(COUNT * spec.row_bytes)
    pack(spec, ROWS, Element.F32, COUNT, packed)
    if fetch == "RAW":
        return bytes(packed)
    element = Element[fetch]
    out = bytearray(COUNT * DIM * element.itemsize)
    unpack(spec, packed, COUNT, element, out)
    return bytes(out)


def test_a_pipeline_whose_replies_nobody_reads(remote, server_process) -> None:
    """Commands are only run as far as their replies can go."""
    wire, silent = remote.connect(), remote.connect()
    wire.wait_for_kernels()
    before = anonymous_bytes(server_process.pid)
    silent.socket.setblocking(False)
    command = b"COMMAND DOCS\r\n" * 1000
    sent = 0
    try:
        for _ in range(1000):
            sent += silent.socket.send(command)
    except BlockingIOError:
        pass
    assert 0 < sent < 1000 * len(command)
    assert wire.command("PING") == "PONG"
    assert anonymous_bytes(server_process.pid) < before + 32 * MIB


def test_many_slow_writers(remote, server_process) -> None:
    """Each has sent half of a blob that has to be packed; a fast one is not held up, and all end well."""
    wire = remote.connect()
    blob = memoryview(ROWS[:2000].tobytes())
    peers = [remote.connect() for _ in range(10)]
    for index, peer in enumerate(peers):
        wire.command("V.CREATE", f"s{index}", DIM, "VQUANT", "int8")
        head = b"*6\r\n$12\r\nV.STOREBATCH\r\n$2\r\ns%d\r\n$1\r\n0\r\n$1\r\n0\r\n$4\r\n2000\r\n$%d\r\n"
        peer.send(head % (index, len(blob)))
        peer.send(blob[: len(blob) // 2])
    wire.command("V.CREATE", "fast", DIM, "VQUANT", "int8")
    assert wire.command("V.STOREBATCH", "fast", 0, 0, 2000, blob) == "OK"
    expected = wire.command("V.FETCH", "fast", 0, "RANGE", 0, 2000, "FMT", "RAW")
    for index, peer in enumerate(peers):
        assert wire.command("V.FETCH", f"s{index}", 0, "RANGE", 0, 2000) is None
        peer.send(blob[len(blob) // 2 :])
        peer.send(b"\r\n").expect(b"+OK\r\n")
        assert wire.command("V.FETCH", f"s{index}", 0, "RANGE", 0, 2000, "FMT", "RAW") == expected

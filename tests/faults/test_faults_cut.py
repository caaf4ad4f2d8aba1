"""Connections cut at any byte, by a proxy: nothing half-done is visible. For long: `make faults`."""

from __future__ import annotations

import socket

from faults_cutting import CutLoop


def test_connections_are_cut_at_random_bytes(server_process) -> None:
    loop = CutLoop(server_process.port, 11)
    loop.run(150)
    assert loop.proxy.cuts >= 150 and loop.counts["rows"] > 5_000
    wire = socket.create_connection(("127.0.0.1", server_process.port))
    wire.sendall(b"PING\r\n")
    assert wire.recv(7) == b"+PONG\r\n"
    wire.close()

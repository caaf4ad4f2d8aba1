"""Large strings on the wire: received into their pages, sent from them, nothing left of what went wrong."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from pionkv.protocol.errors import CommandError

MIB = 1 << 20
BIG = bytes(range(256)) * 8192
STALLED = 40


def pages(server: Any) -> int:
    return server.call(lambda app: app.service.store.info().pages)


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, MIB, MIB + 1, len(BIG)])
def test_every_way_to_set_a_value(either: Any, size: int) -> None:
    value = BIG[:size]
    for command in (
        ("SET", "k", value),
        ("SETEX", "k", "100", value),
        ("PSETEX", "k", "100000", value),
        ("MSET", "k", value, "other", value),
        ("SET", "k", value, "XX", "EX", "100"),
    ):
        assert either.command(*command) == "OK"
        assert either.command("GET", "k") == value
        either.command("SET", "k", "small")
    assert either.command("GETSET", "k", value) == b"small"
    assert either.command("SETNX", "new", value) == 1
    assert either.command("MGET", "k", "absent", "new") == [value, None, value]
    assert either.command("GETRANGE", "k", "10", "20") == value[10:21]
    assert either.command("GETDEL", "k") == value and either.command("EXISTS", "k") == 0


def test_a_refused_value_leaves_the_connection_and_the_key_as_they_were(server: Any, wire: Any) -> None:
    wire.command("SET", "k", "1")
    assert wire.command("SET", "k", BIG, "NX") is None
    assert wire.command("SETNX", "k", BIG) == 0
    for options in (("WHAT",), ("EX",), ("EX", "0"), ("NX", "XX")):
        assert isinstance(wire.command("SET", "k", BIG, *options), CommandError)
    assert wire.command("GET", "k") == b"1" and pages(server) == 0


def test_a_value_beyond_the_budget_is_refused_on_its_header(start_local: Any) -> None:
    server = start_local(max_bytes=MIB)
    wire = server.connect()
    error = wire.command("SET", "k", BIG)
    assert isinstance(error, CommandError) and error.code == "OOM"
    assert wire.command("PING") == "PONG" and pages(server) == 0


def test_a_peer_that_dies_in_the_middle_leaves_nothing(server: Any, wire: Any) -> None:
    dying = server.connect()
    dying.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % len(BIG) + BIG[:MIB])
    dying.close()
    while len(server.call(lambda app: app.service.connections)) > 1:
        wire.command("PING")
    assert wire.command("EXISTS", "k") == 0 and pages(server) == 0
    assert list((server.settings.data_dir / "pages").iterdir()) == []


def anonymous_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"Anonymous:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


def test_readers_that_never_read_hold_no_memory(server_process: Any, wire_class: Any) -> None:
    def connect() -> Any:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.connect(("127.0.0.1", server_process.port))
        return wire_class(connection)

    wire = connect()
    wire.wait_for_kernels()
    value = BIG * 8
    wire.command("SET", "k", value)
    assert wire.command("GET", "k") == value
    before = anonymous_bytes(server_process.pid)
    stalled = [connect() for _ in range(STALLED)]
    for peer in stalled:
        peer.send(b"GET k\r\nMGET k k\r\n")
    while wire.command("CLIENT", "LIST").count(b"cmd=mget ") < STALLED:
        pass
    for _ in range(100):
        assert wire.command("PING") == "PONG"
    assert anonymous_bytes(server_process.pid) < before + 2 * len(value)
    assert stalled[0].reply() == value and stalled[0].reply() == [value, value]
    for peer in stalled:
        peer.close()

"""The binary lane of a real server: who is let in, what is refused, and that it is the same server."""

from __future__ import annotations

import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attend_peer import Layer, fused, normal
from frame_wire import AUTH, AUTH_USER, ERROR, FUSED, MISS, OK, PING, FrameWire, frame, named
from pionkv.server.config import Settings
from pionkv.server.listening import ListenError, Listeners
from server_process import ServerProcess
from test_server_protected import outer_address

Start = Callable[..., ServerProcess]
ANY = ("--binary-port", "0")


def info(wire: Any, section: str) -> dict[str, str]:
    lines = wire.command("INFO", section).decode().split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def owner_of(server: ServerProcess, wire_class: Any, password: str | None = None) -> Any:
    wire = wire_class(socket.create_connection(("127.0.0.1", server.port)))
    assert password is None or wire.command("AUTH", password) == "OK"
    return wire


def test_it_is_off_unless_asked_for(server_process: ServerProcess, wire_class: Any) -> None:
    assert server_process.binary_port == 0
    assert info(owner_of(server_process, wire_class), "server")["binary_port"] == "-1"


def test_a_client_is_one_of_the_servers(start_server: Start, wire_class: Any) -> None:
    server = start_server(*ANY)
    owner, lane = owner_of(server, wire_class), FrameWire(server.binary_port)
    assert info(owner, "server")["binary_port"] == str(server.binary_port)
    assert lane.ask(PING) == (OK, b"")
    before = int(info(owner, "stats")["total_net_input_bytes"])
    lane.socket.sendall(frame(PING) * 500)
    assert [lane.reply() for _ in range(500)] == [(OK, b"")] * 500
    assert int(info(owner, "stats")["total_net_input_bytes"]) >= before + 500 * 7
    (line,) = (
        line
        for line in owner.command("CLIENT", "LIST").decode().splitlines()
        if f":{server.binary_port}" in line
    )
    assert "cmd=ping" in line and "user=default" in line
    number = line.split()[0].removeprefix("id=")
    assert owner.command("CLIENT", "KILL", "ID", number) == 1
    assert lane.ended()


def test_what_is_no_command_is_answered_and_what_is_no_frame_ends_the_connection(start_server: Start) -> None:
    server = start_server(*ANY, "--max-bulk-bytes", "1mb")
    lane = FrameWire(server.binary_port)
    assert lane.ask(0x99, b"x" * 500_000) == (ERROR, b"ERR unknown opcode 0x99")
    status, text = lane.ask(0x31)
    assert status == ERROR and b"0x31 (MOE)" in text
    assert lane.ask(FUSED, b"\1")[0] == ERROR and lane.ask(PING) == (OK, b"")
    for wrong, words in (
        (b"PING\r\n", b"begins with 0xCA5E"),
        (struct.pack("<HBI", 0xCA5E, PING, 1 << 31), b"1048576"),
    ):
        lane = FrameWire(server.binary_port)
        lane.socket.sendall(wrong)
        status, text = lane.reply()
        assert status == ERROR and text.startswith(b"ERR Protocol error: ") and words in text and lane.ended()


def test_passwords_and_users(start_server: Start, wire_class: Any) -> None:
    server = start_server(*ANY, "--password", "owner-pw")
    owner = owner_of(server, wire_class, "owner-pw")
    assert owner.command("ACL", "SETUSER", "eve", "on", ">pw", "~team1:*", "+@all") == "OK"
    lane = FrameWire(server.binary_port)
    assert lane.ask(PING) == (ERROR, b"NOAUTH Authentication required.")
    assert lane.ask(AUTH, b"wrong")[1].startswith(b"WRONGPASS")
    assert lane.ask(AUTH, b"owner-pw") == lane.ask(PING) == (OK, b"")
    assert lane.ask(AUTH_USER, named(b"eve", b"nope"))[1].startswith(b"WRONGPASS")
    assert lane.ask(AUTH_USER, named(b"eve", b"pw")) == (OK, b"")
    assert "user=eve" in owner.command("CLIENT", "LIST").decode()
    assert owner.command("ACL", "DELUSER", "eve") == 1
    assert lane.ended()
    stranger = FrameWire(server.binary_port)
    stranger.socket.sendall(struct.pack("<HBI", 0xCA5E, FUSED, 100_000))
    assert b"unauthenticated frame of 100000 bytes" in stranger.reply()[1] and stranger.ended()


def test_protected_mode_and_the_number_of_clients(start_local: Any) -> None:
    server = start_local(host="0.0.0.0", binary_port=0, max_clients=2)
    port = server.app.service.ports.binary
    others = FrameWire(port, outer_address())
    status, text = others.reply()
    assert status == ERROR and text.startswith(b"DENIED pionkv is in protected mode") and others.ended()
    lanes = [FrameWire(port) for _ in range(3)]
    assert [lane.ask(PING)[0] for lane in lanes[:2]] == [OK, OK]
    assert lanes[2].reply() == (ERROR, b"ERR max number of clients reached") and lanes[2].ended()
    counted = server.call(lambda app: dict(app.service.metrics.received))
    assert counted["binary"] == 2 * len(frame(PING))
    for lane in lanes:
        lane.close()


def test_where_only_tls_is_spoken_the_lane_speaks_it(
    start_server: Start, certificates: Any, tmp_path: Path
) -> None:
    server = start_server(*certificates.flags("no"), *ANY, "--port", "-1")
    plain = FrameWire(server.binary_port)
    with pytest.raises((EOFError, OSError)):
        plain.ask(PING)
    lane = FrameWire(server.binary_port)
    context = ssl.create_default_context(cafile=certificates.root)
    lane.socket = context.wrap_socket(lane.socket, server_hostname="127.0.0.1")
    assert lane.ask(PING) == (OK, b"")


def test_every_worker_accepts(start_server: Start, wire_class: Any) -> None:
    server = start_server(*ANY, "--workers", "2", "--http-port", "-1")
    owner = owner_of(server, wire_class)
    lanes: list[FrameWire] = []
    pids = set()
    while len(pids) < 2:
        lanes.append(FrameWire(server.binary_port))
        assert lanes[-1].ask(PING) == (OK, b"")
        found = (owner.command("CLIENT", "LIST").decode(), info(owner, "server")["process_id"])
        if f":{server.binary_port}" in found[0]:
            pids.add(found[1])
        owner = owner_of(server, wire_class)
    assert int(info(owner, "stats")["total_commands_processed"]) >= len(lanes)
    for lane in lanes:
        lane.close()


def test_large_frames_both_ways_say_what_the_command_says(start_server: Start, wire_class: Any) -> None:
    heads, kv_heads, dim, queries, rows = 8, 2, 64, 700, 900
    server = start_server(*ANY)
    owner = owner_of(server, wire_class)
    Layer(1, kv_heads, 40, dim).store_prefix(owner, "p")
    q, *suffix = (
        normal(2, heads, queries, dim),
        normal(3, kv_heads, rows, dim),
        normal(4, kv_heads, rows, dim),
    )
    head_map = bytes(head // 4 for head in range(heads))
    shape = struct.pack("<HHHHII", 0, heads, dim, kv_heads, queries, rows)
    body = named(b"p", shape + q.tobytes() + b"".join(each.tobytes() for each in suffix) + head_map)
    expected = fused(owner, "p", q, suffix, head_map)
    lane = FrameWire(server.binary_port)
    sender = threading.Thread(target=lane.socket.sendall, args=(frame(FUSED, body) * 3 + frame(PING),))
    sender.start()
    assert [lane.reply() for _ in range(4)] == [(OK, bytes(expected))] * 3 + [(OK, b"")]
    sender.join()
    assert len(expected) > 1 << 20
    gone = FrameWire(server.binary_port)
    gone.socket.sendall(frame(FUSED, body)[:-1])
    gone.close()
    absent = named(b"absent", body[3:])
    status, text = lane.ask(FUSED, absent)
    assert status == ERROR and text.startswith(b"ERR ATTEND.PREFIX.QUERY_FUSED failed (session not found")


def test_rows_by_the_likeness_of_their_keys(start_server: Start, wire_class: Any) -> None:
    key_dim, value_dim, rows = 64, 32, 2000
    server = start_server(*ANY, "--password", "pw")
    owner, lane = owner_of(server, wire_class, "pw"), FrameWire(server.binary_port)
    number = struct.Struct("<H").pack
    k, v = normal(1, rows, key_dim), normal(2, rows, value_dim)
    place = struct.pack("<HI", 0, rows)
    assert lane.ask(0x21, named(b"s", place + b"x"))[1].startswith(b"NOAUTH")
    assert lane.ask(AUTH, b"pw") == (OK, b"")
    assert lane.ask(0x21, named(b"s", place + b"x"))[1].startswith(b"ERR session not found")
    status, slot = lane.ask(0x20, named(b"s", number(key_dim) + number(value_dim)))
    assert status == OK and len(slot) == 8
    assert lane.ask(0x23, named(b"s", number(0) + number(3) + k[7].tobytes())) == (MISS, b"")
    assert lane.ask(0x21, named(b"s", place + k.tobytes() + v.tobytes()[:-1]))[0] == ERROR
    assert lane.ask(0x21, named(b"s", place + k.tobytes() + v.tobytes())) == (OK, b"")
    assert lane.ask(0x22, named(b"s", number(0))) == (OK, b"")
    status, best = lane.ask(0x23, named(b"s", number(0) + number(3) + k[7].tobytes()))
    assert (status, len(best)) == (OK, 3 * value_dim * 4)
    assert best == owner.command("ATTEND.QUERY", "s", 0, 3, k[7].tobytes())
    np.testing.assert_allclose(np.frombuffer(best, np.float32)[:value_dim], v[7], atol=0.05)


def test_a_taken_port_is_an_error_that_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=str(port)):
            Listeners(Settings(port=0, binary_port=port, data_dir=tmp_path))


def test_random_frames_harm_nobody(
    start_server: Start, wire_class: Any, request: pytest.FixtureRequest
) -> None:
    server = start_server(*ANY, "--password", "owner-pw")
    owner = owner_of(server, wire_class, "owner-pw")
    assert owner.command("SET", "k", "v") == "OK"
    chance = random.Random(5)

    def hostile() -> bytes:
        opcode, body = (
            chance.choice((FUSED, FUSED, 0x20, 0x21, 0x23, PING, AUTH, AUTH_USER, chance.randrange(256))),
            chance.randbytes(chance.choice((0, 3, 30, 3000, 100_000))),
        )
        if opcode == FUSED and chance.random() < 0.5:
            shape = struct.pack("<HHHHII", *(chance.choice((0, 1, 64, 0xFFFF)) for _ in range(6)))
            body = named(b"k", shape + body)
        data = frame(opcode, body)
        return data if chance.random() < 0.9 else data[: chance.randrange(len(data) + 1)]

    owner.wait_for_kernels()
    said: dict[int, int] = {}
    for number in range(request.config.getoption("--requests") // 20):
        lane = FrameWire(server.binary_port)
        if number % 3 == 0:
            assert lane.ask(AUTH, b"owner-pw") == (OK, b"")
        try:
            for _ in range(20):
                lane.socket.sendall(hostile())
            lane.socket.shutdown(socket.SHUT_WR)
            while True:
                status, _ = lane.reply()
                said[status] = said.get(status, 0) + 1
        except (EOFError, OSError):
            pass
        lane.close()
    assert said[ERROR] > 100 and set(said) <= {OK, MISS, ERROR}
    while b"connected_clients:1\r" not in owner.command("INFO", "clients"):
        pass
    assert owner.command("GET", "k") == b"v"
    assert "Traceback" not in server.errors.read_text()

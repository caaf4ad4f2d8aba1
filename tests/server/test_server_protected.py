"""Protected mode: without a password a server that listens elsewhere serves this machine alone."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from pionkv.protocol.errors import CommandError


def outer_address() -> str:
    """An address of this machine that is not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: this asks for the route alone.
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but that of the loopback interface")
        return str(probe.getsockname()[0])


def from_outside(server: Any, wire_class: Any) -> Any:
    return wire_class(socket.create_connection((outer_address(), server.port)))


def served(server: Any, wire_class: Any) -> bool:
    answer = from_outside(server, wire_class).command("PING")
    assert answer == "PONG" or str(answer).startswith(("DENIED", "NOAUTH")), answer
    return not str(answer).startswith("DENIED")


def test_others_are_told_why_and_what_to_do(start_local: Any, wire_class: Any, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    server = start_local(host="0.0.0.0", unix_socket=path)
    wire = from_outside(server, wire_class)
    wire.send(b"SET k v\r\n" * 100)
    answer = wire.reply()
    assert isinstance(answer, CommandError) and str(answer).startswith("DENIED pionkv is in protected mode")
    assert "PIONKV_PASSWORD" in str(answer) and wire.read_to_end() == b""
    inside = server.connect()
    assert inside.command("EXISTS", "k") == 0
    assert b"rejected_connections:1\r" in inside.command("INFO", "stats")
    unix = socket.socket(socket.AF_UNIX)
    unix.connect(str(path))
    assert wire_class(unix).command("PING") == "PONG"


def test_a_password_or_the_setting_opens_it_and_closes_it_again(start_local: Any, wire_class: Any) -> None:
    server = start_local(host="0.0.0.0")
    inside = server.connect()
    assert not served(server, wire_class)
    assert inside.command("CONFIG", "SET", "protected-mode", "no") == "OK"
    assert served(server, wire_class)
    assert inside.command("CONFIG", "SET", "protected-mode", "yes") == "OK"
    assert inside.command("CONFIG", "GET", "protected-mode") == [b"protected-mode", b"yes"]
    assert not served(server, wire_class)
    assert "yes" in str(inside.command("CONFIG", "SET", "protected-mode", "perhaps"))
    assert inside.command("CONFIG", "SET", "requirepass", "secret") == "OK"
    assert served(server, wire_class)
    assert inside.command("CONFIG", "SET", "requirepass", "") == "OK"
    assert not served(server, wire_class)


def test_a_user_who_has_a_password_does_not_open_the_door_for_the_default_user(
    start_local: Any, wire_class: Any
) -> None:
    server = start_local(host="0.0.0.0")
    inside = server.connect()
    inside.command("ACL", "SETUSER", "ann", "on", ">pw", "~*", "+@all")
    assert not served(server, wire_class)
    inside.command("ACL", "SETUSER", "default", "off", "resetpass")
    assert from_outside(server, wire_class).command("AUTH", "ann", "pw") == "OK"


@pytest.mark.parametrize("flag", [(), ("--protected-mode", "no")])
def test_in_every_worker(start_server: Any, wire_class: Any, flag: tuple[str, ...]) -> None:
    server = start_server("--host", "0.0.0.0", "--workers", "2", *flag)
    assert {served(server, wire_class) for _ in range(12)} == {bool(flag)}

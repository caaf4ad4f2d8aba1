"""AUTH, CLIENT, limits on connections, and both kinds of socket."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import socket
import sys
import termios
import time

import pytest
from pionkv.protocol.errors import CommandError
from pionkv.server.clients import UNPACED, tune

PASSWORD = "correct horse"
NOAUTH = CommandError("NOAUTH", "Authentication required.")


def fields(line):
    return dict(pair.split("=", 1) for pair in line.decode().split())


def congestion(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def same(error, code, text):
    return isinstance(error, CommandError) and error.code == code and text in error.message


@pytest.fixture
def guarded(start_local):
    return start_local(password=PASSWORD)


def test_nothing_without_the_password(guarded) -> None:
    wire = guarded.connect()
    for command in (("PING",), ("V.INFO",), ("CLIENT", "LIST"), ("CONFIG", "GET", "*"), ("COMMAND",)):
        assert same(wire.command(*command), "NOAUTH", "Authentication required.")
    assert same(wire.command("NOSUCH"), "ERR", "unknown command")
    assert same(wire.command("HELLO", 3), "NOAUTH", "HELLO must be called")
    assert same(wire.command("AUTH", "wrong"), "WRONGPASS", "invalid username-password pair")
    assert same(wire.command("AUTH", "other", PASSWORD), "WRONGPASS", "invalid username-password pair")
    assert wire.command("AUTH", PASSWORD) == "OK"
    assert wire.command("PING") == "PONG"
    assert wire.command("RESET") == "RESET"
    assert same(wire.command("PING"), "NOAUTH", "")


def test_hello_with_the_password(guarded) -> None:
    wire = guarded.connect()
    assert same(wire.command("HELLO", 3, "AUTH", "default", "wrong"), "WRONGPASS", "")
    wire.command("HELLO", 3, "AUTH", "default", PASSWORD, "SETNAME", "me")
    assert wire.command("CLIENT", "GETNAME") == b"me"


def test_strangers_send_little(guarded) -> None:
    wire = guarded.connect()
    wire.send(b"*2\r\n$4\r\nAUTH\r\n$16385\r\n")
    assert wire.read_to_end() == b"-ERR Protocol error: unauthenticated bulk length\r\n"
    wire = guarded.connect()
    wire.send(b"*11\r\n")
    assert wire.read_to_end() == b"-ERR Protocol error: unauthenticated multibulk length\r\n"


def test_auth_where_none_is_needed(wire) -> None:
    assert same(wire.command("AUTH", "x"), "ERR", "AUTH <password> called without any password configured")
    assert wire.command("AUTH", "default", "x") == "OK"


def test_the_password_is_shown_nowhere(guarded, capfd) -> None:
    wire = guarded.connect()
    wire.command("AUTH", PASSWORD)
    shown = [wire.command("CONFIG", "GET", "*"), wire.command("INFO", "all"), wire.command("CLIENT", "LIST")]
    assert PASSWORD.encode() not in repr(shown).encode()
    assert wire.command("CONFIG", "GET", "requirepass") == [b"requirepass", b"***"]
    assert PASSWORD not in "".join(capfd.readouterr())


@pytest.mark.parametrize("command", ["READONLY", "READWRITE"])
def test_a_tool_that_asks_for_a_replica_hears_that_this_is_no_cluster(wire, command) -> None:
    assert same(wire.command(command), "ERR", "This instance has cluster support disabled")


def test_client_name_and_library(wire) -> None:
    wire.send(b"CLIENT GETNAME\r\n").expect(b"$-1\r\n")
    assert wire.command("CLIENT", "SETNAME", "loader") == "OK"
    assert wire.command("CLIENT", "GETNAME") == b"loader"
    assert same(wire.command("CLIENT", "SETNAME", "a b"), "ERR", "Client names cannot contain spaces")
    assert wire.command("CLIENT", "SETINFO", "LIB-NAME", "redis-py") == "OK"
    assert wire.command("CLIENT", "SETINFO", "lib-ver", "9.9") == "OK"
    assert same(wire.command("CLIENT", "SETINFO", "FOO", "x"), "ERR", "Unrecognized option 'FOO'")
    found = fields(wire.command("CLIENT", "INFO"))
    assert found["name"] == "loader" and found["lib-name"] == "redis-py" and found["lib-ver"] == "9.9"
    assert found["cmd"] == "client|info" and found["resp"] == "2" and found["user"] == "default"
    assert found["id"] == str(wire.command("CLIENT", "ID"))


def test_client_info_has_every_number_that_redis_py_4_6_reads(wire) -> None:
    names = "id age idle db sub psub multi qbuf qbuf-free obl argv-mem oll omem tot-mem"
    found = fields(wire.command("CLIENT", "INFO"))
    assert [name for name in names.split() if not found.get(name, "").lstrip("-").isdigit()] == []
    assert found["multi"] == "-1"


def test_client_list(server) -> None:
    wires = [server.connect() for _ in range(3)]
    ids = [wire.command("CLIENT", "ID") for wire in wires]
    assert ids == sorted(set(ids))
    listed = [int(fields(line)["id"]) for line in wires[0].command("CLIENT", "LIST").splitlines()]
    assert listed == ids
    some = wires[0].command("CLIENT", "LIST", "ID", ids[1], 999).splitlines()
    assert [int(fields(line)["id"]) for line in some] == [ids[1]]
    assert len(wires[0].command("CLIENT", "LIST", "TYPE", "normal").splitlines()) == 3
    assert same(wires[0].command("CLIENT", "LIST", "TYPE", "foo"), "ERR", "Unknown client type 'foo'")


def test_client_kill(server) -> None:
    wire, other, third = (server.connect() for _ in range(3))
    address = fields(other.command("CLIENT", "INFO"))["addr"]
    assert wire.command("CLIENT", "KILL", address) == "OK"
    assert other.read_to_end() == b""
    assert same(wire.command("CLIENT", "KILL", address), "ERR", "No such client")
    assert wire.command("CLIENT", "KILL", "ID", third.command("CLIENT", "ID")) == 1
    assert third.read_to_end() == b""
    mine = wire.command("CLIENT", "ID")
    assert wire.command("CLIENT", "KILL", "ID", mine) == 0
    assert wire.command("CLIENT", "KILL", "ID", mine, "SKIPME", "no") == 1
    assert wire.read_to_end() == b""


def test_client_reply(wire) -> None:
    wire.send(b"CLIENT REPLY SKIP\r\nPING a\r\nECHO b\r\n").expect(b"$1\r\nb\r\n")
    wire.send(b"CLIENT REPLY OFF\r\nPING\r\nNOSUCH\r\nECHO x\r\nCLIENT REPLY ON\r\nECHO c\r\n")
    wire.expect(b"+OK\r\n$1\r\nc\r\n")
    assert same(wire.command("CLIENT", "REPLY", "MAYBE"), "ERR", "syntax error")


def test_client_reply_off_mutes_rows_too(wire) -> None:
    wire.command("V.CREATE", "s", 1024, "VQUANT", "fp32")
    wire.command("V.STOREBATCH", "s", 0, 0, 64, bytes(1 << 18))
    wire.send(b"CLIENT REPLY OFF\r\nV.FETCH s 0 RANGE 0 64\r\nV.FETCH s 0 RANGE 0 64 FMT F16\r\n")
    wire.send(b"CLIENT REPLY ON\r\nPING\r\n").expect(b"+OK\r\n+PONG\r\n")


@pytest.mark.parametrize("name", ["NO-EVICT", "NO-TOUCH"])
def test_client_switches(name, wire) -> None:
    assert wire.command("CLIENT", name, "on") == "OK"
    assert wire.command("CLIENT", name, "off") == "OK"
    assert same(wire.command("CLIENT", name, "x"), "ERR", "syntax error")


def test_too_many_clients(start_local) -> None:
    server = start_local(max_clients=2)
    first, second, third = (server.connect() for _ in range(3))
    assert first.command("PING") == second.command("PING") == "PONG"
    assert third.read_to_end() == b"-ERR max number of clients reached\r\n"
    assert first.command("PING") == "PONG"


def test_a_unix_socket_takes_more_than_the_systems_own_buffer(start_local, tmp_path) -> None:
    """While its peer does not read: the server is not stopped after each fifth of a MB."""
    path, value = tmp_path / "s", bytes(2 << 20)
    start_local(unix_socket=path)
    with socket.socket(socket.AF_UNIX) as peer, socket.socket(socket.AF_UNIX) as usual:
        most = usual.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) * 3 // 2
        peer.connect(str(path))
        peer.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%b\r\n" % (len(value), value))
        assert peer.recv(16) == b"+OK\r\n"
        peer.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
        room, end = bytearray(4), time.monotonic() + 20
        while int.from_bytes(room, "little") <= most and time.monotonic() < end:
            time.sleep(0.01)
            fcntl.ioctl(peer, termios.FIONREAD, room)
        assert int.from_bytes(room, "little") > most


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a socket choose")
def test_nothing_is_paced_within_a_machine(server, wire) -> None:
    assert wire.command("PING") == "PONG"
    (transport,) = server.call(lambda app: [each._transport for each in app.service.connections.values()])
    assert congestion(transport.get_extra_info("socket")) == UNPACED


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("same_machine", [False, True])
def test_a_network_keeps_the_systems_pace_and_a_refusal_ends_nothing(same_machine, refuses) -> None:
    asked = []

    class Socket:
        def setsockopt(self, *option: object) -> None:
            asked.append(option)
            if refuses:
                raise OSError(errno.ENOENT, "no such congestion control")

    class Transport(asyncio.Transport):
        def get_extra_info(self, name: str, default: object = None) -> object:
            return Socket() if name == "socket" else ("192.0.2.1", 1974)

    tune(Transport(), same_machine=same_machine)
    assert len(asked) == (same_machine and hasattr(socket, "TCP_CONGESTION"))


def test_a_unix_socket(start_local, tmp_path) -> None:
    path = tmp_path / "pionkv.sock"
    server = start_local(unix_socket=path)
    assert path.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"PING\r\nCLIENT INFO\r\n")
        assert connection.recv(100).startswith(b"+PONG\r\n")
    server.stop()
    assert not path.exists()


def test_a_socket_left_behind_is_replaced_and_a_live_one_is_not(start_local, tmp_path) -> None:
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    start_local(unix_socket=path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"PING\r\n")
        assert client.recv(7) == b"+PONG\r\n"
    with pytest.raises(AssertionError, match="a server listens here already"):
        start_local(unix_socket=path)


def test_who_is_killed_can_tell_before_the_reply(server, wire) -> None:
    """A client that finds the end before it sends connects anew, as pools do; else its command is lost."""
    for _ in range(50):
        victim = server.connect()
        number = victim.command("CLIENT", "ID")
        assert wire.command("CLIENT", "KILL", "ID", number) == 1
        victim.socket.setblocking(False)
        assert victim.socket.recv(1) == b""

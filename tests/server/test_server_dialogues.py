"""Dialogues, byte for byte."""

from __future__ import annotations

import socket
import threading

import pytest

DIALOGUES = {
    "inline ping": (b"PING\r\n", b"+PONG\r\n"),
    "ping": (b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"),
    "ping in lower case": (b"*1\r\n$4\r\nping\r\n", b"+PONG\r\n"),
    "ping with a message": (b"PING hello\r\n", b"$5\r\nhello\r\n"),
    "ping with two": (b"PING a b\r\n", b"-ERR wrong number of arguments for 'ping' command\r\n"),
    "echo": (b"*2\r\n$4\r\nECHO\r\n$3\r\n\r\n\x00\r\n", b"$3\r\n\r\n\x00\r\n"),
    "echo nothing": (b'ECHO ""\r\n', b"$0\r\n\r\n"),
    "echo without": (b"ECHO\r\n", b"-ERR wrong number of arguments for 'echo' command\r\n"),
    "unknown": (
        b"NOSUCH a 'b c'\r\n",
        b"-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b c' \r\n",
    ),
    "unknown with control bytes": (
        b"*1\r\n$4\r\nA\r\nB\r\n",
        b"-ERR unknown command 'A??B', with args beginning with: \r\n",
    ),
    "unknown subcommand": (b"CLIENT NOSUCH\r\n", b"-ERR unknown subcommand 'NOSUCH'. Try CLIENT HELP.\r\n"),
    "container alone": (b"CLIENT\r\n", b"-ERR wrong number of arguments for 'client' command\r\n"),
    "select 0": (b"SELECT 0\r\n", b"+OK\r\n"),
    "select 1": (b"SELECT 1\r\n", b"-ERR DB index is out of range\r\n"),
    "select text": (b"SELECT x\r\n", b"-ERR value is not an integer or out of range\r\n"),
    "reset": (b"RESET\r\n", b"+RESET\r\n"),
    "dbsize": (b"DBSIZE\r\n", b":0\r\n"),
    "hello 4": (b"HELLO 4\r\n", b"-NOPROTO unsupported protocol version\r\n"),
    "hello x": (b"HELLO x\r\n", b"-ERR Protocol version is not an integer or out of range\r\n"),
    "hello option": (b"HELLO 3 NOSUCH\r\n", b"-ERR Syntax error in HELLO option 'NOSUCH'\r\n"),
    "empty array": (b"*0\r\nPING\r\n", b"+PONG\r\n"),
    "empty name": (b"*1\r\n$0\r\n\r\n", b"-ERR unknown command '', with args beginning with: \r\n"),
}


@pytest.mark.parametrize("name", DIALOGUES)
def test_dialogue(name, wire) -> None:
    asked, answered = DIALOGUES[name]
    wire.send(asked).expect(answered)
    wire.send(b"PING still there\r\n")
    wire.expect(b"-ERR wrong number of arguments for 'ping' command\r\n")


@pytest.mark.parametrize("name", DIALOGUES)
def test_dialogue_one_byte_a_packet(name, wire) -> None:
    asked, answered = DIALOGUES[name]
    for byte in asked:
        wire.send(bytes([byte]))
    wire.expect(answered)


BROKEN = {
    "bulk over the limit": (b"*1\r\n$536870913\r\n", b"invalid bulk length"),
    "negative bulk": (b"*1\r\n$-2\r\n", b"invalid bulk length"),
    "leading zeros": (b"*1\r\n$007\r\n", b"invalid bulk length"),
    "array over the limit": (b"*1048577\r\n", b"invalid multibulk length"),
    "no dollar": (b"*1\r\n:1\r\n", b"expected '$', got ':'"),
    "no CRLF": (b"*1\r\n$4\r\nPINGxx", b"expected CRLF after a bulk string"),
    "wrong length of a name": (b"*2\r\n$4\r\nECHO\r\n$3\r\nabcd\r\n", b"expected CRLF after a bulk string"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_frame_ends_that_connection_only(name, server) -> None:
    sent, text = BROKEN[name]
    other, broken = server.connect(), server.connect()
    broken.send(b"PING\r\n" + sent)
    assert broken.read_to_end() == b"+PONG\r\n-ERR Protocol error: " + text + b"\r\n"
    other.send(b"PING\r\n").expect(b"+PONG\r\n")


def test_quit_answers_and_closes_and_runs_nothing_after(wire) -> None:
    wire.send(b"PING\r\nQUIT\r\nPING\r\n")
    assert wire.read_to_end() == b"+PONG\r\n+OK\r\n"


def test_a_client_that_stops_sending_still_gets_its_replies(wire) -> None:
    wire.send(b"PING\r\nECHO last\r\n")
    wire.socket.shutdown(socket.SHUT_WR)
    assert wire.read_to_end() == b"+PONG\r\n$4\r\nlast\r\n"


def test_a_pipeline_of_thousands_is_answered_in_order(wire) -> None:
    count = 20_000
    sent = b"".join(b"*2\r\n$4\r\nECHO\r\n$%d\r\n%d\r\n" % (len(str(i)), i) for i in range(count))
    sender = threading.Thread(target=wire.send, args=(sent,))
    sender.start()
    wire.expect(b"".join(b"$%d\r\n%d\r\n" % (len(str(i)), i) for i in range(count)))
    sender.join()


def test_hello_3_then_2(wire) -> None:
    third = wire.command("HELLO", 3, "SETNAME", "me")
    assert third[b"proto"] == 3 and third[b"server"] == b"redis" and third[b"modules"] == []
    assert wire.command("CLIENT", "GETNAME") == b"me"
    wire.command("V.CREATE", "s", 2, "VQUANT", "fp16")
    wire.send(b"V.FETCH s 0 0\r\n").expect(b"_\r\n")
    wire.command("HELLO", 2)
    wire.send(b"V.FETCH s 0 0\r\n").expect(b"$-1\r\n")


def test_reset_forgets_protocol_and_name(wire) -> None:
    wire.command("HELLO", 3, "SETNAME", "me")
    assert wire.command("RESET") == "RESET"
    wire.send(b"CLIENT GETNAME\r\n").expect(b"$-1\r\n")


def test_time_is_the_clock(wire) -> None:
    seconds, micros = map(int, wire.command("TIME"))
    assert seconds > 1_500_000_000 and 0 <= micros < 1_000_000

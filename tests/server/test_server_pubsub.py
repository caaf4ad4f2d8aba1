"""Messages between clients, notices of prefixes, MONITOR: what arrives, where, and who is cut off."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest
from pionkv.protocol.errors import CommandError
from pionkv.server.output import PUSH_BYTES

DIM = 32
ROWS = np.zeros((4, DIM), np.float32).tobytes()


def subscribed(wire: Any, *command: str) -> Any:
    """Listen; RESP2 has one message for each name."""
    wire.send(b" ".join(word.encode() for word in command) + b"\r\n")
    for _ in command[1:]:
        wire.reply()
    return wire


def listening(server: Any, *names: bytes) -> Any:
    """A client with RESP3 that listens to channels: what it reads from now on are bytes."""
    wire = server.connect(3)
    for number, name in enumerate(names, 1):
        wire.send(b"SUBSCRIBE %b\r\n" % name)
        wire.expect(b">3\r\n$9\r\nsubscribe\r\n$%d\r\n%b\r\n:%d\r\n" % (len(name), name, number))
    return wire


def test_a_dialogue_in_resp2(server: Any) -> None:
    listener, sender = server.connect(), server.connect()
    listener.send(b"SUBSCRIBE a b\r\n")
    listener.expect(b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n")
    listener.send(b"PSUBSCRIBE n?w*\r\n").expect(b"*3\r\n$10\r\npsubscribe\r\n$4\r\nn?w*\r\n:3\r\n")
    assert sender.command("PUBLISH", "a", "one") == 1
    listener.expect(b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$3\r\none\r\n")
    assert sender.command("PUBLISH", "news", "two") == 1
    listener.expect(b"*4\r\n$8\r\npmessage\r\n$4\r\nn?w*\r\n$4\r\nnews\r\n$3\r\ntwo\r\n")
    assert sender.command("PUBLISH", "nobody", "three") == 0
    listener.send(b"PING\r\n").expect(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n")
    listener.send(b"PING x\r\n").expect(b"*2\r\n$4\r\npong\r\n$1\r\nx\r\n")
    listener.send(b"GET a\r\n").expect(
        b"-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed "
        b"in this context\r\n"
    )
    listener.send(b"UNSUBSCRIBE\r\n")
    listener.expect(
        b"*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:2\r\n*3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:1\r\n"
    )
    listener.send(b"PUNSUBSCRIBE x n?w*\r\n")
    listener.expect(
        b"*3\r\n$12\r\npunsubscribe\r\n$1\r\nx\r\n:1\r\n*3\r\n$12\r\npunsubscribe\r\n$4\r\nn?w*\r\n:0\r\n"
    )
    listener.send(b"UNSUBSCRIBE\r\n").expect(b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n")
    listener.send(b"PING\r\n").expect(b"+PONG\r\n")


def test_in_resp3_messages_come_between_replies(server: Any) -> None:
    listener = server.connect(3)
    listener.send(b"SUBSCRIBE a\r\n").expect(b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n")
    listener.send(b"SET k v\r\nPUBLISH a m\r\nGET k\r\n")
    listener.expect(b"+OK\r\n>3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nm\r\n:1\r\n$1\r\nv\r\n")


def test_who_listens_twice_gets_two(server: Any) -> None:
    listener, sender = listening(server, b"a"), server.connect()
    listener.send(b"PSUBSCRIBE * a\r\n")
    while sender.command("PUBSUB", "NUMPAT") < 2:
        pass
    assert sender.command("PUBLISH", "a", "m") == 3


def test_what_is_known_of_channels(server: Any, wire: Any) -> None:
    subscribed(server.connect(), "SUBSCRIBE", "news", "weather")
    subscribed(server.connect(), "SUBSCRIBE", "news")
    subscribed(server.connect(), "PSUBSCRIBE", "n*")
    assert sorted(wire.command("PUBSUB", "CHANNELS")) == [b"news", b"weather"]
    assert wire.command("PUBSUB", "CHANNELS", "w*") == [b"weather"]
    assert wire.command("PUBSUB", "NUMSUB", "news", "none") == [b"news", 2, b"none", 0]
    assert wire.command("PUBSUB", "NUMSUB") == [] and wire.command("PUBSUB", "NUMPAT") == 1


@pytest.mark.parametrize("leave", [b"RESET\r\n", b"QUIT\r\n", b""])
def test_who_leaves_is_forgotten(server: Any, wire: Any, leave: bytes) -> None:
    listener = server.connect()
    listener.send(b"SUBSCRIBE a\r\nPSUBSCRIBE b\r\n")
    while wire.command("PUBSUB", "NUMPAT") == 0:
        pass
    if leave:
        listener.send(leave)
    else:
        listener.close()
    while wire.command("PUBSUB", "NUMPAT"):
        pass
    assert wire.command("PUBSUB", "CHANNELS") == []


def test_listening_is_refused_within_a_transaction_and_sending_is_not(wire: Any) -> None:
    wire.command("MULTI")
    assert isinstance(wire.command("SUBSCRIBE", "a"), CommandError)
    wire.command("DISCARD")
    wire.command("MULTI")
    wire.command("PUBLISH", "a", "m")
    assert wire.command("EXEC") == [0]


def test_messages_come_though_replies_are_off(server: Any, wire: Any) -> None:
    listener = listening(server, b"a")
    listener.send(b"CLIENT REPLY OFF\r\nGET k\r\n")
    while b"cmd=get " not in wire.command("CLIENT", "LIST"):
        pass
    wire.command("PUBLISH", "a", "m")
    listener.expect(b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nm\r\n")


def test_a_message_waits_for_a_large_reply_to_be_complete(server: Any, wire: Any) -> None:
    value = b"v" * (32 << 20)
    wire.command("SET", "k", value)
    listener = listening(server, b"a")
    listener.send(b"GET k\r\n")
    while wire.command("CLIENT", "LIST").count(b"cmd=get ") == 0:
        pass
    assert wire.command("PUBLISH", "a", "m") == 1
    listener.expect(b"$%d\r\n" % len(value))
    assert listener.read(len(value)) == value
    listener.expect(b"\r\n>3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nm\r\n")


def test_who_does_not_read_is_cut_off(server: Any, wire: Any) -> None:
    lazy = server.connect()
    lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    subscribed(lazy, "SUBSCRIBE", "a")
    message = b"m" * (1 << 20)
    for _ in range(2 * (PUSH_BYTES >> 20) + 16):
        if wire.command("PUBLISH", "a", message) == 0:
            break
    assert wire.command("PUBSUB", "NUMSUB", "a") == [b"a", 0]


def notices(wire: Any, count: int) -> list[tuple[bytes, bytes]]:
    found = []
    while len(found) < count:
        kind, _, channel, payload = wire.reply()
        assert kind == b"pmessage"
        found.append((channel, payload))
    return found


def test_a_prefix_is_noticed_when_it_can_be_restored_and_when_it_goes(server: Any, wire: Any) -> None:
    listener = subscribed(server.connect(), "PSUBSCRIBE", "__key*__:*")
    wire.command("KV.PREFIX.REGISTER", "p", DIM, "fp32")
    wire.command("V.STOREBATCH", "p_pk", 0, 0, 4, ROWS)
    wire.command("V.STOREBATCH", "p_pv", 0, 0, 4, ROWS)
    wire.command("V.CREATE", "alone", DIM)
    wire.command("V.STOREBATCH", "alone", 0, 0, 4, ROWS)
    assert wire.command("KV.PREFIX.DROP", "p", "absent", "p") == 1
    assert notices(listener, 4) == [
        (b"__keyspace@0__:p", b"publish"),
        (b"__keyevent@0__:publish", b"p"),
        (b"__keyspace@0__:p", b"drop"),
        (b"__keyevent@0__:drop", b"p"),
    ]
    assert wire.command("PUBLISH", "__key__:end", "") == 1
    assert notices(listener, 1) == [(b"__key__:end", b"")]


def test_dropping_one_side_drops_the_prefix(server: Any, wire: Any) -> None:
    wire.command("KV.PREFIX.REGISTER", "p", DIM, "fp32")
    listener = subscribed(server.connect(), "PSUBSCRIBE", "__keyevent@0__:*")
    wire.command("V.DROP", "p_pv")
    assert notices(listener, 1) == [(b"__keyevent@0__:drop", b"p")]


def test_monitor_shows_commands_but_no_secrets(start_local: Any) -> None:
    server = start_local(password="secret")
    watcher, other = server.connect(), server.connect()
    for wire in (watcher, other):
        assert wire.command("AUTH", "secret") == "OK"
    watcher.send(b"MONITOR\r\n").expect(b"+OK\r\n")
    other.command("AUTH", "secret")
    other.command("SET", 'k"\\', b"\0\xff\r\n" + b"x" * 2000)
    other.command("V.STOREBATCH", "s", 0, 0, 1, b"e" * 100_000)
    line, large = watcher.reply(), watcher.reply()
    head, _, words = line.partition("] ")
    host, port = other.socket.getsockname()
    assert head.split()[1:] == ["[0", f"{host}:{port}"]
    assert words == '"SET" "k\\"\\\\" "\\x00\\xff\\r\\n' + "x" * 1020 + '..." (2004 bytes)'
    assert large.endswith("(100000 bytes)")


def test_a_watcher_that_resets_sees_no_more(server: Any, wire: Any) -> None:
    watcher = server.connect()
    watcher.send(b"MONITOR\r\n").expect(b"+OK\r\n")
    wire.command("PING")
    assert watcher.reply().endswith('"PING"')
    watcher.send(b"RESET\r\n")
    assert watcher.reply().endswith('"RESET"') and watcher.reply() == "RESET"
    wire.command("PING")
    watcher.send(b"PING\r\n").expect(b"+PONG\r\n")

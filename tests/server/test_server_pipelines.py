"""Pipelines on plain keys: commands share a transaction, and nobody can tell."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import Any

from pionkv.protocol.errors import CommandError
from pionkv.protocol.request import encode_command
from pionkv.server.together import ANSWER_BYTES, MOST_CALLS
from pionkv.storage.keyspace.large import LARGE_BYTES

LARGE = b"L" * (LARGE_BYTES + 7)


def encoded(*commands: Sequence[bytes | str | int]) -> bytes:
    return b"".join(bytes(piece) for command in commands for piece in encode_command(command))


def pipeline(wire: Any, *commands: Sequence[bytes | str | int]) -> list[Any]:
    wire.send(encoded(*commands))
    return [wire.reply() for _ in commands]


def shown(replies: list[Any]) -> list[Any]:
    return [str(reply) if isinstance(reply, CommandError) else reply for reply in replies]


def commits(server: Any) -> int:
    """Number of the catalog's last transaction, counted by a prefix that nobody keeps."""
    with server.app.service.store._engine.catalog.snapshot() as reader:
        number: int = reader.txn.id()
        return number


def test_a_command_sees_those_before_it(server: Any) -> None:
    wire = server.connect()
    commands = [("SET", "a", "1"), ("INCR", "a"), ("GET", "a"), ("DEL", "a"), ("GET", "a"), ("INCR", "a")]
    assert pipeline(wire, *commands) == ["OK", 2, b"2", 1, None, 1]


def test_one_that_fails_leaves_the_others_be(server: Any) -> None:
    wire = server.connect()
    commands = [
        ("SET", "text", "x"),
        ("INCR", "text"),
        ("HSET", "text", "f", "v"),
        ("SET", "text", "y", "EX", "0"),
        ("NOSUCH",),
        ("SET", "n", "1"),
        ("GET",),
        ("MGET", "text", "n"),
    ]
    assert shown(pipeline(wire, *commands)) == [
        "OK",
        "ERR value is not an integer or out of range",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "ERR invalid expire time in 'set' command",
        "ERR unknown command 'NOSUCH', with args beginning with: ",
        "OK",
        "ERR wrong number of arguments for 'get' command",
        [b"x", b"1"],
    ]


def test_when_room_runs_out_what_fits_is_stored(start_local: Any) -> None:
    server = start_local(max_bytes=40_000)
    wire = server.connect()
    commands = [("SET", f"k{i}", "v" * 1000) for i in range(60)]
    replies = pipeline(wire, *commands)
    stored = [i for i, reply in enumerate(replies) if reply == "OK"]
    assert 0 < len(stored) < 60
    assert all(reply.code == "OOM" for i, reply in enumerate(replies) if i not in stored)
    assert [i for i in range(60) if wire.command("EXISTS", f"k{i}")] == stored
    replies = pipeline(wire, ("DEL", "k0"), ("SET", "new", "w" * 1000), ("STRLEN", "new"))
    assert replies == [1, "OK", 1000]


def test_large_answers_keep_their_place(server: Any) -> None:
    wire = server.connect()
    replies = pipeline(
        wire,
        ("SET", "big", LARGE),
        ("SET", "n", "1"),
        ("GET", "big"),
        ("INCR", "n"),
        ("PING",),
        ("MGET", "big", "n"),
        ("SET", "big", LARGE + b"!"),
        ("GET", "big"),
        ("KV.PREFIX.LOOKUP", "none"),
        ("GET", "n"),
    )
    assert replies == [
        "OK", "OK", LARGE, 2, "PONG", [LARGE, b"2"], "OK", LARGE + b"!", "MISS", b"2",
    ]  # fmt: skip


def test_more_answers_than_a_run_may_hold(server: Any) -> None:
    wire = server.connect()
    value = b"v" * 60_000
    wire.command("SET", "k", value)
    count = 4 * ANSWER_BYTES // len(value)
    commands = [command for i in range(count) for command in (("GET", "k"), ("SET", "last", i))]
    assert pipeline(wire, *commands) == [value, "OK"] * count
    assert wire.command("GET", "last") == b"%d" % (count - 1)


def test_more_commands_than_a_run_may_hold(server: Any) -> None:
    wire = server.connect()
    count = 3 * MOST_CALLS + 5
    assert pipeline(wire, *[("INCR", "n")] * count) == list(range(1, count + 1))


def test_a_pipeline_is_few_transactions(server: Any) -> None:
    wire = server.connect()
    before = commits(server)
    assert pipeline(wire, *[("SET", f"k{i}", i) for i in range(400)]) == ["OK"] * 400
    assert 0 < commits(server) - before < 40


def test_connections_share_a_transaction_and_none_is_lost(server: Any) -> None:
    wires = [server.connect() for _ in range(20)]
    for wire in wires:
        wire.send(encoded(*[("INCR", "n"), ("RPUSHX", "n"), ("HINCRBY", "h", "f", 1)] * 30))
    seen = []
    for wire in wires:
        replies = [wire.reply() for _ in range(90)]
        assert all(isinstance(reply, CommandError) for reply in replies[1::3])
        numbers = replies[::3]
        assert numbers == sorted(numbers)
        seen += numbers
    assert sorted(seen) == list(range(1, 601))
    assert wires[0].command("HGET", "h", "f") == b"600"


def test_what_is_watched_is_seen_to_change(server: Any) -> None:
    ours, other = server.connect(), server.connect()
    ours.command("SET", "k", "1")
    assert ours.command("WATCH", "k") == "OK"
    assert pipeline(other, ("SET", "a", "1"), ("SET", "k", "1"), ("SET", "b", "1")) == ["OK"] * 3
    assert pipeline(ours, ("MULTI",), ("GET", "k"), ("EXEC",)) == ["OK", "QUEUED", None]


def test_what_ends_a_connection_comes_after_the_answers(server: Any) -> None:
    commands = encoded(("SET", "k", "1"), ("INCR", "k"), ("GET", "k"))
    answers = b"+OK\r\n:2\r\n$1\r\n2\r\n"
    assert server.connect().send(commands + encoded(("QUIT",))).read_to_end() == answers + b"+OK\r\n"
    broken = server.connect().send(commands + b"*1\r\n$-2\r\n").read_to_end()
    assert re.fullmatch(re.escape(answers) + rb"-ERR Protocol error: [^\r]+\r\n", broken)
    half = server.connect().send(commands)
    half.socket.shutdown(socket.SHUT_WR)
    assert half.read_to_end() == answers


def test_unanswered_commands_leave_no_gap(server: Any) -> None:
    wire = server.connect()
    commands = [("SET", "k", "1"), ("CLIENT", "REPLY", "OFF"), ("INCR", "k"), ("CLIENT", "REPLY", "ON")]
    wire.send(encoded(*commands, ("GET", "k")))
    assert [wire.reply() for _ in range(3)] == ["OK", "OK", b"2"]


def test_commands_before_a_password_are_refused_one_by_one(start_local: Any) -> None:
    wire = start_local(password="secret").connect()
    replies = pipeline(wire, ("SET", "k", "1"), ("AUTH", "secret"), ("SET", "k", "2"), ("GET", "k"))
    assert shown(replies) == ["NOAUTH Authentication required.", "OK", "OK", b"2"]

"""Pipelines on plain keys: commands share a transaction, and nobody can tell."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Sequence
from typing import Any

from pionkv.protocol.errors import CommandError
from pionkv.protocol.request import encode_command
from pionkv.server.connection import FULL_READ, Connection
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


def test_a_run_of_sets_keeps_the_last_value_of_each_key(server: Any, wire: Any) -> None:
    assert pipeline(wire, ("HSET", "h", "f", "v"), ("SET", "ends", "1", "PX", 100_000), ("SET", "big", LARGE))
    sets = [("SET", f"k{i % 5}", f"v{i}") for i in range(150)]
    sets += [("SET", "h", "string now"), ("SET", "ends", "never"), ("SET", "big", "small"), ("SET", "k0", "")]
    assert pipeline(wire, *sets) == ["OK"] * len(sets)
    names = ["k0", "k1", "k2", "k3", "k4", "h", "ends", "big"]
    values = [b"", b"v146", b"v147", b"v148", b"v149", b"string now", b"never", b"small"]
    assert pipeline(wire, *[("GET", name) for name in names]) == values
    assert wire.command("PTTL", "ends") == -1
    # With options among them a run is run line by line.
    options = [("SET", "k1", "a"), ("SET", "k1", "b", "NX"), ("SET", "k1", "c", "GET"), ("SET", "k1")]
    replies = pipeline(wire, *options)
    assert replies[:3] == ["OK", None, b"a"] and replies[3].code == "ERR"
    assert wire.command("GET", "k1") == b"c"


def test_a_run_of_gets_tells_each_key_as_it_is(server: Any, wire: Any) -> None:
    pipeline(wire, ("SET", "a", "1"), ("SET", "b", "22"), ("SET", "empty", ""), ("SET", "long", "L" * 5000))
    pipeline(wire, ("SET", "large", LARGE), ("SET", "gone", "x", "PX", 1), ("HSET", "h", "f", "v"))
    gets = [("GET", name) for name in ("a", "b", "a")]
    everything = [("GET", name) for name in ("a", "empty", "long", "gone", "none", "h", "large", "b")]
    wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
    expected = [b"1", b"", b"L" * 5000, None, None, wrong, LARGE, b"22"]
    while wire.command("EXISTS", "gone"):
        pass
    for _ in range(3):
        assert pipeline(wire, *gets) == [b"1", b"22", b"1"]
        assert shown(pipeline(wire, *everything)) == expected
    other = server.connect()
    for value in (b"3", b"44", b"5"):
        assert other.command("SET", "a", value) == "OK"
        assert pipeline(wire, *gets) == [value, b"22", value]
    assert wire.command("PEXPIRE", "a", 1) == 1
    while wire.command("EXISTS", "a"):
        pass
    assert pipeline(wire, *gets) == [None, b"22", None]


def test_a_run_of_gets_is_a_use_of_the_keys_unless_the_client_says_no(server: Any, wire: Any) -> None:
    uses = server.app.service.store.keyspace._uses
    pipeline(wire, ("SET", "a", "1"), ("SET", "b", "2"), ("GET", "a"), ("GET", "b"))
    gets = [("GET", "a"), ("GET", "b")] * 2
    uses.clear()
    assert pipeline(wire, *gets) == [b"1", b"2"] * 2 and len(uses) == 2
    assert wire.command("CLIENT", "NO-TOUCH", "ON") == "OK"
    uses.clear()
    assert pipeline(wire, *gets) == [b"1", b"2"] * 2 and not uses


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


SMALL = [("PING",), ("ECHO", "x"), ("GET", "k"), ("KV.PREFIX.LOOKUP", "n"), ("EXISTS", "k"), ("PING", "y")]
"""Commands of all kinds that are run together."""


def test_every_command_of_a_pipeline_is_counted(server: Any, wire: Any) -> None:
    def numbers() -> dict[str, int]:
        text = wire.command("INFO", "stats", "commandstats").decode()
        found = dict(re.findall(r"cmdstat_(\S+):calls=(\d+)", text))
        total, failed = (
            re.search(rf"{name}:(\d+)", text)[1]
            for name in ("total_commands_processed", "total_error_replies")
        )
        return {name: int(count) for name, count in (found | {"total": total, "failed": failed}).items()}

    assert pipeline(wire, *SMALL, ("GET",), ("INCR", "k"))[0] == "PONG"
    before, count = numbers(), 40
    pipeline(wire, *SMALL * count, ("GET",), ("INCR", "k"))
    after = numbers()
    assert {name: after[name] - before[name] for name in ("ping", "echo", "get", "incr", "exists")} == {
        "ping": 2 * count, "echo": count, "get": count, "incr": 1, "exists": count,
    }  # fmt: skip
    assert after["kv.prefix.lookup"] - before["kv.prefix.lookup"] == count
    assert (after["total"] - before["total"], after["failed"] - before["failed"]) == (6 * count + 3, 1)
    sent = len(SMALL) + 2 + 1 + len(SMALL) * count + 2 + 1 + 1
    assert f" tot-cmds={sent} " in wire.command("CLIENT", "INFO").decode()
    histogram = wire.command("LATENCY", "HISTOGRAM", "ping")
    assert histogram[1][1] == after["ping"] and histogram[1][3][-1] == after["ping"]


def test_the_last_command_of_a_pipeline_is_shown(server: Any) -> None:
    ours, other = server.connect(), server.connect()
    for last, name in ((("GET", "k"), "get"), (("PING",), "ping"), (("SET", "k", "1"), "set")):
        pipeline(ours, *SMALL, last, ("GET",))
        assert f" cmd={name} " in other.command("CLIENT", "LIST").decode().splitlines()[0]


def test_slow_commands_of_a_pipeline_are_listed_one_by_one(server: Any, wire: Any) -> None:
    assert wire.command("CONFIG", "SET", "slowlog-log-slower-than", 0) == "OK"
    assert wire.command("SLOWLOG", "RESET") == "OK"
    commands = [*SMALL, ("SET", "k", "1"), *SMALL]
    pipeline(wire, *commands)
    words = [entry[3] for entry in wire.command("SLOWLOG", "GET", -1)]
    expected = [[word.encode() for word in command] for command in commands]
    assert words[::-1][1:] == expected


def test_who_watches_sees_every_command_of_a_pipeline(server: Any, wire: Any) -> None:
    watcher = server.connect()
    assert watcher.command("MONITOR") == "OK"
    pipeline(wire, *SMALL, ("SET", "k", "1"), *SMALL)
    for command in [*SMALL, ("SET", "k", "1"), *SMALL]:
        assert watcher.reply().endswith(" ".join(f'"{word}"' for word in command))


def test_who_may_not_do_everything_is_refused_in_the_middle_of_a_pipeline(server: Any, wire: Any) -> None:
    rules = ("on", ">pw", "~mine*", "+get", "+ping", "+kv.prefix.lookup", "+acl|log", "+auth")
    assert wire.command("ACL", "SETUSER", "guest", *rules) == "OK"
    guest = server.connect()
    assert guest.command("AUTH", "guest", "pw") == "OK"
    key, command = "NOPERM No permissions to access a key", "NOPERM User guest has no permissions to run the"
    commands = [
        ("PING",), ("GET", "mine"), ("GET", "theirs"), ("GET", "mine2"), ("KV.PREFIX.LOOKUP", "mine"),
        ("KV.PREFIX.LOOKUP", "theirs"), ("ECHO", "x"), ("PING",),
    ]  # fmt: skip
    assert shown(pipeline(guest, *commands)) == [
        "PONG", None, key, None, "MISS", key, f"{command} 'echo' command", "PONG",
    ]  # fmt: skip
    log = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in wire.command("ACL", "LOG")]
    assert [(entry[b"object"], entry[b"count"]) for entry in log] == [(b"echo", 1), (b"theirs", 2)]


def test_a_lookup_sees_what_came_before_it(wire: Any) -> None:
    rows = bytes(128)
    store = [("V.STOREBATCH", sid, 0, 0, 1, rows, "FMT", "F16") for sid in ("n_pk", "n_pv")]
    look = ("KV.PREFIX.LOOKUP", "n")
    commands = [
        look, ("KV.PREFIX.REGISTER", "n", 64, "fp16"), look, look, store[0], look, store[1], look,
        ("PING",), look, ("KV.PREFIX.DROP", "n"), look, (*look, "TOKENS"), look,
    ]  # fmt: skip
    assert shown(pipeline(wire, *commands)) == [
        "MISS", "OK", "MISS", "MISS", "OK", "MISS", "OK", "HIT",
        "PONG", "HIT", 1, "MISS", "ERR KV.PREFIX.LOOKUP option needs a value", "MISS",
    ]  # fmt: skip


def test_what_follows_large_answers_comes_after_all_of_them(server: Any) -> None:
    """Those that the peer has not read yet: a command that came after them may not be run before."""
    wire = server.connect()
    large = b"L" * (8 << 20)
    assert wire.command("SET", "big", large) == "OK"
    commands = [("GET", "big"), ("GET", "big"), ("PING",), ("GET", "big"), ("ECHO", "x")]
    assert pipeline(wire, *commands) == [large, large, "PONG", large, b"x"]


def test_a_lookup_that_waits_among_others_is_counted_and_named_once(server: Any, wire: Any) -> None:
    assert wire.command("ACL", "SETUSER", "guest", "on", ">pw", "~*", "+@all", "tenant=guests") == "OK"
    guest, other = server.connect(), server.connect()
    for each in (guest, other):
        assert each.command("AUTH", "guest", "pw") == "OK"
    rows = bytes(128)
    assert other.command("KV.PREFIX.REGISTER", "there", 64, "fp16") == "OK"
    for sid in ("there_pk", "there_pv"):
        assert other.command("V.STOREBATCH", sid, 0, 0, 1, rows, "FMT", "F16") == "OK"
    assert other.command("KV.PREFIX.CLAIM", "n", 60_000) == "CLAIMED"
    look = ("KV.PREFIX.LOOKUP", "there")
    guest.send(
        encoded(look, ("KV.PREFIX.LOOKUP", "n", "WAIT", 50_000), look, (*look, "WAIT", 1), look, ("PING",))
    )
    assert guest.reply() == "HIT"
    assert other.command("KV.PREFIX.CLAIM", "n", 0) == "OK"
    assert [guest.reply() for _ in range(5)] == ["MISS", "HIT", "HIT", "HIT", "PONG"]
    assert " tot-cmds=8 " in guest.command("CLIENT", "INFO").decode()


def test_a_lookup_that_waits_holds_up_what_follows(server: Any, wire: Any) -> None:
    other = server.connect()
    assert other.command("KV.PREFIX.CLAIM", "n", 60_000) == "CLAIMED"
    wire.send(encoded(("PING",), ("KV.PREFIX.LOOKUP", "n", "WAIT", 50_000), ("PING", "after"), ("GET", "k")))
    assert wire.reply() == "PONG"
    assert other.command("KV.PREFIX.CLAIM", "n", 0) == "OK"
    assert [wire.reply() for _ in range(3)] == ["MISS", b"after", None]


def test_others_are_looked_at_between_the_reads_of_a_long_pipeline(server, monkeypatch) -> None:
    """A pipeline without an end has one full read in a turn of the event loop."""
    turns, ended, reads = [0], threading.Event(), []
    real = Connection.buffer_updated

    def buffer_updated(connection, nbytes):
        if nbytes >= FULL_READ:
            reads.append(turns[0])
        real(connection, nbytes)

    def count(app):
        turns[0] += 1
        if not ended.is_set():
            app.loop.call_soon(count, app)

    monkeypatch.setattr(Connection, "buffer_updated", buffer_updated)
    wire = server.connect()
    server.call(count)
    many = 600_000
    sender = threading.Thread(target=wire.send, args=(b"PING\r\n" * many,))
    sender.start()
    assert wire.read(7 * many) == b"+PONG\r\n" * many
    sender.join()
    ended.set()
    assert len(reads) == len(set(reads))

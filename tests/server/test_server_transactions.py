"""MULTI and EXEC: all or nothing for everybody else, and what ends a transaction."""

from __future__ import annotations

from typing import Any

import pytest
from pionkv.protocol.errors import CommandError
from pionkv.storage.keyspace.large import LARGE_BYTES

LARGE = b"L" * (LARGE_BYTES + 5)


def run(wire: Any, *commands: tuple[bytes | str, ...]) -> Any:
    """MULTI, the commands, EXEC; the reply to EXEC."""
    assert wire.command("MULTI") == "OK"
    for command in commands:
        assert wire.command(*command) == "QUEUED"
    return wire.command("EXEC")


def refused(wire: Any, *command: bytes | str) -> str:
    reply = wire.command(*command)
    assert isinstance(reply, CommandError)
    return str(reply)


def test_nobody_sees_a_part_of_it(server: Any) -> None:
    ours, other = server.connect(), server.connect()
    ours.command("MULTI")
    ours.command("SET", "a", "1")
    ours.command("HSET", "h", "f", "1")
    assert other.command("EXISTS", "a", "h") == 0
    assert ours.command("EXEC") == ["OK", 1]
    assert other.command("EXISTS", "a", "h") == 2


def test_replies_come_in_order_also_of_what_touches_no_keys(either: Any) -> None:
    replies = run(either, ("SET", "a", "1"), ("PING",), ("INCR", "a"), ("ECHO", "x"), ("GET", "a"))
    assert replies == ["OK", "PONG", 2, b"x", b"2"]


def test_a_failing_command_does_not_undo_the_others(wire: Any) -> None:
    first, second, third = run(wire, ("SET", "a", "x"), ("INCR", "a"), ("APPEND", "a", "y"))
    assert (first, third) == ("OK", 2) and isinstance(second, CommandError)
    assert wire.command("GET", "a") == b"xy"


def test_a_watched_key_that_changed_stops_it(server: Any) -> None:
    ours, other = server.connect(), server.connect()
    ours.command("SET", "a", "1")
    ours.command("WATCH", "a", "absent")
    assert run(ours, ("INCR", "a")) == [2]
    for change in (("SET", "a", "2"), ("DEL", "a"), ("EXPIRE", "a", "100"), ("SET", "absent", "x")):
        ours.command("MSET", "a", "2", "b", "1")
        ours.command("DEL", "absent")
        ours.command("WATCH", "a", "absent")
        other.command(*change)
        assert run(ours, ("SET", "b", "9")) is None, change
        assert ours.command("GET", "b") == b"1"


def test_unwatch_and_discard_forget_what_is_watched(server: Any) -> None:
    ours, other = server.connect(), server.connect()
    for forget in (("UNWATCH",), ("MULTI", "DISCARD"), ("RESET",)):
        ours.command("WATCH", "a")
        for word in forget:
            ours.command(word)
        other.command("INCR", "a")
        assert run(ours, ("PING",)) == ["PONG"]


def test_the_first_state_of_a_key_that_is_watched_twice_counts(server: Any) -> None:
    ours, other = server.connect(), server.connect()
    ours.command("WATCH", "a")
    other.command("SET", "a", "1")
    ours.command("WATCH", "a")
    assert run(ours, ("PING",)) is None


@pytest.mark.parametrize(
    "bad", [("NOSUCH",), ("GET",), ("V.CREATE", "s", "64"), ("KV.PREFIX.DROP", "n"), ("CLIENT", "NOSUCH")]
)
def test_a_command_that_cannot_be_gathered_spoils_it(wire: Any, bad: tuple[str, ...]) -> None:
    wire.command("MULTI")
    wire.command("SET", "a", "1")
    refused(wire, *bad)
    assert refused(wire, "EXEC") == "EXECABORT Transaction discarded because of previous errors."
    assert wire.command("EXISTS", "a") == 0
    assert run(wire, ("SET", "a", "1")) == ["OK"]


def test_errors_outside_a_transaction_do_not_spoil_the_next(wire: Any) -> None:
    refused(wire, "NOSUCH")
    assert run(wire, ("PING",)) == ["PONG"]


@pytest.mark.parametrize(
    ("before", "command", "text"),
    [
        ((), ("EXEC",), "ERR EXEC without MULTI"),
        ((), ("DISCARD",), "ERR DISCARD without MULTI"),
        (("MULTI",), ("MULTI",), "ERR MULTI calls can not be nested"),
        (("MULTI",), ("WATCH", "a"), "ERR WATCH inside MULTI is not allowed"),
        (("MULTI",), ("V.DROP", "s"), "ERR Command not allowed inside a transaction"),
    ],
)
def test_what_is_refused(wire: Any, before: tuple[str, ...], command: tuple[str, ...], text: str) -> None:
    for word in before:
        wire.command(word)
    assert refused(wire, *command) == text


def test_when_room_runs_out_nothing_is_done(start_local: Any) -> None:
    wire = start_local(max_bytes=1 << 20).connect()
    wire.command("MULTI")
    for number in range(30):
        wire.command("SET", f"k{number}", b"v" * 50_000)
    assert refused(wire, "EXEC").startswith("EXECABORT Transaction discarded because of: OOM")
    assert wire.command("DBSIZE") == 0


def test_large_strings_go_in_and_come_out(either: Any) -> None:
    replies = run(either, ("SET", "a", LARGE), ("GET", "a"), ("MGET", "a", "b", "a"), ("STRLEN", "a"))
    assert replies == ["OK", LARGE, [LARGE, None, LARGE], len(LARGE)]
    assert either.command("GET", "a") == LARGE


def test_a_transaction_ends_with_its_connection(server: Any) -> None:
    ours, other = server.connect(), server.connect()
    ours.command("MULTI")
    ours.command("SET", "a", "1")
    ours.close()
    assert other.command("EXISTS", "a") == 0


def test_everything_goes_in_one_step_also_prefixes(wire: Any) -> None:
    wire.command("KV.PREFIX.REGISTER", "p", "64", "fp16")
    wire.command("SET", "a", "1")
    assert run(wire, ("DBSIZE",), ("FLUSHALL",), ("DBSIZE",), ("SET", "b", "1")) == [2, "OK", 0, "OK"]
    assert wire.command("KEYS", "*") == [b"b"]

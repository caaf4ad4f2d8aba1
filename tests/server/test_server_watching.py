"""What an operator sees and changes: SLOWLOG, LATENCY, MEMORY, CONFIG SET, RESETSTAT, INFO commandstats."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from pionkv.protocol.errors import CommandError
from pionkv.protocol.values import Verbatim
from pionkv.server.timing import Histogram

DIM = 64


def ok(wire: Any, *line: Any) -> Any:
    answer = wire.command(*line)
    assert not isinstance(answer, CommandError), answer
    return answer


def table(answer: Any) -> dict[Any, Any]:
    """A map of either protocol."""
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))


def plain(answer: Any) -> bytes:
    return answer.text if isinstance(answer, Verbatim) else answer


def info(wire: Any, section: str) -> dict[str, str]:
    lines = plain(wire.command("INFO", section)).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def test_slow_commands_are_kept_newest_first(either: Any) -> None:
    either.command("CLIENT", "SETNAME", "me")
    ok(either, "CONFIG", "SET", "slowlog-log-slower-than", 0)
    either.command("SET", "k", b"\0" + b"x" * 200)
    either.command("MGET", *map(str, range(40)))
    newest, older = ok(either, "SLOWLOG", "GET", 2)
    assert newest[0] == older[0] + 1 and abs(newest[1] - time.time()) < 60 and newest[2] >= 0
    assert older[3] == [b"SET", b"k", b"\0" + b"x" * 127 + b"... (73 more bytes)"]
    assert newest[3][-1] == b"... (10 more arguments)" and len(newest[3]) == 32
    assert newest[4].startswith(b"127.0.0.1:") and newest[5] == b"me"


def test_how_many_slow_commands_are_kept(wire: Any) -> None:
    ok(wire, "CONFIG", "SET", "slowlog-max-len", 5, "slowlog-log-slower-than", 0)
    for _ in range(9):
        wire.command("PING")
    assert wire.command("SLOWLOG", "LEN") == 5
    assert len(wire.command("SLOWLOG", "GET")) == 5
    ok(wire, "CONFIG", "SET", "slowlog-max-len", 2, "slowlog-log-slower-than", -1)
    assert [row[3][0] for row in wire.command("SLOWLOG", "GET", -1)] == [b"SLOWLOG", b"SLOWLOG"]
    assert wire.command("SLOWLOG", "RESET") == "OK" and wire.command("SLOWLOG", "LEN") == 0
    assert "greater than or equal to -1" in str(wire.command("SLOWLOG", "GET", -2))


def test_streamed_and_large_commands_are_timed(wire: Any) -> None:
    wire.command("V.CREATE", "s", DIM, "VQUANT", "fp16")
    ok(wire, "CONFIG", "SET", "slowlog-log-slower-than", 0)
    rows = bytes(8192 * DIM * 4)
    wire.command("V.STOREBATCH", "s", 0, 0, 8192, rows)
    wire.command("V.FETCH", "s", 0, "RANGE", 0, 8192)
    fetched, stored = wire.command("SLOWLOG", "GET", 2)
    assert fetched[3][:2] == [b"V.FETCH", b"s"]
    assert stored[3] == [b"V.STOREBATCH", b"s", b"0", b"0", b"8192", b"(%d bytes)" % len(rows)]


def test_passwords_are_kept_nowhere(server: Any, wire: Any) -> None:
    watcher = server.connect()
    watcher.send(b"MONITOR\r\n").expect(b"+OK\r\n")
    ok(wire, "CONFIG", "SET", "slowlog-log-slower-than", 0)
    wire.command("AUTH", "hidden")
    wire.command("HELLO", 2, "AUTH", "default", "hidden")
    ok(wire, "ACL", "SETUSER", "u", ">hidden")
    ok(wire, "CONFIG", "SET", "requirepass", "hidden")
    assert b"hidden" not in repr(wire.command("SLOWLOG", "GET", -1)).encode()
    assert b"hidden" not in repr(wire.command("CONFIG", "GET", "*")).encode()
    assert b"hidden" not in repr(wire.command("ACL", "SETUSER", "u", "<hidden2")).encode()
    ok(wire, "PING")
    assert watcher.reply().endswith('"PING"')


def test_histograms_of_commands(either: Any) -> None:
    for _ in range(7):
        either.command("GET", "k")
    found = table(ok(either, "LATENCY", "HISTOGRAM", "get", "nosuch"))
    assert list(found) == [b"get"]
    times = table(found[b"get"])
    counts = table(times[b"histogram_usec"])
    assert times[b"calls"] == 7 and list(counts.values())[-1] == 7
    assert all(bound & (bound - 1) == 0 for bound in counts)
    assert {b"client|id", b"get"} <= set(table(either.command("LATENCY", "HISTOGRAM"))) | {b"client|id"}
    assert info(either, "commandstats")["cmdstat_get"].startswith("calls=7,usec=")
    assert info(either, "latencystats")["latency_percentiles_usec_get"].startswith("p50=")


def test_a_histogram_counts_in_powers_of_two() -> None:
    times = Histogram()
    for micros in (0, 1, 3, 3, 4, 1000):
        times.add(micros * 1000)
    assert times.cumulative() == {1: 1, 2: 2, 4: 4, 8: 5, 1024: 6}
    assert times.percentile(0.5) == 4 and times.percentile(1.0) == 1024 and times.total_us == 1011


def test_spikes(server: Any, either: Any) -> None:
    assert b"threshold" in plain(either.command("LATENCY", "DOCTOR"))
    ok(either, "CONFIG", "SET", "latency-monitor-threshold", 1)
    server.call(lambda app: app.service.timing.spike("command", 5_000_000, 100.0))
    server.call(lambda app: app.service.timing.spike("command", 9_000_000, 100.5))
    server.call(lambda app: app.service.timing.spike("command", 3_000_000, 102.0))
    server.call(lambda app: app.service.timing.spike("command", 900_000, 103.0))
    assert either.command("LATENCY", "HISTORY", "command") == [[100, 9], [102, 3]]
    assert [b"command", 102, 3, 9] in either.command("LATENCY", "LATEST")
    assert b"worst 9 ms" in plain(either.command("LATENCY", "DOCTOR"))
    assert either.command("LATENCY", "HISTORY", "nosuch") == []
    assert either.command("LATENCY", "RESET", "command", "nosuch") == 1
    assert either.command("LATENCY", "HISTORY", "command") == []


def test_config_set_is_all_or_nothing(wire: Any) -> None:
    def refused(*line: Any) -> str:
        answer = wire.command("CONFIG", "SET", *line)
        assert isinstance(answer, CommandError)
        return answer.message

    failed = "CONFIG SET failed (possibly related to argument '{}') - {}"
    assert refused("maxclients", 7, "port", 1) == failed.format("port", "can't set immutable config")
    assert refused("maxclients", 7, "save", "") == failed.format("save", "can't set immutable config")
    assert refused("maxclients", 7, "nosuch", 1) == (
        "Unknown option or number of arguments for CONFIG SET - 'nosuch'"
    )
    assert refused("maxclients", 7, "max-clients", 8) == failed.format("max-clients", "duplicate parameter")
    assert refused("maxclients", 0) == failed.format("maxclients", "0 is not within 1..1000000")
    assert refused("maxclients") == "wrong number of arguments for 'config|set' command"
    assert wire.command("CONFIG", "GET", "maxclients") == [b"maxclients", b"10000"]


def test_a_budget_set_while_running_holds(wire: Any) -> None:
    rows = bytes(4096 * DIM * 4)
    for name in "abcd":
        wire.command("KV.PREFIX.REGISTER", name, DIM, "fp32")
        for side in ("_pk", "_pv"):
            assert ok(wire, "V.STOREBATCH", name + side, 0, 0, 4096, rows) == "OK"
    ok(wire, "CONFIG", "SET", "maxmemory", "5mb")
    assert info(wire, "memory")["maxmemory"] == str(5 << 20)
    wire.command("KV.PREFIX.REGISTER", "e", DIM, "fp32")
    for side in ("_pk", "_pv"):
        assert ok(wire, "V.STOREBATCH", "e" + side, 0, 0, 4096, rows) == "OK"
    assert int(info(wire, "pion")["stored_bytes"]) <= 5 << 20
    assert str(wire.command("V.STOREBATCH", "e_pk", 0, 0, 40960, rows * 10)).startswith("OOM")
    ok(wire, "CONFIG", "SET", "maxmemory", "0")
    assert ok(wire, "V.STOREBATCH", "e_pk", 0, 0, 40960, rows * 10) == "OK"


def test_the_limit_of_clients_and_a_password_set_while_running(server: Any, wire: Any) -> None:
    ok(wire, "CONFIG", "SET", "maxclients", 1)
    assert b"max number of clients" in server.connect().read_to_end()
    ok(wire, "CONFIG", "SET", "maxclients", 10, "requirepass", "new")
    assert wire.command("PING") == "PONG"
    other = server.connect()
    assert str(other.command("PING")).startswith("NOAUTH") and other.command("AUTH", "new") == "OK"
    ok(wire, "CONFIG", "SET", "requirepass", "")
    assert server.connect().command("PING") == "PONG"
    assert wire.command("CONFIG", "GET", "requirepass") == [b"requirepass", b""]


def test_idle_clients_are_closed_and_listeners_are_not(server: Any, wire: Any) -> None:
    idle, listener = server.connect(), server.connect()
    listener.send(b"SUBSCRIBE a\r\n").expect(b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n")
    assert idle.command("PING") == "PONG"
    ok(wire, "CONFIG", "SET", "timeout", 1)
    while b"id=2 " in plain(wire.command("CLIENT", "LIST")):
        pass
    with pytest.raises((EOFError, ConnectionResetError)):
        idle.command("PING")
    assert wire.command("PUBLISH", "a", "m") == 1


def test_resetstat(either: Any) -> None:
    either.command("GET", "k")
    either.command("NOSUCH")
    ok(either, "CONFIG", "RESETSTAT")
    found = info(either, "stats")
    assert int(found["total_commands_processed"]) == 1 and found["total_error_replies"] == "0"
    assert list(table(either.command("LATENCY", "HISTOGRAM"))) == [b"config|resetstat", b"info"]


def test_memory(either: Any) -> None:
    either.command("SET", "key", b"x" * 1000)
    either.command("KV.PREFIX.REGISTER", "p", DIM, "fp32")
    either.command("V.STOREBATCH", "p_pk", 0, 0, 4, bytes(4 * DIM * 4))
    assert 1000 < either.command("MEMORY", "USAGE", "key", "SAMPLES", 5) < 1500
    assert either.command("MEMORY", "USAGE", "p") == 4 * DIM * 4
    assert either.command("MEMORY", "USAGE", "nosuch") is None
    assert str(either.command("MEMORY", "USAGE", "key", "SAMPLES", -1)) == "ERR syntax error"
    found = table(ok(either, "MEMORY", "STATS"))
    assert (
        found[b"keys.count"] == 1 and found[b"dataset.bytes"] > 1000 and found[b"total.allocated"] > 1 << 20
    )
    assert either.command("MEMORY", "PURGE") == "OK"


def test_the_doctor_finds_nothing_in_a_fresh_server(server_process: Any, wire_class: Any) -> None:
    wire = wire_class(socket.create_connection(("127.0.0.1", server_process.port)))
    assert wire.command("MEMORY", "DOCTOR") == b"Nothing stands out.\n"


def test_the_doctor_sees_a_full_budget(start_local: Any) -> None:
    wire = start_local(max_bytes=2 << 20).connect()
    wire.command("SET", "k", bytes(1_950_000))
    assert b"% full" in wire.command("MEMORY", "DOCTOR")


def test_lolwut(either: Any) -> None:
    lines = plain(ok(either, "LOLWUT", "VERSION", 5)).decode().splitlines()
    assert len(lines) == 26 and {len(line) for line in lines[:24]} == {79} and "pionkv ver." in lines[-1]

"""Several workers, one view: SLOWLOG, LATENCY, MONITOR, ACL LOG, CLIENT, PUBSUB, CONFIG, whoever is asked."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pionkv.protocol.errors import CommandError

WORKERS = 3


class Wires:
    """A client of each worker of a server."""

    def __init__(self, server: Any, wire_class: type[Any]) -> None:
        self.server, self._class, self._open = server, wire_class, []
        found: dict[str, Any] = {}
        while len(found) < WORKERS:
            wire = self.connect()
            found[section(wire, "workers")["worker_id"]] = wire
        self.each = [found[str(number)] for number in range(WORKERS)]

    def connect(self) -> Any:
        self._open.append(self._class(socket.create_connection(("127.0.0.1", self.server.port))))
        return self._open[-1]

    def close(self) -> None:
        for wire in self._open:
            wire.close()


def section(wire: Any, name: str) -> dict[str, str]:
    lines = wire.command("INFO", name).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def settle(wires: Wires, parameter: str, value: str) -> None:
    """Set a parameter, and wait until every worker has it."""
    assert wires.each[0].command("CONFIG", "SET", parameter, value) == "OK"
    for wire in wires.each:
        while wire.command("CONFIG", "GET", parameter)[1] != value.encode():
            pass


@pytest.fixture
def wires(start_server: Any, wire_class: type[Any]) -> Iterator[Wires]:
    found = Wires(start_server("--workers", str(WORKERS)), wire_class)
    yield found
    found.close()


def test_slow_commands(wires: Wires) -> None:
    settle(wires, "slowlog-max-len", "100000")
    settle(wires, "slowlog-log-slower-than", "0")
    for number, wire in enumerate(wires.each):
        wire.command("ECHO", f"of worker {number}")
    settle(wires, "slowlog-log-slower-than", "-1")
    for wire in wires.each:
        rows = wire.command("SLOWLOG", "GET", -1)
        said = [row[3][1] for row in rows if row[3][0] == b"ECHO"]
        assert said == [b"of worker 2", b"of worker 1", b"of worker 0"], "the last first"
        assert len({row[0] for row in rows}) == len(rows) == wire.command("SLOWLOG", "LEN")
    settle(wires, "slowlog-max-len", "2")
    assert len(wires.each[1].command("SLOWLOG", "GET", -1)) == wires.each[1].command("SLOWLOG", "LEN") == 2
    assert wires.each[1].command("SLOWLOG", "RESET") == "OK"
    assert [wire.command("SLOWLOG", "LEN") for wire in wires.each] == [0] * WORKERS


def test_in_a_transaction_as_well(wires: Wires) -> None:
    wire = wires.each[0]
    for line in (("MULTI",), ("SET", "k", "v"), ("SLOWLOG", "LEN"), ("CLIENT", "LIST"), ("GET", "k")):
        assert wire.command(*line) in ("OK", "QUEUED")
    done = wire.command("EXEC")
    assert done[0] == "OK" and isinstance(done[1], int) and done[3] == b"v"
    assert len(done[2].splitlines()) == len(wires._open)


def test_times_and_spikes(wires: Wires) -> None:
    for wire in wires.each:
        wire.command("STRLEN", "k")
    for wire in wires.each:
        while (
            dict(zip(*[iter(wire.command("LATENCY", "HISTOGRAM", "strlen"))] * 2, strict=True))[b"strlen"][1]
            < WORKERS
        ):
            pass
        assert section(wire, "commandstats")["cmdstat_strlen"].startswith(f"calls={WORKERS},")
    settle(wires, "latency-monitor-threshold", "1")
    for wire in wires.each:
        wire.command("MSET", *("k", "v") * 30_000)
    for wire in wires.each:
        latest = {row[0]: row for row in wire.command("LATENCY", "LATEST")}
        assert latest[b"command"][2] <= latest[b"command"][3]
        assert len(wire.command("LATENCY", "HISTORY", "command")) >= 1
    settle(wires, "latency-monitor-threshold", "0")
    assert wires.each[2].command("LATENCY", "RESET", "command") == 1
    assert all(wire.command("LATENCY", "HISTORY", "command") == [] for wire in wires.each)


def test_what_was_refused(wires: Wires) -> None:
    for wire in wires.each:
        assert isinstance(wire.command("AUTH", f"nobody{wires.each.index(wire)}", "pw"), CommandError)
    for wire in wires.each:
        log = [dict(zip(*[iter(one)] * 2, strict=True)) for one in wire.command("ACL", "LOG")]
        assert [one[b"username"] for one in log] == [b"nobody2", b"nobody1", b"nobody0"]
        assert len({one[b"entry-id"] for one in log}) == WORKERS
    assert wires.each[1].command("ACL", "LOG", "RESET") == "OK"
    assert all(wire.command("ACL", "LOG") == [] for wire in wires.each)


def test_clients_are_listed_and_killed_wherever_they_are(wires: Wires) -> None:
    for number, wire in enumerate(wires.each):
        wire.command("CLIENT", "SETNAME", f"w{number}")
    ids = [wire.command("CLIENT", "ID") for wire in wires.each]
    for wire in wires.each:
        lines = wire.command("CLIENT", "LIST").decode().splitlines()
        assert len(lines) == len(wires._open)
        assert all(any(f" name=w{number} " in line for line in lines) for number in range(WORKERS))
        found = wire.command("CLIENT", "LIST", "ID", ids[2]).decode()
        assert found.startswith(f"id={ids[2]} ") and found.count("\n") == 1
    assert wires.each[0].command("CLIENT", "KILL", "ID", ids[2]) == 1
    assert wires.each[2].read_to_end() == b""
    assert wires.each[0].command("CLIENT", "KILL", "ID", ids[2]) == 0
    assert wires.each[0].command("CLIENT", "KILL", "USER", "default", "SKIPME", "yes") == len(wires._open) - 2
    assert wires.each[1].read_to_end() == b"" and wires.each[0].command("PING") == "PONG"
    assert wires.each[0].command("CLIENT", "KILL", "ID", ids[0], "SKIPME", "no") == 1
    assert wires.each[0].read_to_end() == b""


def test_a_monitor_sees_what_every_worker_does(wires: Wires) -> None:
    watcher = wires.each[0]
    assert watcher.command("MONITOR") == "OK"
    for number, wire in enumerate(wires.each[1:], 1):
        # Others learn of a new monitor within a tenth of a second.
        heard = ""
        while f'"of worker {number}"' not in heard:
            wire.command("ECHO", f"of worker {number}")
            watcher.socket.settimeout(0.05)
            try:
                heard = str(watcher.reply())
            except TimeoutError:
                continue
        watcher.socket.settimeout(30)
        assert '"ECHO"' in heard


def test_channels(wires: Wires) -> None:
    for number, wire in enumerate(wires.each[1:], 1):
        wire.command("SUBSCRIBE", "news")
        wire.command("PSUBSCRIBE", f"p{number}*")
    asker = wires.each[0]
    assert asker.command("PUBSUB", "CHANNELS") == [b"news"]
    assert asker.command("PUBSUB", "NUMSUB", "news", "other") == [b"news", 2, b"other", 0]
    assert asker.command("PUBSUB", "NUMPAT") == 2


def test_a_worker_that_does_not_answer_is_left_out(wires: Wires) -> None:
    pid = int(section(wires.each[0], "workers")["worker2"].split(",")[0].removeprefix("pid="))
    os.kill(pid, signal.SIGSTOP)
    try:
        lines = wires.each[0].command("CLIENT", "LIST").decode().splitlines()
        assert 0 < len(lines) < len(wires._open)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_worker_that_starts_has_the_settings_of_the_others(wires: Wires) -> None:
    settle(wires, "maxmemory", str(1 << 30))
    pid = int(section(wires.each[0], "workers")["worker2"].split(",")[0].removeprefix("pid="))
    os.kill(pid, signal.SIGKILL)
    value = 1 << 30
    while "lives=2" not in section(wires.each[0], "workers")["worker2"]:
        value += 1
        assert wires.each[0].command("CONFIG", "SET", "maxmemory", value) == "OK"
    again = wires.connect()
    while section(again, "workers")["worker_id"] != "2":
        again = wires.connect()
    while again.command("CONFIG", "GET", "maxmemory")[1] != str(value).encode():
        pass

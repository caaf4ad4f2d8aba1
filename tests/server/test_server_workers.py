"""Several workers: one server to its clients, whichever of them answers, and whichever dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from pionkv.server import control
from pionkv.server.counters import HALF_BYTES, Counters
from pionkv.server.place import Place, ended
from pionkv.server.supervisor import LONGEST_PAUSE, STEADY_SECONDS, Slot

DIM, COUNT = 64, 500
ROWS = np.arange(COUNT * DIM, dtype=np.float32).reshape(COUNT, DIM)


class Wires:
    """Clients of a server, told apart by the worker that answers."""

    def __init__(self, server, wire_class) -> None:
        self.server = server
        self._class = wire_class
        self._open = []

    def any(self):
        """A new client, of whichever worker."""
        self._open.append(self._class(socket.create_connection(("127.0.0.1", self.server.port))))
        return self._open[-1]

    def of(self, worker: int):
        """A new client of this worker."""
        while True:
            wire = self.any()
            if number(wire, "worker_id") == worker:
                return wire

    def close(self) -> None:
        for wire in self._open:
            wire.close()


def section(wire, name="workers"):
    lines = wire.command("INFO", name).decode().splitlines()[1:]
    return dict(line.split(":", 1) for line in lines if line)


def number(wire, field, name="workers"):
    return int(section(wire, name)[field])


def line_of(wire, worker):
    """What INFO says about a worker."""
    pairs = (pair.split("=") for pair in section(wire)[f"worker{worker}"].split(","))
    return {name: int(value) for name, value in pairs}


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def serve(start_server, wire_class):
    """Starts a server of two workers; its clients."""
    started = []

    def start(*flags):
        started.append(Wires(start_server("--workers", "2", *flags), wire_class))
        return started[-1]

    yield start
    for wires in started:
        wires.close()


def test_every_worker_serves_and_changes_every_prefix(serve) -> None:
    wires = serve()
    first, second = wires.of(0), wires.of(1)
    assert first.command("KV.PREFIX.REGISTER", "n", DIM, "fp32") == "OK"
    assert [wire.command("KV.PREFIX.OWNER", "n") for wire in (first, second)] == ["0", "0"]
    for side, wire in (("pk", first), ("pv", second)):
        assert wire.command("V.STOREBATCH", f"n_{side}", 0, 0, COUNT, ROWS.tobytes()) == "OK"
    for wire in (first, second):
        assert wire.command("KV.PREFIX.LOOKUP", "n") == "HIT"
        assert wire.command("V.FETCH", "n_pv", 0, "RANGE", 0, COUNT, "FMT", "F32") == ROWS.tobytes()
        assert wire.command("KV.PREFIX.OWNER", "n") == "1", "the one that last changed it"
    assert second.command("KV.PREFIX.DROP", "n") == 1
    assert first.command("KV.PREFIX.LOOKUP", "n") == "MISS"
    assert first.command("INCR", "counter") == 1 and second.command("INCR", "counter") == 2


def test_counters_and_the_receipt_are_sums(serve) -> None:
    wires = serve()
    first, second = wires.of(0), wires.of(1)
    first.command("KV.PREFIX.REGISTER", "n", DIM, "fp16", "PREFILL_MS", 1000)
    for side in ("pk", "pv"):
        first.command("V.STOREBATCH", f"n_{side}", 0, 0, COUNT, ROWS.tobytes())
    for wire in (first, second, second):
        assert wire.command("KV.PREFIX.LOOKUP", "n") == "HIT"
        wire.command("V.FETCH", "n_pk", 0, "RANGE", 0, COUNT, "FMT", "RAW")
    second.command("KV.PREFIX.LOOKUP", "none")

    def stats(wire):
        fields = wire.command("PION.STATS")
        return {name.decode(): value for name, value in zip(fields[::2], fields[1::2], strict=True)}

    for wire in (first, second):
        while (found := stats(wire))["kvprefix_hits"] < 3 or found["kvprefix_misses"] < 1:
            pass
        assert (found["kvprefix_hits"], found["kvprefix_misses"]) == (3, 1)
        assert found["kvprefix_prefill_us_measured"] == 3_000_000
        assert found["worker_id"] == (0 if wire is first else 1)
        assert number(wire, "keyspace_hits", "stats") == 3
        assert number(wire, "rows_fetched", "pion") == 3 * COUNT
        assert number(wire, "bytes_out_fp16", "pion") == 3 * COUNT * DIM * 2
        assert number(wire, "connected_clients", "clients") >= 2
    assert first.command("PION.STATS", "RESET") == "OK"
    for wire in (first, second):
        while stats(wire)["kvprefix_hits"] != 0:
            pass
        assert stats(wire)["kvprefix_tokens_served"] == 0
        assert number(wire, "keyspace_hits", "stats") == 3, "only the receipt begins anew"
    assert section(first, "server")["run_id"] == section(second, "server")["run_id"]


def test_ids_of_clients_are_never_given_twice() -> None:
    ids = [
        Place(number, 3, lives).client_id(count)
        for number in range(3)
        for lives in range(3)
        for count in range(1, 50)
    ]
    assert len(set(ids)) == len(ids)
    assert [Place().client_id(count) for count in (1, 2, 3)] == [1, 2, 3]


def test_a_dead_worker_is_started_again_and_nothing_else_notices(serve) -> None:
    wires = serve()
    first, second = wires.of(0), wires.of(1)
    second.command("KV.PREFIX.REGISTER", "n", DIM, "fp32")
    second.command("V.STOREBATCH", "n_pk", 0, 0, COUNT, ROWS.tobytes())
    second.command("V.STOREBATCH", "n_pv", 0, 0, COUNT, ROWS.tobytes())
    for _ in range(10):
        second.command("KV.PREFIX.LOOKUP", "none")
    while number(first, "keyspace_misses", "stats") < 10:
        pass
    pid = line_of(first, 1)["pid"]
    os.kill(pid, signal.SIGKILL)
    assert second.read_to_end() == b""
    while line_of(first, 1)["lives"] != 2:
        assert first.command("KV.PREFIX.LOOKUP", "n") == "HIT"
    assert not is_alive(pid)
    again = wires.of(1)
    assert again.command("V.FETCH", "n_pk", 0, "RANGE", 0, COUNT, "FMT", "F32") == ROWS.tobytes()
    for wire in (first, again):
        assert number(wire, "keyspace_misses", "stats") == 10, "neither lost nor counted twice"
    assert "worker ended" in wires.server.errors.read_text()


def test_a_worker_that_ends_again_and_again_is_given_time() -> None:
    slot = Slot(0)
    pauses = [slot.pause(0.5) for _ in range(20)]
    assert pauses[0] == 0 and pauses[-1] == LONGEST_PAUSE and pauses == sorted(pauses)
    assert slot.pause(STEADY_SECONDS) == 0 and slot.pause(0.5) == 0
    slot.expected = True
    assert slot.pause(0.5) == 0


def test_a_graceful_stop_finishes_what_is_in_flight_on_every_worker(serve) -> None:
    wires = serve("--stop-seconds", "60")
    blob = ROWS.tobytes()
    busy = [wires.of(0), wires.of(1)]
    pids = [line_of(busy[0], worker)["pid"] for worker in (0, 1)]
    for worker, wire in enumerate(busy):
        wire.command("V.CREATE", f"s{worker}", DIM, "VQUANT", "fp32")
        words = (b"V.STOREBATCH", b"s%d" % worker, b"0", b"0", b"%d" % COUNT)
        command = b"*6\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        wire.send(b"PING\r\n" + command + b"$%d\r\n" % len(blob) + blob[:1000])
        wire.expect(b"+PONG\r\n")
    watcher = wires.any()
    assert watcher.command("PING") == "PONG"
    stopped = []
    stopper = threading.Thread(target=lambda: stopped.append(wires.server.stop()))
    stopper.start()
    assert watcher.read_to_end() == b""
    for wire in busy:
        wire.send(blob[1000:] + b"\r\n")
        assert wire.read_to_end() == b"+OK\r\n"
    stopper.join()
    assert stopped == [0] and not any(map(is_alive, pids))
    assert not (wires.server.data_dir / "running").exists(), "the last one has synced"
    wires.server.start()
    assert wires.any().command("V.FETCH", "s1", 0, "RANGE", 0, COUNT, "FMT", "RAW") == blob


def test_a_second_signal_hurries(serve) -> None:
    wires = serve("--stop-seconds", "600")
    wire, watcher = wires.of(0), wires.any()
    wire.command("V.CREATE", "s", DIM, "VQUANT", "fp32")
    wire.send(b"*6\r\n$12\r\nV.STOREBATCH\r\n$1\r\ns\r\n$1\r\n0\r\n$1\r\n0\r\n$3\r\n500\r\n$128000\r\nabc")
    while number(watcher, "connected_clients", "clients") < 2:
        pass
    os.kill(wires.server.pid, signal.SIGTERM)
    assert watcher.read_to_end() == b""
    assert wires.server.stop(signal.SIGTERM) == 0


def test_the_workers_end_with_a_killed_supervisor(serve) -> None:
    wires = serve()
    wire = wires.any()
    wire.command("SET", "k", "v")
    pids = [line_of(wire, worker)["pid"] for worker in (0, 1)]
    assert all(map(is_alive, pids))
    wires.server.kill()
    while any(map(is_alive, pids)):
        pass
    wires.server.start()
    assert wires.any().command("GET", "k") == b"v"


@pytest.mark.parametrize("worker", [0, 1])
def test_shutdown_stops_the_whole_server(worker, serve) -> None:
    wires = serve()
    other = wires.of(1 - worker)
    wires.of(worker).send(b"SHUTDOWN\r\n")
    assert other.read_to_end() == b""
    assert wires.server.wait() == 0


def test_one_unix_socket_for_all(serve, tmp_path, wire_class) -> None:
    path = tmp_path / "s.sock"
    wires = serve("--unix-socket", str(path))
    seen = set()
    open_ones = []
    while seen != {0, 1}:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        open_ones.append(wire_class(connection))
        seen.add(number(open_ones[-1], "worker_id"))
    pid = line_of(open_ones[0], 0)["pid"]
    os.kill(pid, signal.SIGTERM)
    watcher = wires.of(1)
    while line_of(watcher, 0)["lives"] != 2:
        pass
    assert path.is_socket() and path.stat().st_mode & 0o777 == 0o700
    for wire in open_ones:
        wire.close()
    assert wires.server.stop() == 0
    assert not path.exists()


def test_sighup_replaces_the_workers_while_the_server_serves(serve) -> None:
    wires = serve()
    wire = wires.of(1)
    before = [line_of(wire, worker)["pid"] for worker in (0, 1)]
    wire.command("SET", "k", "v")
    os.kill(wires.server.pid, signal.SIGHUP)
    replaced = False
    while not replaced:
        wire = wires.any()
        # A client of a worker that ends is cut off between two commands, and finds another at once.
        with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
            assert wire.command("GET", "k") == b"v"
            pids = [line_of(wire, worker)["pid"] for worker in (0, 1)]
            replaced = all(pids) and not set(pids) & set(before)
        wire.close()
    assert wires.server.stop() == 0


def test_messages_reach_listeners_of_every_worker(serve) -> None:
    wires = serve()
    listeners = [wires.of(0), wires.of(1)]
    for wire in listeners:
        wire.command("SUBSCRIBE", "news")
        wire.command("SUBSCRIBE", "__keyevent@0__:drop")
    speaker = wires.of(0)
    assert speaker.command("PUBLISH", "news", "hello") == 1, "those of its own worker"
    for wire in listeners:
        assert wire.reply() == [b"message", b"news", b"hello"]
    speaker.command("KV.PREFIX.REGISTER", "n", DIM, "fp16")
    speaker.command("KV.PREFIX.DROP", "n")
    for wire in listeners:
        assert wire.reply() == [b"message", b"__keyevent@0__:drop", b"n"]


def test_what_is_answered_holds_on_every_worker(serve) -> None:
    wires = serve()
    owner, other = wires.of(0), wires.of(1)
    for number in range(100):
        assert owner.command("ACL", "SETUSER", "u", "on", "resetpass", f">{number}", "+ping") == "OK"
        assert other.command("AUTH", "u", str(number)) == "OK"
        assert str(wires.any().command("AUTH", "u", str(number - 1))).startswith("WRONGPASS")
        assert other.command("PING") == "PONG"
        assert owner.command("ACL", "SETUSER", "u", "-ping") == "OK"
        assert str(other.command("PING")).startswith("NOPERM")
        assert owner.command("ACL", "DELUSER", "u") == 1
        assert other.read_to_end() == b""
        other = wires.of(1)
        assert owner.command("CONFIG", "SET", "slowlog-max-len", str(number)) == "OK"
        assert other.command("CONFIG", "GET", "slowlog-max-len")[1] == str(number).encode()
        assert owner.command("CONFIG", "RESETSTAT") == "OK"
        assert "cmdstat_config|get" not in section(other, "commandstats")


@pytest.mark.parametrize("words", [(), ("MULTI",)], ids=["alone", "in a transaction"])
def test_who_removes_itself_is_answered_before_it_is_cut_off(serve, words) -> None:
    wires = serve()
    owner, other, waiting = wires.of(0), wires.of(1), wires.of(1)
    assert owner.command("ACL", "SETUSER", "u", "on", ">pw", "+@all", "~*", "&*") == "OK"
    for wire in (owner, other, waiting):
        assert wire.command("AUTH", "u", "pw") == "OK"
    assert wires.of(0).command("KV.PREFIX.CLAIM", "n", 60_000) == "CLAIMED"
    waiting.send(b"KV.PREFIX.LOOKUP n WAIT 60000\r\n")
    for word in words:
        assert owner.command(word) == "OK"
        assert owner.command("ACL", "LOG") == "QUEUED"
    removed = owner.command("ACL", "DELUSER", "u")
    assert (owner.command("EXEC")[-1] if words else removed) == 1
    for wire in (owner, other, waiting):
        assert wire.read_to_end() == b""


def test_who_has_begun_to_listen_misses_nothing(serve) -> None:
    wires = serve()
    speaker = wires.of(1)
    for number in range(50):
        listener, watcher = wires.of(0), wires.of(0)
        assert listener.command("SUBSCRIBE", "__keyevent@0__:drop")
        assert speaker.command("KV.PREFIX.REGISTER", "n", DIM, "fp16") == "OK"
        assert speaker.command("KV.PREFIX.DROP", "n")
        assert listener.reply() == [b"message", b"__keyevent@0__:drop", b"n"]
        assert watcher.command("MONITOR") == "OK"
        assert speaker.command("ECHO", str(number)) == str(number).encode()
        assert f'"ECHO" "{number}"' in str(watcher.reply())
        listener.close()
        watcher.close()


def test_only_messages_for_listeners_are_dropped(monkeypatch) -> None:
    monkeypatch.setattr(control, "RELAY_BYTES", -1)

    async def relay() -> None:
        one, other = [await control.Control.open(end) for end in socket.socketpair()]
        for message in (
            (control.PUBLISH, b"c", b"m"),
            (control.USERS,),
            (control.CONFIGURE, {"timeout": "3"}),
        ):
            one.relay(*message)
        one.close()
        assert await other.receive() == (control.USERS,)
        assert await other.receive() == (control.CONFIGURE, {"timeout": "3"})
        assert await other.receive() is None
        other.close()

    asyncio.run(relay())


def test_the_limit_of_clients_is_that_of_the_server(serve) -> None:
    wires = serve("--max-clients", "6")
    watcher = wires.any()
    others = [wires.any() for _ in range(5)]
    while number(watcher, "connected_clients", "clients") < 6:
        pass
    while line_of(watcher, 0)["clients"] + line_of(watcher, 1)["clients"] < 6:
        pass
    while not (refused := wires.any().send(b"PING\r\n").read(5)).startswith(b"-ERR"):
        assert refused == b"+PONG", "a worker learns of the others' clients a little later"
    assert others


def run(*args):
    command = [sys.executable, "-m", "pionkv.server", "--workers", "2", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_what_cannot_be_had_is_an_error_of_the_whole_server(serve, tmp_path) -> None:
    wires = serve()
    taken = run("--port", str(wires.server.port), "--data-dir", str(tmp_path / "other"))
    (tmp_path / "file").write_text("x")
    unusable = run("--port", "0", "--data-dir", str(tmp_path / "file"))
    for found, reason in ((taken, "in use"), (unusable, "file")):
        assert found.returncode == 1 and found.stdout == ""
        assert "Traceback" not in found.stderr and reason in found.stderr
    assert wires.any().command("PING") == "PONG"


def test_counters_survive_a_write_that_broke_off() -> None:
    counters = Counters.create(2)
    counters.write(0, {"a": 1})
    counters.write(0, {"a": 2})
    assert counters.read(0) == {"a": 2} and counters.read(1) == {}
    os.pwrite(counters.handle, b"torn", 40 + 0 * HALF_BYTES)
    os.pwrite(counters.handle, b"torn", 10)
    assert counters.read(0) == {"a": 1}
    with pytest.raises(ValueError, match="bytes of counters"):
        counters.write(1, {f"name{index}" * 10: index for index in range(HALF_BYTES // 50)})
    counters.close()


def test_of_a_worker_that_ended_only_what_it_counted_is_left(server) -> None:
    numbers = dict(server.app.service.sums.workers()[0]) | {"tier_queued": 3, "user:x": 2, "commands": 5}
    now = {*server.app.service._gauges(), "tier_queued", "user:x"} - {"lives"}
    left = ended(numbers)
    assert all(left[name] == 0 for name in now), left
    assert {name for name in numbers if left[name] != numbers[name]} <= now and left["commands"] == 5

"""Durability `always`: what is answered is on the disk, and the event loop does not wait for the disk."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing

import numpy as np
import pytest
from pionkv.protocol.request import encode_command
from pionkv.storage import files
from server_process import ServerProcess

DIM = 64
ROWS = np.random.default_rng(3).standard_normal((3000, DIM), np.float32)


@pytest.fixture
def synced(monkeypatch):
    """Names of the threads that brought files to the disk, in order."""
    threads = []
    real = files.os.fdatasync

    def note(fd: int) -> None:
        threads.append(threading.current_thread().name)
        real(fd)

    monkeypatch.setattr(files.os, "fdatasync", note)
    return threads


def changes(wire):
    """A change of every kind, one after the other: each answered before the next."""
    blob = ROWS.tobytes()
    yield "CREATE", wire.command("V.CREATE", "s", DIM, "VQUANT", "fp32")
    yield "REGISTER", wire.command("KV.PREFIX.REGISTER", "n", DIM, "int8")
    yield "small rows", wire.command("V.STOREBATCH", "s", 0, 0, 3, blob[: 3 * DIM * 4])
    yield "large rows", wire.command("V.STOREBATCH", "n_pk", 0, 0, len(ROWS), blob)
    yield "a state", wire.command("SSM.PREFIX.STORE", "n", 0, blob)
    yield "a key", wire.command("SET", "key", "value")
    yield "a large key", wire.command("SET", "large", blob)
    yield "EXPIRE", wire.command("EXPIRE", "key", 1000)
    yield "MULTI", wire.command("MULTI")
    yield "queued", wire.command("SET", "other", "value")
    yield "EXEC", wire.command("EXEC")
    yield "PIN", wire.command("KV.PREFIX.PIN", "n")
    txn = wire.command("KV.PREFIX.BEGIN", "t", "KV", DIM, "fp32", "LAYERS", 1)
    for side in ("pk", "pv"):
        wire.command("V.STOREBATCH", f"t_{side}", 0, 0, 3, blob[: 3 * DIM * 4], "TXN", txn)
    yield "PUBLISH", wire.command("KV.PREFIX.PUBLISH", txn)
    yield "TRUNCATE", wire.command("KV.PREFIX.TRUNCATE", "t", 2)
    yield "FORK", wire.command("KV.PREFIX.FORK", "t", "u")
    yield "DROP", wire.command("V.DROP", "s")


@pytest.mark.parametrize("durability", ["always", "everysec"])
def test_each_change_is_on_the_disk_when_it_is_answered(durability, start_local, synced) -> None:
    server = start_local(durability=durability)
    loop = server.call(lambda app: threading.current_thread().name)
    behind = server.call(lambda app: app.service.store.commits)
    synced.clear()
    for name, answer in changes(server.connect()):
        now = server.call(lambda app: app.service.store.commits)
        assert not getattr(answer, "code", None), (name, answer)
        if durability == "always" and name not in ("MULTI", "queued"):
            # Housekeeping may have committed since.
            assert server.call(lambda app: app.service.disk._reached) > behind, name
        behind = now
    assert loop not in synced
    if durability == "always":
        assert len(synced) > 10


def test_changes_of_one_turn_share_a_sync(start_local, synced) -> None:
    server = start_local(durability="always")
    wires = [server.connect() for _ in range(20)]
    wires[0].command("SET", "first", 1)
    before = len(synced)
    for number, wire in enumerate(wires):
        wire.send(b"".join(encode_command(("SET", f"key{number}", number))))
    for wire in wires:
        assert wire.reply() == "OK"
    assert len(synced) - before < 20


def test_the_server_answers_others_while_a_change_waits_for_the_disk(start_local, monkeypatch) -> None:
    server = start_local(durability="always")
    wire, other = server.connect(), server.connect()
    wire.command("SET", "key", 1)
    reached, go_on = threading.Event(), threading.Event()
    real = files.os.fdatasync

    def wait(fd: int) -> None:
        reached.set()
        assert go_on.wait(30)
        real(fd)

    monkeypatch.setattr(files.os, "fdatasync", wait)
    wire.send(b"".join(encode_command(("SET", "key", 2))))
    assert reached.wait(30)
    assert other.command("PING") == "PONG"
    assert other.command("GET", "first") is None
    go_on.set()
    assert wire.reply() == "OK"


def test_a_sync_that_failed_is_never_answered(start_local, monkeypatch) -> None:
    """The system forgets what it could not write: a second sync may succeed and tell nothing."""
    server = start_local(durability="always")
    wire, reader = server.connect(), server.connect()
    wire.command("SET", "key", 1)

    def refuse(fd: int) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(files.os, "fdatasync", refuse)
    wire.send(b"".join(encode_command(("SET", "key", 2))))
    with pytest.raises((ConnectionError, EOFError)):
        wire.reply()
    monkeypatch.undo()
    again = server.connect()
    again.send(b"".join(encode_command(("SET", "key", 3))))
    with pytest.raises((ConnectionError, EOFError)):
        again.reply()
    assert reader.command("PING") == "PONG"


def test_nothing_answered_is_lost_by_a_power_cut(tmp_path, wire_class) -> None:
    """The server is killed, the machine boots anew, and the catalog is what was synced last."""
    process = ServerProcess(tmp_path / "data", "--durability", "always")
    try:
        process.start()
        with closing(connect(wire_class, process)) as wire:
            for number in range(100):
                assert wire.command("SET", f"key{number}", number) == "OK"
            wire.command("KV.PREFIX.REGISTER", "n", DIM, "fp32")
            for sid in ("n_pk", "n_pv"):
                assert wire.command("V.STOREBATCH", sid, 0, 0, len(ROWS), ROWS.tobytes()) == "OK"
        process.kill()
        running = tmp_path / "data" / "running"
        running.write_text(f"another-boot {running.read_text().split()[1]}\n")
        process.start()
        with closing(connect(wire_class, process)) as wire:
            for number in range(100):
                assert wire.command("GET", f"key{number}") == str(number).encode()
            assert wire.command("KV.PREFIX.LOOKUP", "n") == "HIT"
            rows = wire.command("V.FETCH", "n_pv", 0, "RANGE", 0, len(ROWS), "FMT", "F32")
            assert rows == ROWS.tobytes()
    finally:
        process.close()


def connect(wire_class, process):
    return wire_class(socket.create_connection(("127.0.0.1", process.port)))

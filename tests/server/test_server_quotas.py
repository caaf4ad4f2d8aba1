"""What a tenant may store and how often a user may connect: whichever worker is asked, and after a crash."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pionkv.protocol.errors import CommandError
from pionkv.storage.accounts import tag_of

PIONKV = str(Path(sys.executable).with_name("pionkv"))
DIM, COUNT = 64, 512
BLOB = np.zeros((COUNT, DIM), np.float16).tobytes()
QUOTA = 300 << 10
"""Room for two prefixes of two sides of 64 KiB, and not for three."""
OVER = re.compile(
    r"OOM quota of tenant red exceeded \((\d+) bytes needed beside (\d+) stored, max-bytes (\d+)\)"
)


@pytest.fixture
def connect(request: pytest.FixtureRequest, wire_class: Any) -> Callable[..., Any]:
    """Connects to a server, as a user if one is named; not `limited`: once the limit that it had is gone."""

    def make(server: Any, user: str = "", *, limited: bool = True) -> Any:
        wire = wire_class(socket.create_connection(("127.0.0.1", server.port)))
        request.addfinalizer(wire.close)
        if user:
            # A worker hears of what another one has set in a moment.
            while isinstance(answer := wire.command("AUTH", user, "pw"), CommandError):
                assert answer.code == "WRONGPASS" or not limited, answer
            assert answer == "OK"
        return wire

    return make


def set_user(wire: Any, name: str, *rules: str) -> None:
    assert wire.command("ACL", "SETUSER", name, "on", ">pw", "~*", "&*", "+@all", *rules) == "OK"


def store(wire: Any, name: str) -> Any:
    """A prefix of two sides; what the last command answered."""
    answer = wire.command("KV.PREFIX.REGISTER", name, DIM, "fp16")
    for side in ("_pk", "_pv"):
        answer = answer if isinstance(answer, CommandError) else "OK"
        if answer == "OK":
            answer = wire.command("V.STOREBATCH", name + side, 0, 0, COUNT, BLOB, "FMT", "F16")
    return answer


def begin_store(wire: Any, name: str) -> Any:
    """The same as one transaction."""
    txn = wire.command("KV.PREFIX.BEGIN", name, "KV", DIM, "fp16", "LAYERS", 1)
    for side in ("_pk", "_pv"):
        line = ("V.STOREBATCH", name + side, 0, 0, COUNT, BLOB, "FMT", "F16", "TXN", txn)
        if (answer := wire.command(*line)) != "OK":
            return answer
    answer = wire.command("KV.PREFIX.PUBLISH", txn)
    return answer if isinstance(answer, CommandError) else "OK"


def held(wire: Any, tenant: str = "red") -> int:
    """What INFO says that a tenant has."""
    found = re.search(rb"tenant_%s:bytes=(\d+)" % tenant.encode(), wire.command("INFO", "tenants"))
    assert found is not None
    return int(found[1])


def numbers(error: Any) -> tuple[int, int, int]:
    found = OVER.search(str(error))
    assert found is not None, error
    return int(found[1]), int(found[2]), int(found[3])


@pytest.mark.parametrize("how", [store, begin_store])
def test_a_tenant_evicts_its_own_and_nobody_elses(server: Any, connect: Any, how: Any) -> None:
    owner = connect(server)
    set_user(owner, "u", "tenant=red", f"max-bytes={QUOTA}")
    set_user(owner, "v", "tenant=blue")
    red, blue = connect(server, "u"), connect(server, "v")
    assert how(blue, "old") == how(owner, "old") == "OK"
    for number in range(6):
        assert how(red, f"p{number}") == "OK"
        assert 0 < held(owner) <= QUOTA
    hits = [red.command("KV.PREFIX.LOOKUP", f"p{number}") for number in range(6)]
    assert hits.count("HIT") == 2 and hits[-1] == "HIT"
    assert red.command("KV.PREFIX.EXPLAIN", "p0")[3] == b"evicted"
    for wire in (blue, owner):
        assert wire.command("KV.PREFIX.LOOKUP", "old") == "HIT"


def test_what_cannot_fit_is_refused_with_the_numbers(server: Any, connect: Any) -> None:
    owner = connect(server)
    set_user(owner, "u", "tenant=red", f"max-bytes={QUOTA}")
    red = connect(server, "u")
    for number in range(2):
        assert store(red, f"p{number}") == "OK"
        assert red.command("KV.PREFIX.PIN", f"p{number}") == 1
    before = held(owner)
    needed, stored, limit = numbers(store(red, "more"))
    assert needed + stored > limit == QUOTA and stored >= before
    for line in (
        ("SET", "large", bytes(QUOTA)),
        ("SSM.PREFIX.STORE", "s", 0, bytes(QUOTA)),
        ("HSET", "h", "f", bytes(QUOTA - before)),
        ("APPEND", "a", bytes(QUOTA)),
    ):
        assert numbers(red.command(*line))[2] == QUOTA, line[0]
    assert red.command("KV.PREFIX.LOOKUP", "p0") == red.command("KV.PREFIX.LOOKUP", "p1") == "HIT"
    assert red.command("PING") == "PONG" and red.command("SET", "small", "v") == "OK"
    red.command("MULTI")
    red.command("SET", "small", "w")
    red.command("SET", "large", bytes(QUOTA))
    assert "quota of tenant red" in str(red.command("EXEC"))
    assert red.command("GET", "small") == b"v", "all of a transaction or nothing"
    assert owner.command("SET", "large", bytes(QUOTA)) == "OK"


def test_the_account_follows_everything(server: Any, connect: Any) -> None:
    owner = connect(server)
    set_user(owner, "u", "tenant=red", "max-bytes=100mb")
    red = connect(server, "u")
    assert held(owner) == 0
    for line in (
        ("SET", "small", "v"),
        ("SET", "large", bytes(300_000)),
        ("HSET", "h", "f", "v", "g", "w"),
        ("ZADD", "z", 1, "m", 2, "n"),
        ("SSM.PREFIX.STORE", "s", 0, bytes(10_000)),
    ):
        before = held(owner)
        red.command(*line)
        assert held(owner) > before, line[0]
    assert store(red, "p") == begin_store(red, "q") == "OK"
    before = held(owner)
    assert isinstance(red.command("KV.PREFIX.FORK", "p", "fork"), int)
    assert held(owner) == before, "a fork shares its pages"
    assert red.command("KV.PREFIX.DROP", "p") == 1 and held(owner) == before
    assert red.command("KV.PREFIX.DROP", "fork") == 1 and held(owner) < before
    before = held(owner)
    owner.command("RENAME", tag_of(b"red") + b"h", "taken")
    assert held(owner) < before
    owner.command("RENAME", "taken", tag_of(b"red") + b"h")
    assert held(owner) == before
    assert red.command("DEL", "small", "large", "h", "z") == 4
    assert red.command("KV.PREFIX.DROP", "q", "s") == 2
    while held(owner):
        pass  # the page of a large string goes when a checkpoint stands
    assert store(red, "p") == "OK" and held(owner) > 0
    assert owner.command("FLUSHALL") == "OK" and held(owner) == 0


def test_workers_share_the_account(start_server: Any, connect: Any) -> None:
    server = start_server("--workers", "2")
    owner = connect(server)
    set_user(owner, "u", "tenant=red", f"max-bytes={QUOTA}")
    wires = {}
    while len(wires) < 2:
        wire = connect(server, "u")
        wires[re.search(rb"worker_id:(\d)", wire.command("INFO", "workers"))[1]] = wire
    for number in range(4):
        for worker, wire in wires.items():
            assert store(wire, f"p{number}-{worker.decode()}") == "OK"
            assert held(owner) <= QUOTA
    server.restart(crash=True)
    owner = connect(server)
    before = held(owner)
    assert 0 < before <= QUOTA
    for number in range(3):
        assert store(connect(server, "u"), f"q{number}") == "OK"
    assert held(owner) <= QUOTA
    server.stop(signal.SIGTERM)
    line = [PIONKV, "doctor", str(server.data_dir), "--json"]
    found = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0 and json.loads(found.stdout)["findings"] == []


def test_connections_are_counted_over_all_workers(start_server: Any, connect: Any) -> None:
    server = start_server("--workers", "2")
    owner = connect(server)
    set_user(owner, "u", "max-connections=3")
    held_open = [connect(server, "u") for _ in range(3)]
    for _ in range(6):
        wire = connect(server)
        refused = wire.command("AUTH", "u", "pw")
        assert "user u would have 4 connections (max-connections 3)" in str(refused)
        assert wire.command("ACL", "WHOAMI") == b"default"
        wire.close()
    assert held_open[0].command("AUTH", "u", "pw") == "OK", "it is no further one"
    assert b"user_u:connections=3,max_connections=3" in owner.command("INFO", "tenants")
    assert owner.command("ACL", "GETUSER", "u")[-4:] == [b"connections", 3, b"max-connections", 3]
    held_open.pop().close()
    while isinstance((wire := connect(server)).command("AUTH", "u", "pw"), CommandError):
        wire.close()
    assert wire.command("ACL", "WHOAMI") == b"u"
    set_user(owner, "u", "max-connections=0")
    for _ in range(3):
        connect(server, "u", limited=False)


def test_the_default_user_may_be_limited(server: Any, connect: Any) -> None:
    owner = connect(server)
    set_user(owner, "admin")
    assert owner.command("AUTH", "admin", "pw") == "OK"
    assert owner.command("ACL", "SETUSER", "default", "max-connections=2") == "OK"
    wires = [connect(server), connect(server)]
    assert {wire.command("PING") for wire in wires} == {"PONG"}
    assert "max-connections 2" in connect(server).read_to_end().decode()
    assert owner.command("PING") == "PONG"

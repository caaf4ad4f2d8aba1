"""Thousands of random, malformed and unauthorised requests: nothing breaks, nobody learns of others.

`--requests N` sends N instead of the usual number.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hostile import NOT_SENT, Attacker, answers
from pionkv.protocol.table import COMMANDS

DIM, ROWS = 32, 8
SECRET = b"what-only-team-two-may-read"
HIDDEN = "team2:a-name-that-nobody-else-knows"
VALUES = np.random.default_rng(2).standard_normal((ROWS, DIM), np.float32).astype(np.float16)
TEAMS = ("team2:", "3:red,")
ROOM = 16 << 20
"""Bytes that memory may grow by, whatever the number of requests."""
USERS = {
    "narrow": ("~team1:*", "&team1:*", "+@all", "-@dangerous", "-@admin"),
    "reader": ("%R~team1:*", "resetchannels", "+@read", "+@kv", "+@connection", "-@dangerous"),
    "tenant": ("tenant=blue", "max-bytes=1mb", "max-connections=9", "~*", "&*", "+@all", "-@dangerous"),
    "nothing": ("resetkeys", "resetchannels", "+@connection", "-@dangerous"),
}


def seen(answer: bytes) -> bool:
    """Whether anything of team 2 is in an answer: a value, rows in any form, or the name."""
    rows = (row for row in VALUES)
    forms = (form for row in rows for form in (row.tobytes()[:16], row.astype(np.float32).tobytes()[:16]))
    return SECRET in answer or b"a-name-that-nobody" in answer or any(form in answer for form in forms)


def fill(owner: Any) -> None:
    for name, rules in USERS.items():
        assert owner.command("ACL", "SETUSER", name, "on", ">pw", *rules) == "OK"
    for name in ("team2:x", HIDDEN, "3:red,x", "3:red,a-name-that-nobody-else-knows", "team1:a"):
        owner.command("KV.PREFIX.REGISTER", name, DIM, "fp16")
        rows = VALUES if name != "team1:a" else np.zeros_like(VALUES)
        for side in ("_pk", "_pv"):
            assert (
                owner.command("V.STOREBATCH", name + side, 0, 0, ROWS, rows.tobytes(), "FMT", "F16") == "OK"
            )
    assert owner.command("SET", HIDDEN + ":s", SECRET) == "OK"
    for team in TEAMS:
        for command in (
            ("SSM.PREFIX.STORE", team + "x", 0, SECRET),
            ("SET", team + "s", SECRET),
            ("HSET", team + "h", SECRET, SECRET),
            ("ZADD", team + "z", 1, SECRET),
        ):
            assert owner.command(*command) in ("OK", 1)


def holds(owner: Any) -> bool:
    """Whether all of team 2's and of the tenant red's is there, as it was."""
    return all(_holds(owner, team) for team in TEAMS)


def _holds(owner: Any, team: str) -> bool:
    rows = owner.command("V.FETCHALL", team + "x_pk", team + "x_pv", 0, ROWS, "FMT", "F16")
    return (
        all(bytes(row) == VALUES.tobytes() for row in rows)
        and owner.command("GET", team + "s") == owner.command("SSM.PREFIX.FETCH", team + "x", 0) == SECRET
        and owner.command("HGETALL", team + "h") == [SECRET, SECRET]
        and owner.command("ZRANGE", team + "z", 0, -1) == [SECRET]
    )


def within_limits(owner: Any) -> bool:
    """Whether the tenant blue has stored no more than it may, and nobody counts as connected."""
    found = re.search(rb"tenant_blue:bytes=(\d+),max_bytes=(\d+)", lines := owner.command("INFO", "tenants"))
    assert found is not None
    return int(found[1]) <= int(found[2]) and b"user_tenant:connections=0," in lines


def attack(port: int, requests: int, seed: int) -> None:
    each = requests // (len(USERS) + 1)
    for number, user in enumerate((None, *USERS)):
        refused = errors = 0
        for answer in answers(port, Attacker(seed * 100 + number), user, each):
            assert not seen(answer), (seed, user, answer[:2000])
            refused += answer.count(b"-NOAUTH" if user is None else b"-NOPERM")
            errors += answer.count(b"-ERR")
        # Most of it arrived, and was understood far enough to be refused.
        assert refused > each // 40 and errors > 0, (user, each, refused, errors)


def wait_until_alone(owner: Any) -> None:
    while b"connected_clients:1\r" not in owner.command("INFO", "clients"):
        pass


def test_a_server_of_its_own(start_server: Any, wire_class: Any, request: pytest.FixtureRequest) -> None:
    requests = request.config.getoption("--requests")
    server = start_server("--password", "owner-pw")
    owner = wire_class(socket.create_connection(("127.0.0.1", server.port)))
    assert owner.command("AUTH", "owner-pw") == "OK"
    fill(owner)
    assert seen(owner.command("GET", "team2:s")) and holds(owner)

    def handles() -> list[str]:
        """What the process has open, but for the pages of what is stored."""
        folder = f"/proc/{server.pid}/fd"
        kinds = []
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                kinds.append(os.readlink(f"{folder}/{name}"))
        return sorted(re.sub(r":\[.*", "", kind) for kind in kinds if "/pages/" not in kind)

    owner.wait_for_kernels()
    before = handles()
    attack(server.port, requests // 4, seed=1)
    wait_until_alone(owner)
    memory = server.anonymous_bytes()
    attack(server.port, requests - requests // 4, seed=2)
    wait_until_alone(owner)
    while len(handles()) > len(before):
        pass  # a connection that was ended for an error lingers for two seconds, so that the error is read
    assert handles() == before
    assert server.anonymous_bytes() <= memory + ROOM
    assert holds(owner) and within_limits(owner)
    assert owner.command("ACL", "USERS") == sorted(name.encode() for name in ("default", *USERS))
    log = server.errors.read_text()
    assert "Traceback" not in log and "owner-pw" not in log and SECRET.decode() not in log
    server.restart(crash=True)


def test_no_task_is_left(start_local: Any, request: pytest.FixtureRequest) -> None:
    server = start_local(password="owner-pw")
    owner = server.connect()
    assert owner.command("AUTH", "owner-pw") == "OK"
    fill(owner)
    owner.wait_for_kernels()

    def tasks() -> int:
        gc.collect()
        return int(server.call(lambda app: len(asyncio.all_tasks(app.loop))))

    before = tasks()
    attack(server.port, request.config.getoption("--requests") // 4, seed=3)
    wait_until_alone(owner)
    assert tasks() == before and holds(owner)


ENDING = {"MONITOR", "SUBSCRIBE", "PSUBSCRIBE", "QUIT", "RESET", "SHUTDOWN", "CLIENT|REPLY", "CLIENT|KILL"}
"""Commands after which a connection has other replies, or none."""


def test_no_name_is_an_internal_error(wire: Any) -> None:
    names, told = ("", "x" * 600), {}
    for command in sorted(COMMANDS.keys() - ENDING - NOT_SENT):
        for name in names:
            for count in range(4):
                answer = wire.command(*command.split("|"), name, *["1"] * count)
                told[command, name, count] = str(answer)
    assert [asked for asked, answer in told.items() if "internal error" in answer] == []

"""Tenants: the same names for everybody, and nobody meets anybody else's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pionkv.protocol.errors import CommandError
from pionkv.protocol.request import encode_command
from pionkv.storage.accounts import tag_of, tenant_of
from pionkv.storage.catalog import Reader

DIM, IDS = 32, list(range(100))
NAMES = ("x", "own", "x:h", "x:z", "x:alone")
RULES = ("~*", "&*", "+@all", "-@admin", "-@dangerous", "+keys", "+kv.prefix.list", "+kv.prefix.scan")


def u32(ids: Any) -> bytes:
    return np.asarray(ids, "<u4").tobytes()


def rows_of(owner: int) -> bytes:
    return np.full((len(IDS), DIM), owner, np.float16).tobytes()


def member(server: Any, tenant: str, *rules: str, name: str = "", protocol: int = 2) -> Any:
    """A client that is a user of a tenant."""
    user = name or f"user-of-{tenant}"
    admin, wire = server.connect(), server.connect(protocol)
    line = ("ACL", "SETUSER", user, "reset", "on", ">pw", f"tenant={tenant}", *(rules or RULES))
    assert admin.command(*line) == "OK"
    assert wire.command("AUTH", user, "pw") == "OK"
    return wire


def fill(wire: Any, owner: int) -> None:
    """One thing of each kind, under the same names for each owner."""
    table = np.asarray(IDS, "<u8").tobytes()
    line = ("KV.PREFIX.REGISTER", "x", DIM, "fp16", "BLOCKS", 1, len(IDS), table, "MODEL", "m")
    assert wire.command(*line) == "OK"
    for side in ("_pk", "_pv"):
        stored = ("V.STOREBATCH", "x" + side, 0, 0, len(IDS), rows_of(owner), "FMT", "F16")
        assert wire.command(*stored) == "OK"
    assert wire.command("SSM.PREFIX.STORE", "own", 0, b"%d" % owner) == "OK"
    assert isinstance(wire.command("V.CREATE", "x:alone", DIM), int)
    assert wire.command("SET", "x", owner) == "OK"
    assert wire.command("HSET", "x:h", "f", owner) == 1
    assert wire.command("ZADD", "x:z", owner, "m") == 1


@pytest.fixture
def red(server: Any) -> Any:
    wire = member(server, "red")
    fill(wire, 1)
    return wire


@pytest.fixture
def blue(server: Any, red: Any) -> Any:
    """A client of another tenant, which has nothing yet."""
    return member(server, "blue")


def test_the_same_names_are_other_things(red: Any, blue: Any) -> None:
    fill(blue, 2)
    for wire, owner in ((red, 1), (blue, 2)):
        rows = wire.command("V.FETCHALL", "x_pk", "x_pv", 0, len(IDS), "FMT", "F16")
        assert [bytes(side) for side in rows] == [rows_of(owner)] * 2
        assert wire.command("GET", "x") == wire.command("SSM.PREFIX.FETCH", "own", 0) == b"%d" % owner
        assert wire.command("HGET", "x:h", "f") == wire.command("ZSCORE", "x:z", "m") == b"%d" % owner
    assert blue.command("KV.PREFIX.DROP", "x", "own") == 2 and blue.command("DEL", *NAMES) == 3
    assert red.command("KV.PREFIX.LOOKUP", "x") == "HIT" and red.command("GET", "x") == b"1"


ABSENT = {
    ("KV.PREFIX.LOOKUP", "x"): "MISS",
    ("KV.PREFIX.MATCH", u32(IDS), "MODEL", "m"): None,
    ("KV.PREFIX.MODELS",): [],
    ("KV.PREFIX.LIST",): [],
    ("KV.PREFIX.SCAN", "0"): [b"0", []],
    ("KV.PREFIX.BLOCKS", "x"): "UNKNOWN",
    ("KV.PREFIX.MEMBERSHIP", "x", 1, np.asarray(IDS[:1], "<u8").tobytes()): "UNKNOWN",
    ("KV.PREFIX.OWNER", "x"): "-1",
    ("KV.PREFIX.TTL", "x"): -2,
    ("KV.PREFIX.MAP", "x"): None,
    ("KV.PREFIX.DROP", "x"): 0,
    ("KV.PREFIX.EXPLAIN", "x", "TOKENS", u32(IDS), "MODEL", "m"): [
        b"answer", b"MISS", b"reason", b"absent"
    ],
    ("V.DROP", "x_pk", "x:alone"): 0,
    ("SSM.PREFIX.FETCH", "own", 0): None,
    ("MEMORY", "USAGE", "x"): None,
    ("GET", "x"): None,
    ("KEYS", "*"): [],
    ("KEYS", "3:red,*"): [],
    ("SCAN", 0, "COUNT", 1000): [b"0", []],
    ("RANDOMKEY",): None,
    ("DBSIZE",): 0,
    ("EXISTS", "x", "3:red,x"): 0,
    ("PUBSUB", "CHANNELS"): [],
    ("PUBSUB", "NUMPAT"): 0,
}  # fmt: skip


@pytest.mark.parametrize("line", ABSENT, ids=lambda line: " ".join(map(str, line[:2]))[:30])
def test_what_another_tenant_has_is_not_there(line: Any, red: Any, blue: Any, server: Any) -> None:
    red.command("SUBSCRIBE", "news")
    red.command("PSUBSCRIBE", "n*")
    assert blue.command(*line) == ABSENT[line]


def test_totals_are_the_tenants_own(red: Any, blue: Any) -> None:
    def lines(wire: Any, *command: str) -> dict[str, str]:
        return dict(line.split(":") for line in wire.command(*command).decode().splitlines())

    theirs = lines(red, "KV.PREFIX.INFO")
    assert (theirs["registered_prefixes"], theirs["vstore_sessions"]) == ("2", "3")
    assert int(theirs["vstore_bytes"]) > 2 * len(rows_of(1))
    assert {lines(blue, "KV.PREFIX.INFO")[name] for name in theirs if name.startswith("vstore_")} == {"0"}
    assert lines(red, "V.INFO")["sessions"] == "3" and lines(blue, "V.INFO")["sessions"] == "0"
    assert red.command("DBSIZE") == 3 + 3, "plain keys, prefixes and a session"
    for command in (
        ("PION.STATS",),
        ("PION.STATS", "RESET"),
        ("MEMORY", "STATS"),
        ("MEMORY", "DOCTOR"),
        ("LATENCY", "HISTOGRAM"),
        ("V.LEDGER",),
    ):
        assert "NOPERM" in str(blue.command(*command)), command
    assert b"rows" in red.command("V.LEDGER", "x")


@pytest.mark.parametrize("protocol", [2, 3])
def test_listings_tell_the_tenants_own_names(server: Any, red: Any, blue: Any, protocol: int) -> None:
    fill(blue, 2)
    wire = member(server, "blue", protocol=protocol)
    assert set(wire.command("KEYS", "x*")) == {b"x", b"x:h", b"x:z"}
    assert set(wire.command("SCAN", 0, "MATCH", "x:?", "COUNT", 100)[1]) == {b"x:h", b"x:z"}
    assert wire.command("RANDOMKEY").startswith(b"x")
    assert wire.command("KV.PREFIX.LIST") == [b"own", b"x"]
    assert wire.command("KV.PREFIX.LIST", "MATCH", "o*") == [b"own"]
    cursor, found = wire.command("KV.PREFIX.SCAN", 0, "COUNT", 1)
    assert (cursor, found) == (b">own", [b"own"])
    assert wire.command("KV.PREFIX.SCAN", cursor, "COUNT", 5) == [b"0", [b"x"]]
    assert wire.command("KV.PREFIX.MATCH", u32(IDS), "MODEL", "m")[:2] == [b"x", len(IDS)]
    assert wire.command("KV.PREFIX.MODELS") == [b"m", 1]
    wire.command("MULTI")
    wire.command("KEYS", "*")
    wire.command("SET", "later", 1)
    assert set(wire.command("EXEC")[0]) == {b"x", b"x:h", b"x:z"}
    assert wire.command("GET", "later") == b"1"


def test_whoever_has_no_tenant_sees_the_names_as_they_are_stored(server: Any, red: Any, wire: Any) -> None:
    assert set(wire.command("KV.PREFIX.LIST")) == {b"3:red,own", b"3:red,x"}
    assert wire.command("GET", "3:red,x") == b"1" and wire.command("GET", "x") is None
    assert wire.command("KV.PREFIX.MATCH", u32(IDS), "MODEL", "m") is None
    assert wire.command("RENAME", "3:red,x", "plain") == "OK" and red.command("GET", "x") is None


def test_one_tenants_tag_is_not_the_beginning_of_anothers(server: Any) -> None:
    """No name that a tenant can think of is stored where another's is."""
    names = ("a", "ab", "3", "1.a", "a-1")
    wires = {name: member(server, name) for name in names}
    for name, wire in wires.items():
        for key in ("b", ",b", "1:a,b", "2:ab,b", "1:3,b"):
            wire.command("SET", key, f"{name}/{key}")
    for name, wire in wires.items():
        for key in ("b", ",b", "1:a,b", "2:ab,b", "1:3,b"):
            assert wire.command("GET", key) == f"{name}/{key}".encode()
        assert wire.command("DBSIZE") == 5
    assert tenant_of(tag_of(b"a") + b"1:b,c") == b"a" and tenant_of(b"1:ab,c") == tenant_of(b"9:ab,c") == b""


def test_patterns_hold_within_the_tenant(server: Any, red: Any, wire: Any) -> None:
    narrow = member(server, "red", "~x*", "+@all", name="narrow")
    assert narrow.command("GET", "x") == b"1"
    for refused in (("GET", "own"), ("GET", "3:red,x"), ("KV.PREFIX.LOOKUP", "own"), ("FLUSHALL",)):
        assert "NOPERM" in str(narrow.command(*refused)), refused
    assert narrow.command("KV.PREFIX.LIST") == [b"x"]
    narrow.command("MULTI")
    assert narrow.command("GET", "x") == "QUEUED"
    wire.command("ACL", "SETUSER", "narrow", "resetkeys", "~own")
    assert "NOPERM" in str(narrow.command("EXEC"))


def test_another_tenant_is_another_connection(server: Any, red: Any, wire: Any) -> None:
    assert wire.command("ACL", "SETUSER", "user-of-red", "tenant=green") == "OK"
    with pytest.raises((EOFError, ConnectionError)):
        while True:
            red.command("PING")


def test_messages_and_notices_stay_within_the_tenant(server: Any, blue: Any, wire: Any) -> None:
    listener = member(server, "red", name="listener")
    everything = server.connect()
    everything.command("PSUBSCRIBE", "*")
    assert listener.command("PSUBSCRIBE", "*")[1] == b"*"
    red = member(server, "red", name="talker")
    assert blue.command("PUBLISH", "news", "of blue") == 1, "to the operator alone"
    assert wire.command("PUBLISH", "news", "of nobody") == 1
    fill(blue, 2)
    assert red.command("PUBLISH", "news", "3:red,as it is") == 2
    assert list(listener.reply()) == [b"pmessage", b"*", b"news", b"3:red,as it is"]
    assert red.command("KV.PREFIX.DROP", "x") == 1
    assert list(listener.reply()) == [b"pmessage", b"*", b"__keyspace@0__:x", b"drop"]
    assert list(listener.reply()) == [b"pmessage", b"*", b"__keyevent@0__:drop", b"x"]
    assert everything.reply()[2:] == [b"4:blue,news", b"of blue"]


def test_a_transaction_of_another_tenant_is_unknown(server: Any, red: Any, blue: Any) -> None:
    txn = red.command("KV.PREFIX.BEGIN", "new", "KV", DIM, "fp16", "LAYERS", 1, "FROM", "x", 100)
    assert isinstance(txn, bytes), txn
    receipt = red.command("KV.PREFIX.PUBLISH", txn)
    assert receipt[0] == b"new" and receipt[2] == 100
    assert red.command("KV.PREFIX.PUBLISH", txn) == receipt
    for line in (("KV.PREFIX.PUBLISH", txn), ("KV.PREFIX.ABORT", txn)):
        assert "no such transaction" in str(blue.command(*line))
    refused = blue.command("KV.PREFIX.BEGIN", "mine", "KV", DIM, "fp16", "LAYERS", 1, "FROM", "3:red,x", 100)
    assert isinstance(refused, CommandError)
    assert isinstance(blue.command("KV.PREFIX.FORK", "x", "mine"), CommandError)


def test_a_large_argument_goes_to_the_tenants_own(red: Any, blue: Any) -> None:
    value = bytes(1 << 20)
    assert blue.command("SET", "x", value) == "OK"
    assert blue.command("V.CREATE", "big", 8192, "VQUANT", "fp16") and red.command("V.INFO", "big")
    blob = bytes(8192 * 2 * 64)
    assert blue.command("V.STOREBATCH", "big", 0, 0, 64, blob, "FMT", "RAW") == "OK"
    assert blue.command("V.FETCH", "big", 0, "RANGE", 0, 64, "FMT", "RAW") == blob
    assert blue.command("SSM.PREFIX.STORE", "own", 0, value) == "OK"
    assert red.command("GET", "x") == b"1" and red.command("SSM.PREFIX.FETCH", "own", 0) == b"1"
    assert isinstance(red.command("V.INFO", "big"), CommandError)


def test_a_lookup_reads_the_same_whatever_others_have(
    server: Any, red: Any, blue: Any, monkeypatch: Any
) -> None:
    """What it costs does not depend on them either: the same records are asked for."""
    asked: list[tuple[str, bytes]] = []
    real = Reader.get

    def get(self: Reader, table: str, key: bytes) -> bytes | None:
        asked.append((table, key))
        return real(self, table, key)

    def cost(name: str) -> list[tuple[str, bytes]]:
        server.call(lambda app: asked.clear())
        assert blue.command("KV.PREFIX.LOOKUP", name) == "MISS"
        return server.call(lambda app: [(t, k.replace(name.encode(), b"?")) for t, k in asked if t != "meta"])

    monkeypatch.setattr(Reader, "get", get)
    there, absent = cost("x"), cost("q")
    assert there[:1] == absent[:1] == [("namespaces", b"p4:blue,?")]
    assert not any(b"red" in key for _, key in there)


def test_matches_do_not_meet_others_candidates(server: Any, red: Any, blue: Any, monkeypatch: Any) -> None:
    """Others cannot hide a tenant's prefixes behind a thousand of theirs."""
    monkeypatch.setattr("pionkv.storage.prompts.MOST_CANDIDATES", 3)
    table = np.asarray([*IDS[:99], 7], "<u8").tobytes()
    for number in range(8):
        name = f"flood{number}"
        red.command("KV.PREFIX.REGISTER", name, DIM, "fp16", "BLOCKS", 1, len(IDS), table, "MODEL", "m")
    fill(blue, 2)
    assert blue.command("KV.PREFIX.MATCH", u32(IDS), "MODEL", "m")[:2] == [b"x", len(IDS)]


def test_a_claim_of_another_tenant_is_not_in_the_way(red: Any, blue: Any) -> None:
    assert red.command("KV.PREFIX.CLAIM", "wanted", 60_000) == "CLAIMED"
    assert blue.command("KV.PREFIX.CLAIM", "wanted", 60_000) == "CLAIMED"


def test_the_tenant_is_kept_with_the_users(start_server: Any, wire_class: Any) -> None:
    import socket

    server = start_server()

    def connect() -> Any:
        return wire_class(socket.create_connection(("127.0.0.1", server.port)))

    rules = ("on", ">pw", "tenant=red", "max-bytes=1mb", "max-connections=2", "~*", "+@all")
    assert connect().command("ACL", "SETUSER", "u", *rules) == "OK"
    line = next(line for line in connect().command("ACL", "LIST") if b" u " in line)
    assert b" tenant=red max-bytes=1048576 max-connections=2 ~* " in line
    wire = connect()
    wire.command("AUTH", "u", "pw")
    assert wire.command("SET", "k", "v") == "OK"
    server.restart(crash=True)
    wire = connect()
    assert wire.command("AUTH", "u", "pw") == "OK" and wire.command("GET", "k") == b"v"
    assert line in connect().command("ACL", "LIST")


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("tenant=a b", "a tenant's name has at most 64 letters"),
        ("tenant=" + "x" * 65, "a tenant's name has at most 64 letters"),
        ("max-bytes=1gb", "needs tenant=<name>"),
        ("max-bytes=lots", "'lots' is not a size"),
        ("max-connections=-1", "'-1' is not a number of connections"),
        ("colour=red", "Syntax error"),
    ],
)
def test_wrong_rules_say_what_is_wrong(wire: Any, rule: str, why: str) -> None:
    assert why in str(wire.command("ACL", "SETUSER", "u", "on", rule))
    assert wire.command("ACL", "GETUSER", "u") is None


def test_commands_that_arrive_together_are_the_tenants_own(red: Any, blue: Any) -> None:
    """Pipelines take another way into the server than single commands."""
    lines = ("SET x 2", "GET x", "KV.PREFIX.LOOKUP x", "PING", "EXISTS x x:h", "HGET x:h f")
    frames = [b"".join(map(bytes, encode_command(line.split()))) for line in lines]
    for _ in range(3):
        blue.send(b"".join(frames))
        assert [blue.reply() for _ in frames] == ["OK", b"2", "MISS", "PONG", 1, None]
        red.send(b"".join(frames[1:]))
        assert [red.reply() for _ in frames[1:]] == [b"1", "HIT", "PONG", 2, b"1"]

"""Drives a Redis client library, whichever release is on the path, through the surface of a pionkv server.

Runs in a Python without packages. Arguments: module (redis or valkey), port, port of a server with a
password, protocol (2, 3 or 0 for the library's own choice), and the groups to run if not all. Prints one
JSON object: what ran and what failed.
"""

from __future__ import annotations

import array
import asyncio
import hashlib
import importlib
import json
import os
import sys
import threading
import traceback
import uuid
from collections.abc import Callable
from typing import Any

MODULE, PORT, LOCKED_PORT, PROTOCOL = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
PASSWORD = "correct horse"
BIG = 64 << 20

lib: Any = importlib.import_module(MODULE)
Client = lib.Redis if MODULE == "redis" else lib.Valkey
ResponseError = lib.exceptions.ResponseError


def connect(port: int = PORT, **more: Any) -> Any:
    if PROTOCOL:
        more["protocol"] = PROTOCOL
    return Client(host="127.0.0.1", port=port, socket_timeout=60, **more)


def unique(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def floats(count: int, first: float = 0.0) -> bytes:
    return array.array("f", (first + i for i in range(count))).tobytes()


def refused(call: Callable[[], Any]) -> str:
    try:
        answer = call()
    except ResponseError as error:
        return str(error)
    raise AssertionError(f"not refused: {answer!r}")


def check_connection() -> None:
    client = connect(client_name="conformance")
    assert client.ping() is True
    assert client.echo("hällo") in ("hällo".encode(), "hällo")
    assert text(client.client_getname()) == "conformance"
    assert client.client_id() > 0
    assert int(client.client_info()["id"]) == client.client_id()
    assert any(int(row["id"]) == client.client_id() for row in client.client_list())
    assert client.client_setname("other") and text(client.client_getname()) == "other"
    hello = client.execute_command("HELLO")
    pairs = hello if isinstance(hello, dict) else dict(zip(hello[::2], hello[1::2], strict=True))
    proto = {text(key): value for key, value in pairs.items()}["proto"]
    assert proto in ((PROTOCOL,) if PROTOCOL else (2, 3)), proto
    assert client.select(0)
    assert client.time()[0] > 1_600_000_000
    assert client.dbsize() >= 0
    client.close()


def check_password() -> None:
    assert connect(LOCKED_PORT, password=PASSWORD).ping()
    assert connect(LOCKED_PORT, username="default", password=PASSWORD).ping()
    wrong = (lib.exceptions.AuthenticationError, ResponseError)
    waits = importlib.import_module(f"{MODULE}.backoff")
    once = importlib.import_module(f"{MODULE}.retry").Retry(waits.NoBackoff(), 0)
    for credentials in ({}, {"password": "guess"}, {"username": "nobody", "password": PASSWORD}):
        try:
            connect(LOCKED_PORT, **credentials, retry=once).ping()
        except wrong:
            continue
        raise AssertionError(f"let in with {credentials}")


def check_reconnect() -> None:
    victim, other = connect(), connect()
    other.client_kill_filter(_id=victim.client_id())
    assert victim.ping()


def check_server() -> None:
    client = connect()
    info = client.info()
    assert info["redis_version"] and info["connected_clients"] >= 1 and info["used_memory"] > 0
    assert "uptime_in_seconds" in client.info("server")
    assert "maxmemory" in client.config_get("maxmemory")
    assert client.command_count() == len(client.command())
    assert "get" in client.command()
    client.execute_command("COMMAND DOCS", "V.FETCH", "GET")
    assert "get" in {text(name).lower() for name in client.command_list()}
    assert [text(key) for key in client.command_getkeys("GET", "k")] == ["k"]
    client.slowlog_reset()
    assert isinstance(client.slowlog_get(), list) and client.slowlog_len() >= 0
    client.execute_command("LATENCY", "LATEST")
    client.memory_stats()
    assert client.acl_whoami() in ("default", b"default")
    assert "default" in client.acl_getuser("default") or client.acl_getuser("default")["flags"]
    assert client.lolwut()


def check_strings() -> None:
    client, key, other = connect(), unique("string"), unique("string")
    value = bytes(range(256))
    assert client.set(key, value) and client.get(key) == value
    assert client.get(unique("absent")) is None
    assert client.set(key, "no", nx=True) is None and client.get(key) == value
    assert client.set(key, "7", xx=True, ex=100) and 0 < client.ttl(key) <= 100
    assert client.set(key, "8", keepttl=True) and client.ttl(key) > 0
    assert client.set(key, "9", px=60_000) and client.pttl(key) > 0
    assert client.incr(key) == 10 and client.incrby(key, 5) == 15 and client.decr(key) == 14
    assert client.setex(other, 100, "abcdef") and client.getrange(other, 1, 3) == b"bcd"
    assert client.strlen(other) == 6
    assert client.mset({key: "a", other: "b"}) and client.mget([key, unique("absent"), other]) == [
        b"a",
        None,
        b"b",
    ]
    assert client.persist(other) in (True, False) and client.ttl(other) == -1
    assert client.expire(other, 50) and client.ttl(unique("absent")) == -2
    assert client.exists(key, other, unique("absent")) == 2
    assert text(client.type(key)) == "string"
    assert client.delete(key) == 1 and client.unlink(other) == 1


def check_big_value() -> None:
    client, key = connect(), unique("big")
    value = os.urandom(1 << 20) * (BIG >> 20)
    assert client.set(key, value)
    assert hashlib.blake2b(client.get(key)).digest() == hashlib.blake2b(value).digest()
    assert client.strlen(key) == BIG and client.delete(key) == 1


def check_hashes() -> None:
    client, key = connect(), unique("hash")
    assert client.hset(key, mapping={"a": 1, "b": b"\x00\xff"}) == 2
    assert client.hset(key, "a", 2) == 0
    assert client.hget(key, "a") == b"2" and client.hmget(key, "b", "zz") == [b"\x00\xff", None]
    assert client.hgetall(key) == {b"a": b"2", b"b": b"\x00\xff"}
    assert client.hlen(key) == 2 and sorted(client.hkeys(key)) == [b"a", b"b"]
    assert client.hdel(key, "a", "zz") == 1 and client.hexists(key, "b") and text(client.type(key)) == "hash"
    assert "WRONGTYPE" in refused(lambda: client.get(key))
    client.delete(key)


def check_sorted_sets() -> None:
    client, key = connect(), unique("zset")
    assert client.zadd(key, {"one": 1, "two": 2.5, "minus": -3}) == 3
    assert client.zadd(key, {"one": 9}, nx=True) == 0
    assert client.zrange(key, 0, -1) == [b"minus", b"one", b"two"]
    pairs = [(text(pair[0]), float(pair[1])) for pair in client.zrange(key, 0, 1, withscores=True)]
    assert pairs == [("minus", -3.0), ("one", 1.0)]
    assert client.zscore(key, "two") == 2.5 and client.zscore(key, "none") is None
    assert client.zcard(key) == 3 and client.zrem(key, "one", "none") == 1
    client.delete(key)


def check_scan() -> None:
    client, word = connect(), unique("scan")
    names = {f"{word}:{i}".encode() for i in range(300)}
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.set(name, "1")
    pipeline.execute()
    assert set(client.scan_iter(match=f"{word}:*", count=50)) == names
    assert set(client.keys(f"{word}:*")) == names
    assert client.delete(*names) == 300


def check_pipelines() -> None:
    client, key = connect(), unique("pipe")
    pipeline = client.pipeline(transaction=False)
    for _ in range(2000):
        pipeline.incr(key)
    assert pipeline.execute() == list(range(1, 2001))
    transaction = client.pipeline(transaction=True)
    transaction.set(key, "1")
    transaction.incr(key)
    transaction.get(key)
    answers = transaction.execute()
    assert answers[1:] == [2, b"2"], answers
    mixed = client.pipeline(transaction=False)
    mixed.get(key)
    mixed.execute_command("V.FETCH", unique("nobody"), 0, 0)
    mixed.ping()
    answers = mixed.execute(raise_on_error=False)
    assert answers[0] == b"2" and isinstance(answers[1], ResponseError) and answers[2] is True
    client.delete(key)


def check_notices() -> None:
    client, name = connect(), unique("notice")
    listener = client.pubsub()
    listener.psubscribe("*")
    assert listener.get_message(timeout=30)["type"] == "psubscribe"
    client.execute_command("KV.PREFIX.REGISTER", name, 32, "fp16")
    for side in ("_pk", "_pv"):
        client.execute_command("V.STOREBATCH", name + side, 0, 0, 1, floats(32))
    client.execute_command("KV.PREFIX.DROP", name)
    seen = b""
    while name.encode() not in seen:
        message = listener.get_message(timeout=30)
        assert message is not None, "no notice of the drop"
        seen += message["channel"] + str(message["data"]).encode()
    listener.punsubscribe()
    listener.close()


def check_sessions() -> None:
    client, sid = connect(), unique("session")
    call = client.execute_command
    rows = floats(3 * 32)
    assert isinstance(call("V.CREATE", sid, 32, "VQUANT", "fp16"), int)
    assert text(call("V.STOREBATCH", sid, 0, 0, 3, rows)) == "OK"
    half = array.array("H", range(0x3C00, 0x3C00 + 32)).tobytes()
    assert text(call("V.STOREBATCH", sid, 1, 0, 1, half, "FMT", "F16")) == "OK"
    assert call("V.FETCH", sid, 0, 2, 0) == rows[256:384] + rows[:128]
    assert call("V.FETCH", sid, 0, "RANGE", 1, 3) == rows[128:]
    assert call("V.FETCH", sid, 1, "RANGE", 0, 1, "FMT", "NATIVE") == half
    assert len(call("V.FETCH", sid, "BATCH", 0, 1)) == 2
    assert call("V.FETCH", sid, "BATCH", 0, 1, 3, "FMT", "NATIVE")[1:] == [half, None]
    assert b"layer_0_tokens:3" in call("V.INFO", sid).replace(b"\r\n", b" ")
    assert "blob size 4 != expected 128" in refused(lambda: call("V.STOREBATCH", sid, 0, 0, 1, b"1234"))
    assert "not stored" in refused(lambda: call("V.FETCH", sid, 0, "RANGE", 0, 9))
    assert refused(lambda: call("V.CREATE", sid, 64)).startswith("SCHEMAMISMATCH")
    assert call("V.DROP", sid) == 1


def check_prefixes() -> None:
    client, name, other = connect(), unique("prefix"), unique("prefix")
    call = client.execute_command
    blob = floats(4 * 64)
    assert text(call("KV.PREFIX.LOOKUP", name)) == "MISS"
    for each in (name, other):
        assert text(call("KV.PREFIX.REGISTER", each, 64, "fp16", "PREFILL_MS", 12)) == "OK"
        for side in ("_pk", "_pv"):
            assert text(call("V.STOREBATCH", each + side, 0, 0, 4, blob)) == "OK"
        assert text(call("KV.PREFIX.LOOKUP", each)) == "HIT"
    hashes = array.array("Q", (11, 22, 33)).tobytes()
    assert text(call("KV.PREFIX.REGISTER", name, 64, "fp16", "BLOCKS", 16, 3, hashes)) == "OK"
    assert call("KV.PREFIX.BLOCKS", name)[8:] == hashes
    assert call("KV.PREFIX.MEMBERSHIP", name, 3, array.array("Q", (33, 44, 11)).tobytes()) == b"\x05"
    assert b"registered_prefixes:" in call("KV.PREFIX.INFO")
    assert call("KV.PREFIX.DROP", name, other, unique("nobody")) == 2
    assert text(call("KV.PREFIX.LOOKUP", name)) == "MISS"


def check_states_and_receipt() -> None:
    client, name = connect(), unique("state")
    call = client.execute_command
    assert text(call("SSM.PREFIX.STORE", name, 3, b"\x00blob\xff")) == "OK"
    assert call("SSM.PREFIX.FETCH", name, 3) == b"\x00blob\xff"
    assert call("SSM.PREFIX.FETCH", name, 4) is None
    assert text(call("SSM.PREFIX.DROP", name)) == "OK"
    receipt = call("PION.STATS")
    assert len(receipt) == (16 if isinstance(receipt, dict) else 32), receipt


def check_threads() -> None:
    client, word, failures = connect(), unique("thread"), []

    def work(index: int) -> None:
        try:
            for turn in range(100):
                client.set(f"{word}:{index}", turn)
                assert int(client.get(f"{word}:{index}")) == turn
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.delete(*(f"{word}:{index}" for index in range(8)))
    assert not failures, failures


def check_asyncio() -> None:
    asynchronous = importlib.import_module(f"{MODULE}.asyncio")
    kind = asynchronous.Redis if MODULE == "redis" else asynchronous.Valkey
    options = {"protocol": PROTOCOL} if PROTOCOL else {}

    async def talk() -> None:
        client, key = kind(host="127.0.0.1", port=PORT, **options), unique("async")
        await asyncio.gather(*(client.set(f"{key}:{i}", i) for i in range(50)))
        assert await client.mget([f"{key}:{i}" for i in range(50)]) == [str(i).encode() for i in range(50)]
        async with client.pipeline(transaction=True) as pipeline:
            assert await pipeline.incr(key).incr(key).execute() == [1, 2]
        await client.delete(key, *(f"{key}:{i}" for i in range(50)))
        closing = getattr(client, "aclose", client.close)
        await closing()

    asyncio.run(talk())


def check_reset() -> None:
    client = connect(single_connection_client=True, client_name="before")
    client.reset()
    assert text(client.execute_command("ECHO", "after")) == "after"
    client.close()
    assert connect(single_connection_client=True).quit()


def main() -> None:
    checks = {name[6:]: value for name, value in globals().items() if name.startswith("check_")}
    checks = {name: checks[name] for name in sys.argv[5:] or checks}
    passed, failed = [], {}
    for name, check in checks.items():
        try:
            check()
        except Exception:
            failed[name] = traceback.format_exc(limit=-2)
        else:
            passed.append(name)
    print(json.dumps({"version": lib.__version__, "passed": passed, "failed": failed}))


main()

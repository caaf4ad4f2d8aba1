"""Prefixes as an operator sees them: KV.PREFIX.SAVE, WARM, LIST, SCAN, EXPLAIN, INFO."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import pytest
from pionkv.protocol.errors import CommandError
from pionkv.storage import Store

DIM = 64
ROWS = struct.pack(f"<{4 * DIM}f", *range(4 * DIM))


def table(answer: Any) -> dict[bytes, Any]:
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))


def prefix(wire: Any, name: str, layers: int = 2, dim: int = DIM) -> None:
    assert wire.command("KV.PREFIX.REGISTER", name, dim, "fp32") == "OK"
    for layer in range(layers):
        for side in ("_pk", "_pv"):
            assert wire.command("V.STOREBATCH", name + side, layer, 0, 4, ROWS[: 16 * dim]) == "OK"


def test_a_copy_is_served_as_it_was(server: Any, wire: Any, start_local: Any) -> None:
    prefix(wire, "a")
    wire.command("SET", "key", b"v" * 100_000)
    wire.command("SSM.PREFIX.STORE", "s", 0, b"blob")
    assert wire.command("KV.PREFIX.SAVE", "before/all") == "OK"
    wire.command("KV.PREFIX.DROP", "a")
    wire.command("SET", "key", "other")
    copy = start_local(data_dir=server.settings.data_dir / "saved" / "before" / "all").connect()
    assert copy.command("KV.PREFIX.LOOKUP", "a") == "HIT"
    assert copy.command("V.FETCH", "a_pv", 1, "RANGE", 0, 4) == ROWS
    assert (
        copy.command("GET", "key") == b"v" * 100_000 and copy.command("SSM.PREFIX.FETCH", "s", 0) == b"blob"
    )
    assert wire.command("KV.PREFIX.LOOKUP", "a") == "MISS" and wire.command("GET", "key") == b"other"


def test_the_store_is_in_use_while_it_is_copied(server: Any, wire: Any, start_local: Any) -> None:
    """Counters of one transaction each: a copy has equal ones, whatever it came between."""
    done = threading.Event()

    def change() -> None:
        other, count = server.connect(), 0
        while not done.is_set():
            count += 1
            other.send(b"MULTI\r\nSET x %d\r\nSET y %d\r\nEXEC\r\n" % (count, count))
            for _ in range(4):
                other.reply()
            prefix(other, f"p{count % 7}")
            other.command("KV.PREFIX.DROP", f"p{(count + 3) % 7}")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        answers = [wire.command("KV.PREFIX.SAVE", f"copy{number}") for number in range(5)]
    finally:
        done.set()
        thread.join()
    assert answers == ["OK"] * 5
    for number in range(5):
        copy = start_local(data_dir=server.settings.data_dir / "saved" / f"copy{number}").connect()
        assert copy.command("GET", "x") == copy.command("GET", "y")
        for name in copy.command("KV.PREFIX.LIST"):
            if copy.command("KV.PREFIX.LOOKUP", name) == "HIT":
                assert copy.command("V.FETCH", name + b"_pk", 0, "RANGE", 0, 4) == ROWS


def test_save_without_a_path_syncs(wire: Any) -> None:
    assert wire.command("KV.PREFIX.SAVE") == "OK"


def test_warm_counts_layers(server: Any, wire: Any) -> None:
    prefix(wire, "p", layers=3)
    assert wire.command("KV.PREFIX.WARM", "p") == "3"
    assert wire.command("KV.PREFIX.WARM", "p", 2, DIM // 2, "p_attn") == "3"
    assert wire.command("KV.PREFIX.WARM", "p", 2, DIM) == "0 skipped_dim=3"
    wire.command("V.STOREBATCH", "p_pk", 3, 0, 4, ROWS)
    assert wire.command("KV.PREFIX.WARM", "p") == "3"


def test_warm_finds_damage(start_server: Any, wire_class: Any) -> None:
    process = start_server()

    def connect() -> Any:
        return wire_class(socket.create_connection(("127.0.0.1", process.port)))

    prefix(connect(), "p")
    process.restart(crash=True)
    page = next((process.data_dir / "pages").iterdir())
    data = bytearray(page.read_bytes())
    at = data.index(ROWS)
    data[at + 100] ^= 1
    page.write_bytes(data)
    wire = connect()
    assert str(wire.command("KV.PREFIX.WARM", "p")).startswith("QUARANTINED")
    found = table(wire.command("KV.PREFIX.EXPLAIN", "p"))
    assert found[b"answer"] == b"MISS" and found[b"reason"].startswith(b"quarantined")


@pytest.mark.parametrize("protocol", [2, 3])
def test_names_some_at_a_time_while_others_come_and_go(server: Any, protocol: int) -> None:
    wire = server.connect(protocol)
    stay = [b"stay%03d" % number for number in range(25)] + [
        b"x" * 400 + b"%d" % number for number in range(5)
    ]
    for name in stay:
        wire.command("KV.PREFIX.REGISTER", name, DIM, "fp16")
    wire.command("V.CREATE", "single", DIM)
    met, cursor, turn = [], b"0", 0
    while True:
        cursor, names = wire.command("KV.PREFIX.SCAN", cursor, "COUNT", 4)
        met += names
        wire.command("KV.PREFIX.REGISTER", b"come%d" % turn, DIM, "fp16")
        wire.command("KV.PREFIX.DROP", b"come%d" % (turn - 1))
        turn += 1
        if cursor == b"0":
            break
        wire.command("KV.PREFIX.DROP", "stay-not")
    assert sorted(name for name in met if name in stay) == sorted(stay)
    assert set(wire.command("KV.PREFIX.LIST", "MATCH", "stay*")) == set(stay[:25])
    assert set(wire.command("KV.PREFIX.LIST")[-5:]) == set(stay[25:])
    cursor, names = wire.command("KV.PREFIX.SCAN", 0, "MATCH", "x*", "COUNT", 1000)
    assert (cursor, sorted(names)) == (b"0", stay[25:])


def test_a_user_meets_only_names_it_may_read(server: Any, wire: Any) -> None:
    for number in range(20):
        prefix(wire, f"team{number % 2}:{number:02d}")
    wire.command("ACL", "SETUSER", "u", "on", ">pw", "~team1:*", "+@all")
    user = server.connect()
    user.command("AUTH", "u", "pw")
    mine = [b"team1:%02d" % number for number in range(1, 20, 2)]
    assert user.command("KV.PREFIX.LIST") == mine
    cursor, names = user.command("KV.PREFIX.SCAN", 0, "COUNT", 4)
    assert names == mine[:4] and cursor == b">" + mine[3]
    for line in (
        ("KV.PREFIX.EXPLAIN", "team0:00"),
        ("KV.PREFIX.WARM", "team0:00"),
        ("KV.PREFIX.SAVE", "x"),
        ("KV.PREFIX.BEGIN", "team1:new", "KV", DIM, "fp32", "LAYERS", 2, "FROM", "team0:00", 4),
    ):
        assert str(user.command(*line)) == "NOPERM No permissions to access a key"


def test_tokens_of_others_are_found_by_nobody_else(server: Any, wire: Any) -> None:
    ids = struct.pack("<4I", 1, 2, 3, 4)
    hashes = struct.pack("<4Q", 1, 2, 3, 4)
    wire.command("KV.PREFIX.REGISTER", "a:p", DIM, "fp32", "BLOCKS", 1, 4, hashes)
    for side in ("_pk", "_pv"):
        wire.command("V.STOREBATCH", "a:p" + side, 0, 0, 4, ROWS)
    assert wire.command("KV.PREFIX.MATCH", ids)[0] == b"a:p"
    wire.command("ACL", "SETUSER", "b", "on", ">pw", "~b:*", "+@all")
    user = server.connect()
    user.command("AUTH", "b", "pw")
    assert user.command("KV.PREFIX.MATCH", ids) is None
    user.command("KV.PREFIX.REGISTER", "b:p", DIM, "fp32")
    assert b"nearest" not in table(user.command("KV.PREFIX.EXPLAIN", "b:p", "TOKENS", ids))


def test_why_a_prefix_would_hit_or_miss(start_local: Any) -> None:
    wire = start_local(max_bytes=4 << 20).connect(3)

    def why(*line: Any) -> dict[bytes, Any]:
        return wire.command("KV.PREFIX.EXPLAIN", *line)

    assert why("p") == {b"answer": b"MISS", b"reason": b"absent"}
    prefix(wire, "p")
    hit = why("p")
    assert hit[b"answer"] == b"HIT" and hit[b"reason"] == b""
    assert (hit[b"tokens"], hit[b"layers"], hit[b"k_rows"], hit[b"v_rows"]) == (4, 2, b"2x4", b"2x4")
    wire.command("V.STOREBATCH", "p_pk", 2, 0, 2, ROWS[: 2 * 4 * DIM])
    part = why("p")
    assert (part[b"answer"], part[b"reason"]) == (b"MISS", b"incomplete")
    assert (part[b"k_rows"], part[b"v_rows"]) == (b"2x4 1x2", b"2x4")
    wire.command("KV.PREFIX.DROP", "p")
    dropped = why("p")
    assert dropped[b"reason"] == b"dropped" and dropped[b"since"] > 1_600_000_000
    prefix(wire, "p")
    big = bytes(4 * DIM * 4096)
    for number in range(8):
        wire.command("KV.PREFIX.REGISTER", f"big{number}", DIM, "fp32")
        for side in ("_pk", "_pv"):
            assert wire.command("V.STOREBATCH", f"big{number}{side}", 0, 0, 4096, big) == "OK"
    assert why("p")[b"reason"] == b"evicted"
    prefix(wire, "p")
    assert why("p")[b"answer"] == b"HIT"


def test_where_tokens_differ(either: Any) -> None:
    hashes = struct.pack("<4Q", 1, 2, 3, 4)
    either.command("KV.PREFIX.REGISTER", "p", DIM, "fp32", "BLOCKS", 1, 4, hashes)
    for side in ("_pk", "_pv"):
        either.command("V.STOREBATCH", "p" + side, 0, 0, 4, ROWS)
    found = table(either.command("KV.PREFIX.EXPLAIN", "p", "TOKENS", struct.pack("<5I", 1, 2, 9, 4, 5)))
    assert (found[b"differs_at"], found[b"nearest"], found[b"nearest_tokens"]) == (2, b"p", 2)
    found = table(either.command("KV.PREFIX.EXPLAIN", "p", "TOKENS", struct.pack("<5I", 1, 2, 3, 4, 5)))
    assert found[b"differs_at"] == 4


def test_prefix_info_has_the_fields_of_the_original(wire: Any) -> None:
    prefix(wire, "p")
    lines = [line.partition(":")[::2] for line in wire.command("KV.PREFIX.INFO").decode().splitlines()]
    assert [name for name, _ in lines] == [
        "registered_prefixes", "total_prefix_tokens", "vstore_sessions", "vstore_total_fetches",
        "vstore_evictions", "vstore_max_sessions", "vstore_bytes", "wal_enabled", "wal_bytes", "wal_appended",
        "wal_replayed", "directory_enabled", "my_worker_id", "directory_entries", "sdpa_warm", "sdpa_cold",
        "sdpa_demotions", "sdpa_rehydrates",
    ]  # fmt: skip
    assert dict(lines)["total_prefix_tokens"] == "8" and dict(lines)["vstore_sessions"] == "2"


def test_a_published_transaction_is_noticed(server: Any, wire: Any) -> None:
    listener = server.connect()
    listener.send(b"SUBSCRIBE __keyevent@0__:publish\r\n")
    listener.reply()
    txn = wire.command("KV.PREFIX.BEGIN", "t", "KV", DIM, "fp32", "LAYERS", 1)
    for side in ("_pk", "_pv"):
        assert wire.command("V.STOREBATCH", "t" + side, 0, 0, 4, ROWS, "TXN", txn) == "OK"
    assert not isinstance(wire.command("KV.PREFIX.PUBLISH", txn), CommandError)
    assert listener.reply() == [b"message", b"__keyevent@0__:publish", b"t"]


def test_a_copy_while_other_workers_write(start_server: Any, wire_class: Any) -> None:
    process = start_server("--workers", "2", "--max-bytes", "8mb")
    done = threading.Event()

    def connect(port: int) -> Any:
        return wire_class(socket.create_connection(("127.0.0.1", port)))

    def change(name: str) -> None:
        wire, big = connect(process.port), bytes(4 * DIM * 2048)
        while not done.is_set():
            wire.command("KV.PREFIX.REGISTER", name, DIM, "fp32")
            for side in ("_pk", "_pv"):
                wire.command("V.STOREBATCH", name + side, 0, 0, 2048, big)
            wire.command("KV.PREFIX.DROP", name)

    threads = [threading.Thread(target=change, args=(f"p{number}",)) for number in range(6)]
    saver = connect(process.port)
    prefix(saver, "kept")
    saver.command("KV.PREFIX.PIN", "kept")
    for thread in threads:
        thread.start()
    try:
        answers = [saver.command("KV.PREFIX.SAVE", f"copy{number}") for number in range(3)]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert answers == ["OK"] * 3
    for number in range(3):
        with Store.open(process.data_dir / "saved" / f"copy{number}") as copy:
            for record in list(copy.namespaces()):
                assert sum(copy.verify(record.namespace)) == record.bytes
            assert copy.lookup(b"kept") is not None

"""TRUNCATE, FORK, REORDER, how long prefixes are kept, VERIFY. Each test names the requirements it shows."""

from __future__ import annotations

import time

import numpy as np
import pytest
from prefix_rows import DIM, LAYERS, ROW_BYTES, SIDES, expected, prepare, publish, rows, whole
from prefix_rows import SCHEMA as BEGIN

FORMATS = ("fp16", "int8", "mlx4g32", "turbo4", "kivi4")


def lookup(wire, name):
    return wire.command("KV.PREFIX.LOOKUP", name)


def info(server):
    return server.call(lambda app: app.service.store.info())


@pytest.fixture
def prefix(wire):
    """A prefix of 8 tokens; its generation."""
    ids = np.arange(100, 108, dtype="<u4").tobytes()
    return publish(wire, "n", 1, 0, 8, "TOKENS", ids)[1]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("cut", [0, 1, 33, 69])
def test_appending_after_a_truncate_equals_a_fresh_run(format, cut, wire) -> None:
    """R17: other rows after the cut, wherever in a page it falls; bytes equal a run that never had it."""
    first, second = np.random.default_rng(1).standard_normal((2, 70, DIM), np.float32)
    runs = {"cut": [(0, first), (cut, second[cut:])], "fresh": [(0, first[:cut]), (cut, second[cut:])]}
    for name, parts in runs.items():
        wire.command("KV.PREFIX.REGISTER", name, DIM, format)
        for number, (start, values) in enumerate(parts):
            if name == "cut" and number:
                assert wire.command("KV.PREFIX.TRUNCATE", name, cut) > 0
            for side in SIDES:
                for layer in range(LAYERS if len(values) else 0):
                    sid = f"{name}_p{side}"
                    stored = wire.command("V.STOREBATCH", sid, layer, start, len(values), values.tobytes())
                    assert stored == "OK"
    assert whole(wire, "cut", 70) == whole(wire, "fresh", 70)


def test_a_truncate_moves_every_layer_and_the_generation(prefix, wire) -> None:
    """R9, R17, R18: what was bound to the longer prefix is stale; the tokens are cut with the rows."""
    txn = wire.command("KV.PREFIX.BEGIN", "n", *BEGIN)
    prepare(wire, txn, "n", 2, 8, 9)
    wire.command("SSM.PREFIX.STORE", "n", 0, "state after 8 tokens")
    generation = wire.command("KV.PREFIX.TRUNCATE", "n", 5)
    assert generation > prefix
    assert whole(wire, "n", 5, "AT", generation) == expected((1, 0, 5))
    assert whole(wire, "n", 6).code == "ERR"
    assert whole(wire, "n", 5, "AT", prefix).code == "STALE"
    assert wire.command("KV.PREFIX.PUBLISH", txn).code == "STALE"
    assert wire.command("SSM.PREFIX.FETCH", "n", 0) is None
    assert wire.command("KV.PREFIX.BLOCKS", "n")[8:] == np.arange(100, 105, dtype="<u8").tobytes()
    assert wire.command("KV.PREFIX.TRUNCATE", "n", 7) == generation
    assert wire.command("KV.PREFIX.TRUNCATE", "n", 0) > generation
    assert lookup(wire, "n") == "MISS"


def test_a_fork_shares_rows_and_nothing_else(prefix, wire, server) -> None:
    """R15, R22: no bytes are taken, and neither side sees what the other does."""
    before = info(server).bytes
    child = wire.command("KV.PREFIX.FORK", "n", "child", 5)
    same = wire.command("KV.PREFIX.FORK", "n", "same")
    assert info(server).bytes == before and prefix < child < same
    assert wire.command("KV.PREFIX.BLOCKS", "child")[8:] == np.arange(100, 105, dtype="<u8").tobytes()
    publish(wire, "child", 2, 5, 7)
    publish(wire, "n", 3, 8, 9)
    wire.command("KV.PREFIX.TRUNCATE", "n", 2)
    wire.command("V.STOREBATCH", "n_pk", 0, 0, 1, rows(4, 0, "k", 0, 1), "FMT", "F16")
    assert whole(wire, "child", 7) == expected((1, 0, 5), (2, 5, 7))
    assert whole(wire, "same", 8, "AT", same) == expected((1, 0, 8))
    wire.command("KV.PREFIX.DROP", "n")
    assert whole(wire, "same", 8) == expected((1, 0, 8))


def test_bytes_go_with_the_last_that_shares_them(prefix, wire, server) -> None:
    """R20, R21."""
    wire.command("KV.PREFIX.FORK", "n", "child", 5)
    wire.command("KV.PREFIX.DROP", "n")
    assert info(server).bytes > 0
    wire.command("KV.PREFIX.DROP", "child")
    assert (info(server).bytes, info(server).pages) == (0, 0)


def test_a_dropped_prefix_is_read_to_the_end_by_who_began(wire, server) -> None:
    """R19: the reply was begun before, and its rows stay until it is sent."""
    count = 40_000
    txn = wire.command("KV.PREFIX.BEGIN", "n", "KV", DIM, "fp16", "LAYERS", 1)
    sent = np.arange(count * DIM, dtype=np.uint32).astype(np.uint16) & 0x3BFF
    for side in SIDES:
        wire.command("V.STOREBATCH", f"n_p{side}", 0, 0, count, sent.tobytes(), "FMT", "RAW", "TXN", txn)
    wire.command("KV.PREFIX.PUBLISH", txn)
    slow, other = server.connect(), server.connect()
    slow.send(b"V.FETCHALL n_pk n_pv 0 %d FMT RAW\r\n" % count)
    slow.expect(b"*2\r\n$%d\r\n" % (count * ROW_BYTES))
    assert other.command("KV.PREFIX.DROP", "n") == 1
    other.command("KV.PREFIX.REGISTER", "n", DIM, "fp16")
    slow.expect(sent.tobytes())
    slow.expect(b"\r\n$%d\r\n" % (count * ROW_BYTES))
    slow.expect(sent.tobytes())


@pytest.fixture
def beams(wire):
    """Three prefixes of other rows and lengths."""
    for beam in range(3):
        ids = np.arange(beam, beam + 4, dtype="<u4").tobytes()
        publish(wire, f"b{beam}", beam + 1, 0, 4, "TOKENS", ids)
    return [f"b{beam}_p{side}" for side in SIDES for beam in range(3)]


@pytest.mark.parametrize("order", [(1, 2, 0), (0, 0, 1), (2, 1, 0), (0, 1, 2), (2, 2, 2)])
def test_reorder_moves_everything_in_one_step(order, beams, wire, server) -> None:
    """R16: rows, tokens and generations of all beams; a beam may go on in several places, or end."""
    before = info(server)
    places = [*order, *(3 + place for place in order)]
    generation = wire.command("V.REORDER", *beams, ",".join(map(str, places)))
    for beam, place in enumerate(order):
        at = () if place == beam else ("AT", generation)
        assert whole(wire, f"b{beam}", 4, *at) == expected((place + 1, 0, 4))
        ids = np.arange(place, place + 4, dtype="<u8").tobytes()
        assert wire.command("KV.PREFIX.BLOCKS", f"b{beam}")[8:] == ids
    assert info(server).bytes <= before.bytes and info(server).rows == before.rows
    for beam, place in enumerate(order):
        publish(wire, f"b{beam}", 10 + beam, 4, 5)
        assert whole(wire, f"b{beam}", 5) == expected((place + 1, 0, 4), (10 + beam, 4, 5))
    for beam in range(3):
        assert wire.command("KV.PREFIX.VERIFY", f"b{beam}") == 5 * LAYERS * 2 * ROW_BYTES
        wire.command("KV.PREFIX.DROP", f"b{beam}")
    assert (info(server).bytes, info(server).rows, info(server).pages) == (0, 0, 0)


def test_a_refused_reorder_changes_nothing(beams, wire) -> None:
    """R16: K rows do not become V rows, nor rows of one schema those of another."""
    wire.command("V.CREATE", "other", DIM, "VQUANT", "int8")
    wire.command("V.CREATE", "third", DIM * 2, "VQUANT", "int8")
    wrong = {
        ("b0_pk", "b0_pv", "1,0"): "SCHEMAMISMATCH side: stored K, asked V",
        ("other", "third", "1,0"): "SCHEMAMISMATCH dim: stored 32, asked 64",
        ("b0_pk", "b1_pk", "1"): "ERR V.REORDER: 1 places for 2 sessions",
        ("b0_pk", "b1_pk", "0,2"): "ERR V.REORDER: a place is not within 0..1",
        ("b0_pk", "b0_pk", "0,1"): "ERR V.REORDER: a session is named twice",
        ("b0_pk", "b9_pk", "1,0"): "ERR session not found",
    }
    for words, text in wrong.items():
        assert str(wire.command("V.REORDER", *words)) == text
    for beam in range(3):
        assert whole(wire, f"b{beam}", 4) == expected((beam + 1, 0, 4))


def turn_clock(server, seconds: float) -> None:
    def turn(app):
        app.service.store._engine.clock = lambda: time.time() + seconds

    server.call(turn)


def test_an_expired_prefix_is_a_miss_with_a_reason(prefix, wire, server) -> None:
    """From the second on, not from when it is swept."""
    assert wire.command("KV.PREFIX.TTL", "n") == -1
    assert wire.command("KV.PREFIX.EXPIRE", "n", 100) == 1
    assert 99 <= wire.command("KV.PREFIX.TTL", "n") <= 100
    server.call(lambda app: app.service.store.tick())
    assert whole(wire, "n", 8) == expected((1, 0, 8))
    turn_clock(server, 101)
    assert lookup(wire, "n") == "MISS"
    assert server.call(lambda app: app.service.store.miss_reason(b"n")) in ("expired", "absent")
    read = whole(wire, "n", 8)
    assert str(read) in ("EXPIRED V.FETCHALL: the namespace has expired", "ERR session not found")
    assert wire.command("KV.PREFIX.TTL", "n") == -2
    assert wire.command("KV.PREFIX.EXPIRE", "n", 100) == 0
    assert wire.command("KV.PREFIX.FORK", "n", "child").message == "namespace not found"
    assert publish(wire, "n", 2, 0, 3)[2] == 3
    assert wire.command("KV.PREFIX.TTL", "n") == -1
    assert whole(wire, "n", 3) == expected((2, 0, 3))


def test_a_prefix_can_be_kept_from_ending(prefix, wire, server) -> None:
    wire.command("KV.PREFIX.EXPIRE", "n", 100)
    assert wire.command("KV.PREFIX.EXPIRE", "n", "PERSIST") == 1
    turn_clock(server, 101)
    server.call(lambda app: app.service.store.tick())
    assert whole(wire, "n", 8) == expected((1, 0, 8))
    assert wire.command("KV.PREFIX.EXPIRE", "nobody", 5) == 0


def test_a_pinned_prefix_is_not_evicted(start_local) -> None:
    server = start_local(max_bytes=1 << 20)
    wire = server.connect()
    publish(wire, "kept", 1, 0, 500)
    assert wire.command("KV.PREFIX.PIN", "kept") == 1
    assert wire.command("KV.PREFIX.PIN", "kept") == 2
    assert wire.command("KV.PREFIX.UNPIN", "kept") == 1
    for number in range(12):
        publish(wire, f"p{number}", 2, 0, 1500)
    assert info(server).evictions > 0
    assert whole(wire, "kept", 500) == expected((1, 0, 500))
    assert wire.command("KV.PREFIX.UNPIN", "kept") == 0
    for number in range(12):
        publish(wire, f"q{number}", 2, 0, 1500)
    assert lookup(wire, "kept") == "MISS"


def test_sessions_without_a_prefix_are_pinned_and_end_too(start_local) -> None:
    server = start_local(max_bytes=1 << 20)
    wire = server.connect()
    for name in ("kept", "ends", "plain"):
        wire.command("V.CREATE", name, DIM, "VQUANT", "fp16")
        wire.command("V.STOREBATCH", name, 0, 0, 100, bytes(100 * ROW_BYTES), "FMT", "F16")
    assert wire.command("KV.PREFIX.PIN", "kept") == 1
    assert wire.command("KV.PREFIX.TTL", "ends") == -1
    assert wire.command("KV.PREFIX.EXPIRE", "ends", 100) == 1
    assert 99 <= wire.command("KV.PREFIX.TTL", "ends") <= 100
    turn_clock(server, 101)
    fetched = wire.command("V.FETCH", "ends", 0, "RANGE", 0, 100)
    assert fetched.code in ("EXPIRED", "ERR") and wire.command("KV.PREFIX.TTL", "ends") == -2
    for number in range(40):
        publish(wire, f"p{number}", 2, 0, 1500)
    assert wire.command("V.FETCH", "plain", 0, "RANGE", 0, 100).code == "ERR"
    assert len(wire.command("V.FETCH", "kept", 0, "RANGE", 0, 100, "FMT", "F16")) == 100 * ROW_BYTES
    publish(wire, "n", 1, 0, 8)
    for command in (("PIN", "n_pk"), ("PIN", "nobody"), ("UNPIN", "n_pv")):
        assert wire.command(f"KV.PREFIX.{command[0]}", command[1]).message == "namespace not found"
    assert wire.command("KV.PREFIX.TTL", "n_pk") == -2


def test_verify_finds_a_flipped_bit(prefix, wire, server) -> None:
    """The prefix is a miss from then on, and can be stored anew."""
    assert wire.command("KV.PREFIX.VERIFY", "n") == 8 * LAYERS * 2 * ROW_BYTES
    (page,) = (server.settings.data_dir / "pages").iterdir()
    with page.open("r+b") as file:
        file.seek(4096 + 3)
        byte = file.read(1)[0]
        file.seek(4096 + 3)
        file.write(bytes([byte ^ 4]))
    assert wire.command("KV.PREFIX.VERIFY", "n").code == "QUARANTINED"
    assert lookup(wire, "n") == "MISS"
    assert whole(wire, "n", 8).code == "QUARANTINED"
    assert publish(wire, "n", 2, 0, 3)[2] == 3
    assert whole(wire, "n", 3) == expected((2, 0, 3))

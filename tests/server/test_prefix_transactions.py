"""KV.PREFIX.BEGIN, PUBLISH and reading AT a generation. Each test names the requirements it shows."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import xxhash
from prefix_rows import (
    DIM,
    LAYERS,
    ROW_BYTES,
    SIDES,
    baseline,
    begin,
    code,
    expected,
    lookup,
    prepare,
    publish,
    put,
    rows,
    whole,
)


def test_nothing_is_seen_before_and_everything_after_publishing(wire, server) -> None:
    """R1, R2, R4, R11."""
    other = server.connect()
    txn = begin(wire)
    assert other.command("DBSIZE") == 0
    prepare(wire, txn, "n", 1, 0, 7)
    assert (lookup(other), other.command("DBSIZE")) == ("MISS", 0)
    assert other.command("V.INFO", "n_pk").message == "session not found"
    name, generation, tokens, digest = wire.command("KV.PREFIX.PUBLISH", txn)
    assert (name, tokens, lookup(other)) == (b"n", 7, "HIT")
    assert whole(other, "n", 7, "AT", generation) == expected((1, 0, 7))
    each = b"".join(xxhash.xxh3_64_intdigest(part).to_bytes(8, "little") for part in expected((1, 0, 7)))
    assert digest == xxhash.xxh3_64_hexdigest(each).encode()


def test_states_alone_become_visible_together(wire, server) -> None:
    """A prefix of a model that has no rows: nothing before it is published, all of it afterwards."""
    other, ids = server.connect(), np.arange(5, dtype="<u4").tobytes()
    match = ("KV.PREFIX.MATCH", ids, "MODEL", "m", "WHOLE")
    txn = wire.command("KV.PREFIX.BEGIN", "n", "KV", 1, "fp16", "LAYERS", 0, "TOKENS", ids, "MODEL", "m")
    refused = wire.command("KV.PREFIX.PUBLISH", txn)
    assert refused.message == "KV.PREFIX.PUBLISH: it has neither rows nor states"
    for layer in (0, 3):
        assert wire.command("SSM.PREFIX.STORE", "n", layer, f"state {layer}", "TXN", txn) == "OK"
        assert (lookup(other), other.command(*match)) == ("MISS", None)
        assert other.command("SSM.PREFIX.FETCH", "n", layer) is None
    wire.command("KV.PREFIX.PUBLISH", txn)
    assert lookup(other) == "HIT" and other.command(*match)[:2] == [b"n", 5]
    assert [other.command("SSM.PREFIX.FETCH", "n", layer) for layer in (0, 3)] == [b"state 0", b"state 3"]


def test_the_digest_does_not_depend_on_how_the_rows_came(wire) -> None:
    """R56: one blob, token by token, or any cut between makes the same rows and the same digest."""
    cuts = {"one": [0, 40], "each": list(range(41)), "some": [0, 1, 9, 30, 40]}
    digests = set()
    for name, edges in cuts.items():
        txn = begin(wire, name=name)
        for start, end in zip(edges, edges[1:], strict=False):
            prepare(wire, txn, name, 1, start, end)
        digests.add(wire.command("KV.PREFIX.PUBLISH", txn)[3])
        assert whole(wire, name, 40) == expected((1, 0, 40))
    assert len(digests) == 1


@pytest.mark.parametrize("declared", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("stored", ["fp16", "bf16", "mlx4g32"])
@pytest.mark.parametrize("count", [3, 3000], ids=["small", "large"])
def test_every_way_in_leads_to_the_same_rows(declared, stored, count, wire) -> None:
    """R56: rows packed by a thread, spooled or landing in the page are those of a plain V.STOREBATCH."""
    values = np.random.default_rng(3).standard_normal((count, DIM), np.float32)
    blob = {
        "F32": values.tobytes(),
        "F16": values.astype(np.float16).tobytes(),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
    }[declared]
    wire.command("KV.PREFIX.REGISTER", "plain", DIM, stored)
    txn = wire.command("KV.PREFIX.BEGIN", "n", "KV", DIM, stored, "LAYERS", 1)
    for side in SIDES:
        assert wire.command("V.STOREBATCH", f"plain_p{side}", 0, 0, count, blob, "FMT", declared) == "OK"
        sid = f"n_p{side}"
        assert wire.command("V.STOREBATCH", sid, 0, 0, count, blob, "FMT", declared, "TXN", txn) == "OK"
    digest = wire.command("KV.PREFIX.PUBLISH", txn)[3]
    raw = whole(wire, "n", count)
    assert raw == whole(wire, "plain", count)
    each = b"".join(xxhash.xxh3_64_intdigest(part).to_bytes(8, "little") for part in raw)
    assert digest == xxhash.xxh3_64_hexdigest(each).encode()


@pytest.mark.parametrize("count", [3, 3000], ids=["small", "large"])
def test_a_client_can_read_what_it_has_prepared(count, before, wire, server) -> None:
    """R4: base and prepared rows as they will be, for this connection alone; a read ends nothing."""
    other = server.connect()
    txn = begin(wire)

    def read(peer, start, end, *options):
        return peer.command("V.FETCH", "n_pk", 1, "RANGE", start, end, "FMT", "RAW", "TXN", txn, *options)

    for edge in (3, 3 + count):
        assert put(wire, txn, 1, edge, edge + count) == "OK"
    end = 3 + 2 * count
    assert read(wire, 0, end) == rows(1, 1, "k", 0, end)
    assert read(wire, 2, end - 1) == rows(1, 1, "k", 2, end - 1)
    short = f"V.FETCH: rows 0..{end + 1} of layer 1 are not stored (layer holds {end})"
    assert read(wire, 0, end + 1).message == short
    assert code(read(other, 0, 3)) == "NOTXN"
    assert code(other.command("V.FETCH", "n_pk", 1, "RANGE", 0, end)) == "ERR"
    assert wire.command("V.FETCH", "n_pk", 0, "RANGE", 0, 3, "TXN", txn) is not None
    wire.command("KV.PREFIX.ABORT", txn)
    assert code(read(wire, 0, 3)) == "NOTXN"
    assert baseline(server) == before
    assert server.call(lambda app: len(app.service.store._engine.maps.numbers())) == 1


FATAL = {
    "same rows": (("n_pk", 0, 0, 1), "V.STOREBATCH: layer 0 has 1 rows already, start is 0"),
    "gap": (("n_pk", 0, 2, 1), "V.STOREBATCH: gap (layer holds 1 rows, start is 2)"),
    "layer": (("n_pk", 2, 0, 1), "V.STOREBATCH: layer_id exceeds MAX_VS_LAYERS (2 is not within 0..1)"),
    "session": (("m_pk", 0, 0, 1), "session not found"),
    "blob": (
        ("n_pv", 0, 0, 2),
        "V.STOREBATCH: blob size 64 != expected 128 (count=2 × per_layer_dim=32 × 2)",
    ),
    "count": (("n_pv", 0, 0, 0), "invalid layer_id/start_id/count"),
    "number": (("n_pv", 0, "x", 1), "value is not an integer or out of range"),
    "tokens": (("n_pk", 0, 1, 4), "V.STOREBATCH: 5 rows for 4 tokens"),
}


@pytest.mark.parametrize("name", FATAL)
def test_an_error_ends_the_transaction(name, wire, server) -> None:
    """R6, R7, R8: nothing public changes, and the transaction cannot be used any more."""
    empty = baseline(server)
    txn = begin(wire, "TOKENS", np.arange(4, dtype="<u4").tobytes())
    assert put(wire, txn, 0, 0, 1) == "OK"
    place, text = FATAL[name]
    blob = rows(1, 0, "k", 0, 4 if name == "tokens" else 1)
    error = wire.command("V.STOREBATCH", *place, blob, "FMT", "F16", "TXN", txn)
    assert (error.code, error.message) == ("ERR", text)
    dead = f": a store into it failed: {text}"
    for reply in (put(wire, txn, 0, 1, 2), wire.command("KV.PREFIX.PUBLISH", txn)):
        assert (reply.code, reply.message.endswith(text)) == ("TXNDEAD", True), (reply, dead)
    assert baseline(server) == empty
    assert wire.command("KV.PREFIX.ABORT", txn) == "OK"
    assert code(wire.command("KV.PREFIX.ABORT", txn)) == "NOTXN"
    assert publish(wire, "n", 1, 0, 2)[2] == 2


@pytest.mark.parametrize("count", [2, 3000], ids=["small", "large"])
def test_rows_of_another_prefix_do_not_get_past_a_transaction(count, wire) -> None:
    """R2: a blob that is on its way before `TXN` comes is not published outside of it."""
    publish(wire, "other", 1, 0, 2)
    before = wire.command("V.INFO", "other_pk")
    txn = begin(wire)
    blob = rows(1, 0, "k", 0, count)
    error = wire.command("V.STOREBATCH", "other_pk", 0, 2, count, blob, "FMT", "F16", "TXN", txn)
    assert error.message == "session not found"
    assert code(wire.command("KV.PREFIX.PUBLISH", txn)) == "TXNDEAD"
    assert wire.command("V.INFO", "other_pk") == before
    assert whole(wire, "other", 2) == expected((1, 0, 2))


@pytest.mark.parametrize("count", [2, 3000], ids=["small", "large"])
def test_a_value_that_cannot_be_stored_ends_the_transaction(count, wire, server) -> None:
    """R8, R46: also when the blob was on its way into a page already."""
    empty = baseline(server)
    values = np.ones((count, DIM), np.float32)
    txn = wire.command("KV.PREFIX.BEGIN", "n", "KV", DIM, "int8", "LAYERS", 1)
    assert wire.command("V.STOREBATCH", "n_pk", 0, 0, count, values.tobytes(), "TXN", txn) == "OK"
    values[count - 1, 4] = np.nan
    error = wire.command("V.STOREBATCH", "n_pv", 0, 0, count, values.tobytes(), "TXN", txn)
    assert error.message == f"V.STOREBATCH: non-finite value at row {count - 1}, element 4"
    assert code(wire.command("KV.PREFIX.PUBLISH", txn)) == "TXNDEAD"
    assert baseline(server) == empty


def test_publishing_needs_every_layer_of_both_sides(wire) -> None:
    """R5: what is missing is named, and can still be stored."""
    txn = begin(wire)
    missing = "KV.PREFIX.PUBLISH: layer 0 of the K side has 0 of 1 rows"
    assert wire.command("KV.PREFIX.PUBLISH", txn).message == missing
    for layer, side in ((0, "k"), (0, "v"), (1, "k")):
        assert put(wire, txn, layer, 0, 5, side=side) == "OK"
    missing = "KV.PREFIX.PUBLISH: layer 1 of the V side has 0 of 5 rows"
    assert wire.command("KV.PREFIX.PUBLISH", txn).message == missing
    assert put(wire, txn, 1, 0, 4, side="v") == "OK"
    missing = "KV.PREFIX.PUBLISH: layer 1 of the V side has 4 of 5 rows"
    assert wire.command("KV.PREFIX.PUBLISH", txn).message == missing
    assert lookup(wire) == "MISS"
    assert put(wire, txn, 1, 4, 5, side="v") == "OK"
    assert wire.command("KV.PREFIX.PUBLISH", txn)[2] == 5
    assert whole(wire, "n", 5) == expected((1, 0, 5))


def test_an_append_adds_to_what_is_there(before, wire) -> None:
    """R7, R11, R23: it begins where the published rows end, and leaves their bytes as they are."""
    txn = begin(wire)
    error = put(wire, txn, 0, 0, 1)
    assert error.message == "V.STOREBATCH: layer 0 has 3 rows already, start is 0"
    wire.command("KV.PREFIX.ABORT", txn)
    txn = begin(wire)
    prepare(wire, txn, "n", 2, 3, 5)
    assert whole(wire, "n", 3) == expected((1, 0, 3))
    assert code(whole(wire, "n", 5)) == "ERR"
    assert wire.command("KV.PREFIX.PUBLISH", txn)[2] == 5
    assert whole(wire, "n", 5) == expected((1, 0, 3), (2, 3, 5))


MOVES = {
    "publish": lambda wire: publish(wire, "n", 9, 3, 4),
    "append": lambda wire: wire.command("V.STOREBATCH", "n_pk", 0, 3, 1, bytes(ROW_BYTES), "FMT", "RAW"),
    "overwrite": lambda wire: wire.command("V.STOREBATCH", "n_pk", 0, 0, 1, bytes(ROW_BYTES), "FMT", "RAW"),
    "drop": lambda wire: wire.command("KV.PREFIX.DROP", "n"),
    "drop and store again": lambda wire: (
        wire.command("KV.PREFIX.DROP", "n"),
        publish(wire, "n", 1, 0, 3),
    ),
    "state": lambda wire: wire.command("SSM.PREFIX.STORE", "n", 0, "state"),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_transaction_whose_predecessor_moved_is_refused(name, before, wire, server) -> None:
    """R9."""
    other = server.connect()
    txn = begin(wire)
    prepare(wire, txn, "n", 2, 3, 6)
    MOVES[name](other)
    moved = baseline(server)
    error = wire.command("KV.PREFIX.PUBLISH", txn)
    assert (error.code, error.message.startswith("KV.PREFIX.PUBLISH: generation is ")) == ("STALE", True)
    assert code(wire.command("KV.PREFIX.PUBLISH", txn)) == "TXNDEAD"
    after = baseline(server)
    assert after[0] == moved[0] and after[1:4] == (0, {}, after[3])


def test_of_two_transactions_on_one_prefix_the_first_to_publish_wins(wire, server) -> None:
    """R9, R119."""
    other = server.connect()
    txns = begin(wire), begin(other)
    for peer, txn, owner in ((wire, txns[0], 1), (other, txns[1], 2)):
        prepare(peer, txn, "n", owner, 0, 4)
    assert other.command("KV.PREFIX.PUBLISH", txns[1])[2] == 4
    assert code(wire.command("KV.PREFIX.PUBLISH", txns[0])) == "STALE"
    assert whole(wire, "n", 4) == expected((2, 0, 4))


def test_from_shares_the_rows_of_a_parent(before, wire, server) -> None:
    """R15, R22: nothing is copied, and neither sees what happens to the other."""
    ids = np.arange(100, 105, dtype="<u4").tobytes()
    rows_before = server.call(lambda app: app.service.store.info())
    txn = begin(wire, "FROM", "n", 2, "TOKENS", ids, name="child")
    prepare(wire, txn, "child", 2, 2, 5)
    assert wire.command("KV.PREFIX.PUBLISH", txn)[2] == 5
    assert whole(wire, "child", 5) == expected((1, 0, 2), (2, 2, 5))
    grown = server.call(lambda app: app.service.store.info()).bytes - rows_before.bytes
    assert grown == 4096 + 2 * LAYERS * 4096
    publish(wire, "n", 3, 3, 4)
    assert whole(wire, "child", 5) == expected((1, 0, 2), (2, 2, 5))
    wire.command("KV.PREFIX.DROP", "n")
    assert whole(wire, "child", 5) == expected((1, 0, 2), (2, 2, 5))
    assert wire.command("KV.PREFIX.BLOCKS", "child")[8:] == np.arange(100, 105, dtype="<u8").tobytes()


def test_from_itself_replaces_rows(before, wire) -> None:
    """R3, R17: the successor keeps as many rows as it says, and readers see one or the other."""
    publish(wire, "n", 2, 1, 4, "FROM", "n", 1)
    assert whole(wire, "n", 4) == expected((1, 0, 1), (2, 1, 4))
    publish(wire, "n", 3, 0, 2, "FROM", "n", 0)
    assert whole(wire, "n", 2) == expected((3, 0, 2))
    assert code(whole(wire, "n", 3)) == "ERR"


def test_a_parent_that_moved_below_the_shared_rows_is_refused(before, wire, server) -> None:
    """R9: growing it does no harm."""
    other = server.connect()
    for move, answer in ((MOVES["publish"], None), (MOVES["overwrite"], "STALE"), (MOVES["drop"], "ERR")):
        txn = begin(wire, "FROM", "n", 2, name=f"child{answer}")
        prepare(wire, txn, f"child{answer}", 2, 2, 3)
        move(other)
        reply = wire.command("KV.PREFIX.PUBLISH", txn)
        assert (None if isinstance(reply, list) else reply.code) == answer
    assert whole(wire, "childNone", 3) == expected((1, 0, 2), (2, 2, 3))


def test_reading_at_a_generation(before, wire) -> None:
    """R37: the rows that the receipt names, or STALE; a prefix that is gone is STALE, too."""
    generation = publish(wire, "n", 2, 3, 5)[1]
    sid, at = "n_pk", ("AT", generation)
    reads = [
        ("V.FETCH", sid, 0, 1, 4),
        ("V.FETCH", sid, 0, 1, 4, "FMT", "RAW"),
        ("V.FETCH", sid, 0, "RANGE", 0, 5, "FMT", "F16"),
        ("V.FETCH", sid, "BATCH", 0, 5),
        ("V.FETCH", sid, "BATCH", 0, 5, 2, "FMT", "RAW"),
        ("V.FETCHALL", sid, "n_pv", 0, 5, "LAYERS", 0, 1),
        ("KV.PREFIX.LOOKUP", "n"),
    ]
    plain = [wire.command(*read) for read in reads]
    assert [wire.command(*read, *at) for read in reads] == plain
    assert not any(hasattr(reply, "code") for reply in plain)
    wrong = [wire.command(*read, "AT", generation - 1) for read in reads]
    assert {reply.code for reply in wrong} == {"STALE"}
    publish(wire, "n", 3, 5, 6)
    assert {wire.command(*read, *at).code for read in reads} == {"STALE"}
    wire.command("KV.PREFIX.DROP", "n")
    assert {wire.command(*read, *at).code for read in reads} == {"STALE"}


def test_a_reader_sees_one_version_or_the_next(before, wire, server) -> None:
    """R3: a reader hammers while versions are prepared layer by layer and published."""
    seen: set[int] = set()
    wrong: list[object] = []
    stop = threading.Event()

    def read() -> None:
        peer = server.connect()
        while not stop.is_set():
            reply = whole(peer, "n", 3)
            owner = int(np.frombuffer(reply[0], np.float16)[0])
            seen.add(owner)
            if reply != expected((owner, 0, 3)):
                wrong.append(reply)

    reader = threading.Thread(target=read)
    reader.start()
    for owner in range(2, 60):
        publish(wire, "n", owner, 0, 3, "FROM", "n", 0)
    while len(seen) < 3 and not wrong:
        publish(wire, "n", max(seen) + 60, 0, 3, "FROM", "n", 0)
    stop.set()
    reader.join()
    assert not wrong


def test_publishing_again_answers_the_same_receipt(wire, server) -> None:
    """R12: on this connection, and on another one after this one has gone."""
    txn = begin(wire)
    prepare(wire, txn, "n", 1, 0, 3)
    receipt = wire.command("KV.PREFIX.PUBLISH", txn)
    assert wire.command("KV.PREFIX.PUBLISH", txn) == receipt
    assert code(wire.command("KV.PREFIX.ABORT", txn)) == "TXNDEAD"
    wire.close()
    other = server.connect()
    publish(other, "n", 2, 3, 4)
    assert other.command("KV.PREFIX.PUBLISH", txn) == receipt
    assert whole(other, "n", 4) == expected((1, 0, 3), (2, 3, 4))

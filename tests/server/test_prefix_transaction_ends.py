"""How prefix transactions end, what comes along, and who else is there. Tests name their requirements."""

from __future__ import annotations

import os
import re
import signal
import socket

import msgpack
import numpy as np
import pytest
from prefix_rows import (
    LAYERS,
    ROW_BYTES,
    SCHEMA,
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
from server_process import ServerProcess


def wait_until_gone(server, empty) -> None:
    """A connection's end is noticed by the server's loop, not by the client's close."""
    while baseline(server) != empty:
        pass


def test_the_end_of_the_connection_aborts(before, wire, server) -> None:
    """R13, R21."""
    other = server.connect()
    txn = begin(other)
    prepare(other, txn, "n", 2, 3, 300)
    assert baseline(server) != before
    other.close()
    wait_until_gone(server, before)
    assert code(wire.command("KV.PREFIX.PUBLISH", txn)) == "NOTXN"
    assert whole(wire, "n", 3) == expected((1, 0, 3))


def test_the_end_of_the_connection_in_the_middle_of_a_blob_aborts(before, wire, server) -> None:
    """R13: also while rows land in a page."""
    other = server.connect()
    txn = begin(other)
    assert put(other, txn, 0, 3, 10) == "OK"
    size = 4000 * ROW_BYTES
    other.send(
        b"*9\r\n$12\r\nV.STOREBATCH\r\n$4\r\nn_pv\r\n$1\r\n0\r\n$1\r\n3\r\n$4\r\n4000\r\n$%d\r\n" % size
    )
    other.send(bytes(size // 2))
    other.socket.shutdown(socket.SHUT_RDWR)
    other.close()
    wait_until_gone(server, before)


@pytest.mark.parametrize("ending", ["ABORT", "RESET"])
def test_aborting_leaves_no_trace(ending, before, wire, server) -> None:
    """R10, R21: late rows are fenced."""
    txn = begin(wire)
    prepare(wire, txn, "n", 2, 3, 300)
    assert wire.command(*(("KV.PREFIX.ABORT", txn) if ending == "ABORT" else ("RESET",))) in ("OK", "RESET")
    assert baseline(server) == before
    assert code(put(wire, txn, 0, 300, 301)) == "NOTXN"
    assert baseline(server) == before


def test_the_lease_aborts_a_transaction_that_is_left_alone(before, wire, server) -> None:
    """R13, R20: the rows published before stay."""
    txn = begin(wire, "LEASE", 1)
    wait_until_gone(server, before)
    reply = wire.command("KV.PREFIX.PUBLISH", txn)
    assert code(reply) == "TXNDEAD" and reply.message == "KV.PREFIX.PUBLISH: its lease of 1 ms ran out"
    assert code(put(wire, txn, 0, 3, 4)) == "TXNDEAD"
    assert baseline(server) == before
    assert whole(wire, "n", 3) == expected((1, 0, 3))


def test_only_the_connection_that_began_it_can_use_it(wire, server) -> None:
    """R4, R13: whichever worker another connection is at, the answer is the same."""
    other = server.connect()
    txn = begin(wire)
    replies = [
        put(other, txn, 0, 0, 1),
        other.command("KV.PREFIX.PUBLISH", txn),
        other.command("KV.PREFIX.ABORT", txn),
    ]
    assert {code(reply) for reply in replies} == {"NOTXN"}
    prepare(wire, txn, "n", 1, 0, 2)
    assert wire.command("KV.PREFIX.PUBLISH", txn)[2] == 2


def test_rows_outside_the_transaction_are_refused_while_it_is_open(before, wire) -> None:
    """R4: they would make its own publishing stale."""
    txn = begin(wire)
    for count in (1, 3000):
        blob = rows(2, 0, "k", 3, 3 + count)
        error = wire.command("V.STOREBATCH", "n_pk", 0, 3, count, blob, "FMT", "F16")
        assert error.message.startswith("V.STOREBATCH: this connection has a transaction open")
    prepare(wire, txn, "n", 2, 3, 4)
    assert wire.command("KV.PREFIX.PUBLISH", txn)[2] == 4


def test_transactions_are_counted(wire) -> None:
    def counted():
        lines = wire.command("INFO", "pion").decode().split()
        return tuple(
            int(line.split(":")[1])
            for what in ("begun", "published", "ended")
            for line in lines
            if line.startswith(f"transactions_{what}:")
        )

    assert counted() == (0, 0, 0)
    txn = begin(wire)
    assert code(wire.command("KV.PREFIX.PUBLISH", txn)) == "ERR"
    prepare(wire, txn, "n", 1, 0, 3)
    assert counted() == (1, 0, 0)
    for _ in range(2):
        assert wire.command("KV.PREFIX.PUBLISH", txn)[2] == 3
    assert counted() == (1, 1, 0)
    stale, dead = begin(wire), begin(wire, name="m")
    wire.command("SSM.PREFIX.STORE", "m", 0, b"", "TXN", dead)
    prepare(wire, stale, "n", 1, 3, 4)
    wire.command("KV.PREFIX.TRUNCATE", "n", 1)
    assert code(wire.command("KV.PREFIX.PUBLISH", stale)) == "STALE"
    for txn in (stale, dead):
        assert wire.command("KV.PREFIX.ABORT", txn) == "OK"
    assert counted() == (3, 1, 2)


def test_the_manifest_and_the_tokens_come_with_the_rows(wire) -> None:
    """R1, R38."""
    ids = np.arange(50, 53, dtype="<u4")
    manifest = msgpack.packb({"architecture": "llama", "rope_base": 10000.0})
    publish(wire, "n", 1, 0, 3, "TOKENS", ids.tobytes(), "MANIFEST", manifest, "PREFILL_MS", 7)
    assert wire.command("KV.PREFIX.BLOCKS", "n")[8:] == ids.astype("<u8").tobytes()


SMALL, LARGE = b"a state", bytes(range(256)) * 9000


@pytest.mark.parametrize("state", [SMALL, LARGE], ids=["small", "large"])
def test_states_become_visible_with_their_rows(state, before, wire, server) -> None:
    """R1, R3: those of the predecessor go, since they are of another position."""
    other = server.connect()
    assert other.command("SSM.PREFIX.STORE", "n", 0, b"old") == "OK"
    assert other.command("SSM.PREFIX.STORE", "n", 1, b"old") == "OK"
    txn = begin(wire)
    assert wire.command("SSM.PREFIX.STORE", "n", 0, state, "TXN", txn) == "OK"
    prepare(wire, txn, "n", 2, 3, 5)
    assert other.command("SSM.PREFIX.FETCH", "n", 0) == b"old"
    assert wire.command("KV.PREFIX.PUBLISH", txn)[2] == 5
    assert other.command("SSM.PREFIX.FETCH", "n", 0) == state
    assert other.command("SSM.PREFIX.FETCH", "n", 1) is None
    assert whole(other, "n", 5) == expected((1, 0, 3), (2, 3, 5))
    wire.command("KV.PREFIX.DROP", "n")
    assert server.call(lambda app: app.service.store.info()).bytes == 0


@pytest.mark.parametrize("state", [SMALL, LARGE], ids=["small", "large"])
def test_states_of_a_transaction_that_ends_leave_no_trace(state, before, wire, server) -> None:
    """R6, R8, R13, R21: also when a state is refused."""
    refused = {
        ("n", 0, state): "ERR SSM.PREFIX.STORE: the transaction has a state 0 already",
        ("other", 1, state): "ERR namespace not found",
        ("n", -1, state): "ERR invalid layer_id (want 0..4294967295)",
        ("n", 1, b""): "ERR SSM.PREFIX.STORE: the state is empty",
    }
    for words, text in refused.items():
        txn = begin(wire)
        prepare(wire, txn, "n", 2, 3, 5)
        assert wire.command("SSM.PREFIX.STORE", "n", 0, state, "TXN", txn) == "OK"
        assert str(wire.command("SSM.PREFIX.STORE", *words, "TXN", txn)) == text
        assert code(wire.command("KV.PREFIX.PUBLISH", txn)) == "TXNDEAD"
        assert baseline(server) == before
    txn = begin(wire)
    assert wire.command("SSM.PREFIX.STORE", "n", 0, state, "TXN", txn) == "OK"
    outside = wire.command("SSM.PREFIX.STORE", "n", 1, state)
    assert outside.message.startswith("SSM.PREFIX.STORE: this connection has a transaction open")
    wire.command("KV.PREFIX.ABORT", txn)
    assert baseline(server) == before


def test_speculative_rows_are_not_committed_by_being_there(before, wire, server) -> None:
    """R14: what is rejected goes with its transaction, and a token whose rows are missing is not there."""
    ids = np.arange(5, dtype="<u4").tobytes()
    txn = begin(wire, "TOKENS", ids)
    prepare(wire, txn, "n", 2, 3, 4)
    error = wire.command("KV.PREFIX.PUBLISH", txn)
    assert error.message == "KV.PREFIX.PUBLISH: layer 0 of the K side has 4 of 5 rows"
    wire.command("KV.PREFIX.ABORT", txn)
    assert baseline(server) == before
    assert code(whole(wire, "n", 4)) == "ERR"


def test_a_prefix_that_can_never_fit_disturbs_nothing(start_local) -> None:
    server = start_local(max_bytes=1 << 20)
    wire = server.connect()
    publish(wire, "n", 1, 0, 3)
    before = baseline(server)
    ids = bytes(4 * 5000)
    error = wire.command("KV.PREFIX.BEGIN", "big", *SCHEMA, "TOKENS", ids)
    assert error.code == "OOM" and "1280000 bytes needed, budget 1048576" in error.message
    txn = begin(wire, name="big")
    blob = bytes(5000 * ROW_BYTES)
    stored = [
        wire.command("V.STOREBATCH", f"big_p{side}", layer, 0, 5000, blob, "FMT", "RAW", "TXN", txn)
        for layer in range(LAYERS)
        for side in SIDES
    ]
    assert code(stored[-1]) == "OOM"
    assert baseline(server) == before
    assert whole(wire, "n", 3) == expected((1, 0, 3))


def test_killing_the_server_leaves_no_trace_of_an_open_transaction(tmp_path, wire_class) -> None:
    """R12, R13: and what was published before is answered again."""
    with_server = ServerProcess(tmp_path / "data", "--durability", "always")
    with_server.start()
    try:
        wire = connect(wire_class, with_server)
        published = begin(wire)
        prepare(wire, published, "n", 1, 0, 3)
        receipt = wire.command("KV.PREFIX.PUBLISH", published)
        files = sorted((tmp_path / "data" / "pages").iterdir())
        txn = begin(wire)
        prepare(wire, txn, "n", 2, 3, 2000)
        txn2 = begin(wire, name="other")
        prepare(wire, txn2, "other", 2, 0, 2000)
        with_server.restart(crash=True)
        wire = connect(wire_class, with_server)
        assert sorted((tmp_path / "data" / "pages").iterdir()) == files
        assert wire.command("DBSIZE") == 1
        assert whole(wire, "n", 3, "AT", receipt[1]) == expected((1, 0, 3))
        assert wire.command("KV.PREFIX.PUBLISH", published) == receipt
        assert code(wire.command("KV.PREFIX.PUBLISH", txn)) == "NOTXN"
        wire.close()
    finally:
        with_server.close()


def test_two_processes_on_one_directory(tmp_path, wire_class) -> None:
    """R3, R9, R12, R29: what one publishes the other serves; a receipt is known to both."""
    servers = [ServerProcess(tmp_path / "data"), ServerProcess(tmp_path / "data")]
    try:
        for server in servers:
            server.start()
        here, there = (connect(wire_class, server) for server in servers)
        txns = begin(here), begin(there)
        prepare(here, txns[0], "n", 1, 0, 3)
        prepare(there, txns[1], "n", 2, 0, 3)
        receipt = here.command("KV.PREFIX.PUBLISH", txns[0])
        assert whole(there, "n", 3, "AT", receipt[1]) == expected((1, 0, 3))
        assert code(there.command("KV.PREFIX.PUBLISH", txns[1])) == "STALE"
        assert there.command("KV.PREFIX.PUBLISH", txns[0]) == receipt
        publish(there, "n", 2, 3, 4)
        assert code(whole(here, "n", 3, "AT", receipt[1])) == "STALE"
        assert whole(here, "n", 4) == expected((1, 0, 3), (2, 3, 4))
        here.close()
        there.close()
    finally:
        for server in servers:
            server.close()


def test_workers_of_one_server(start_server, wire_class) -> None:
    """R12, R13: a worker that dies takes its open transactions along and no others; all know receipts."""
    server = start_server("--workers", "2")

    def worker(wire):
        fields = dict(
            line.split(":") for line in wire.command("INFO", "workers").decode().split()[2:] if ":" in line
        )
        return fields["worker_id"]

    def other_than(wires):
        while True:
            wire = connect(wire_class, server)
            if worker(wire) not in wires:
                return wire

    here = connect(wire_class, server)
    there = other_than({worker(here)})
    mine, theirs = begin(here, name="n"), begin(there, name="m")
    prepare(here, mine, "n", 1, 0, 3)
    prepare(there, theirs, "m", 2, 0, 4)
    assert code(there.command("KV.PREFIX.PUBLISH", mine)) == "NOTXN"
    pid = int(re.search(rb"process_id:(\d+)", here.command("INFO", "server"))[1])
    os.kill(pid, signal.SIGKILL)
    receipt = there.command("KV.PREFIX.PUBLISH", theirs)
    again = other_than({worker(there)})
    assert again.command("KV.PREFIX.PUBLISH", theirs) == receipt
    assert code(again.command("KV.PREFIX.PUBLISH", mine)) == "NOTXN"
    assert whole(again, "m", 4, "AT", receipt[1]) == expected((2, 0, 4))
    assert lookup(again, name="n") == "MISS"
    for wire in (here, there, again):
        wire.close()


def connect(wire_class, server):
    return wire_class(socket.create_connection(("127.0.0.1", server.port)))

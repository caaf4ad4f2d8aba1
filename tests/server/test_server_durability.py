"""Durability `always`: what is answered is on the disk, and the event loop did not wait for the disk."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from pionkv.storage import filling, transactions

DIM = 64
SMALL, LARGE = 3, 6_000
ROWS = np.random.default_rng(3).standard_normal((LARGE, DIM), np.float32)


@pytest.fixture
def synced(monkeypatch):
    """Where files were synced: the names of threads, in order."""
    threads = []
    for module in (filling, transactions):
        real = module.sync_file
        monkeypatch.setattr(
            module,
            "sync_file",
            lambda fd, real=real: threads.append(threading.current_thread().name) or real(fd),
        )
    return threads


@pytest.mark.parametrize("durability", ["always", "everysec"])
@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize(
    "format, element", [("fp32", "F32"), ("int8", "F32"), ("int8", "F16"), ("fp16", "F16")]
)
def test_rows_are_synced_by_a_thread(durability, count, format, element, start_local, synced) -> None:
    server = start_local(durability=durability)
    wire = server.connect()
    wire.command("V.CREATE", "s", DIM, "VQUANT", format)
    blob = ROWS[:count].astype(np.float16 if element == "F16" else np.float32).tobytes()
    assert wire.command("V.STOREBATCH", "s", 0, 0, count, blob, "FMT", element) == "OK"
    loop = server.call(lambda app: threading.current_thread().name)
    assert len(synced) == (1 if durability == "always" else 0)
    assert loop not in synced
    assert len(wire.command("V.FETCH", "s", 0, "RANGE", 0, count, "FMT", "F32")) == count * DIM * 4


def test_a_transaction_is_synced_by_a_thread_when_it_is_published(start_local, synced) -> None:
    server = start_local(durability="always")
    wire = server.connect()
    txn = wire.command("KV.PREFIX.BEGIN", "n", "KV", DIM, "fp32", "LAYERS", 2)
    for side in ("pk", "pv"):
        for layer in (0, 1):
            blob = ROWS.tobytes()
            assert wire.command("V.STOREBATCH", f"n_{side}", layer, 0, LARGE, blob, "TXN", txn) == "OK"
    assert not synced, "nobody has been promised anything"
    assert wire.command("KV.PREFIX.PUBLISH", txn)[2] == LARGE
    assert synced and server.call(lambda app: threading.current_thread().name) not in synced
    assert wire.command("KV.PREFIX.LOOKUP", "n") == "HIT"

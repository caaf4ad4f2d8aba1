"""Transactions of a store: what faults, limits and other processes do to them."""

import errno
import itertools
import os
from dataclasses import replace

import pytest
from pionkv.kernels import LayerSpec
from pionkv.storage import (
    NoSpace,
    OutOfBudget,
    PrefixPlan,
    Schema,
    Stale,
    StaleGeneration,
    StoreOptions,
    TransactionDead,
    receipts,
)
from pionkv.storage import files as files_module
from pionkv.storage import open_pages as open_pages_module
from pionkv.storage.options import Durability

ROW = 64
FP16 = Schema.uniform(LayerSpec("fp16", 32))
SIDES = (b"_pk", b"_pv")
IDS = (b"txn%d" % number for number in itertools.count())


def begin(driver, name=b"p", layers=2, schemas=(FP16, FP16), **plan):
    return driver.store.begin_transaction(next(IDS), PrefixPlan(name, schemas, layers, **plan))


def fill(write, data):
    data = memoryview(data)
    with write:
        while (segment := write.next_segment()) is not None:
            segment[:] = data[: len(segment)]
            data = data[len(segment) :]
        write.commit()


def prepare(txn, start, rows, value=1):
    for layer, side in itertools.product(range(txn.plan.layers), SIDES):
        fill(txn.begin_write(txn.plan.namespace + side, layer, start, rows), bytes([value]) * (rows * ROW))


def publish(driver, name=b"p", rows=4, value=1, **plan):
    txn = begin(driver, name, **plan)
    prepare(txn, txn.base.tokens, rows, value)
    return txn.publish()


def state(driver):
    """All that a transaction could leave behind."""
    engine = driver.store._engine
    return (
        replace(driver.store.info(), catalog_bytes=0),
        driver.files,
        engine.reserved,
        dict(engine.writing),
        set(engine.pages._pages),
    )


def holds(driver, name=b"p", rows=4, value=1):
    data = bytes([value]) * (rows * ROW)
    return all(driver.whole(name + side, layer) == data for layer, side in itertools.product((0, 1), SIDES))


def fail(real, code, after):
    """A system call that fails after so many calls."""
    calls = iter(range(after))

    def fake(*args, **kwargs):
        if next(calls, None) is None:
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    return fake


@pytest.mark.parametrize("after", range(5))
def test_a_full_disk_while_rows_are_prepared(driver, monkeypatch, after):
    publish(driver, b"other")
    before = state(driver)
    txn = begin(driver)
    monkeypatch.setattr(open_pages_module.os, "pwrite", fail(os.pwrite, errno.ENOSPC, after))
    with pytest.raises(NoSpace, match="page"):
        prepare(txn, 0, 30_000)
    txn.abort()
    monkeypatch.undo()
    assert state(driver) == before
    publish(driver)
    assert holds(driver) and holds(driver, b"other")


@pytest.mark.parametrize("durability", list(Durability))
def test_a_catalog_that_cannot_be_written_ends_it_without_a_trace(open_store, monkeypatch, durability):
    driver = open_store(StoreOptions(durability=durability))
    publish(driver)
    before = state(driver)
    txn = begin(driver)
    prepare(txn, 4, 3)

    def full(change, *, reuse=False):
        raise NoSpace("the catalog")

    monkeypatch.setattr(driver.store._engine.catalog, "write", full)
    with pytest.raises(NoSpace):
        txn.publish()
    monkeypatch.undo()
    assert state(driver) == before
    with pytest.raises(TransactionDead):
        txn.publish()
    assert holds(driver)


def test_a_page_that_cannot_be_synced_is_not_named(open_store, monkeypatch):
    driver = open_store(StoreOptions(durability=Durability.ALWAYS))
    publish(driver)
    before = state(driver)
    txn = begin(driver)
    prepare(txn, 4, 3)
    monkeypatch.setattr(files_module.os, "fdatasync", fail(os.fdatasync, errno.EIO, 0))
    with pytest.raises(OSError, match="Input/output"):
        txn.publish()
    monkeypatch.undo()
    assert state(driver) == before and holds(driver)


def test_under_always_each_page_is_synced_once_before_it_is_named(open_store, monkeypatch):
    driver = open_store(StoreOptions(durability=Durability.ALWAYS))
    txn = begin(driver, tokens=6)
    prepare(txn, 0, 6)
    synced = []

    def note(fd):
        assert driver.store.lookup(b"p") is None
        synced.append(os.readlink(f"/dev/fd/{fd}"))
        os.fsync(fd)

    monkeypatch.setattr(files_module.os, "fdatasync", note)
    txn.publish()
    assert synced == [str(driver.files[0])]


def test_a_full_catalog_refuses_and_keeps_what_it_has(open_store):
    driver = open_store(StoreOptions(catalog_map_bytes=1 << 20))
    manifest = b"\x81\xa1x\xda\x10\x00" + b"m" * 4096
    published = 0
    with pytest.raises(NoSpace, match="no space left for the catalog in the address space it has"):
        while True:
            publish(driver, b"p%03d" % published, manifest=manifest)
            published += 1
    assert published > 5

    def check(driver, count):
        info = driver.store.info()
        assert (info.namespaces, info.rows, info.pages) == (count, count * 16, count)
        assert all(holds(driver, b"p%03d" % number) for number in range(count))

    check(driver, published)
    with pytest.raises(NoSpace):
        driver.store.close()  # there is no room to note a checkpoint either
    driver = open_store()
    check(driver, published)
    for number in range(published, published + 60):
        publish(driver, b"p%03d" % number, manifest=manifest)
    check(driver, published + 60)


def test_pieces_of_any_size_are_digested_like_one(driver):
    """Rows are checked when they are read, whatever the pieces in which they came."""
    digests = set()
    data = os.urandom(40_000 * ROW)
    for cuts in ([40_000], [1, 39_999], [16_384, 23_616], [16_385, 1, 23_614], [100] * 400):
        txn = begin(driver, b"p%d" % len(digests), layers=1)
        for side in SIDES:
            start = 0
            for rows in cuts:
                write = txn.begin_write(txn.plan.namespace + side, 0, start, rows)
                fill(write, data[start * ROW : (start + rows) * ROW])
                start += rows
        digests.add(txn.publish().digest)
        sid = txn.plan.namespace + b"_pk"
        assert driver.whole(sid, 0) == data
        assert sum(driver.store.verify(txn.plan.namespace)) == 2 * len(data)
        driver.store.drop_namespaces([txn.plan.namespace])
    assert len(digests) == 1


def test_with_its_tokens_known_a_prefix_is_one_page_and_one_run(driver):
    txn = begin(driver, tokens=300)
    for start in range(0, 300, 100):
        prepare(txn, start, 100)
    txn.publish()
    assert len(driver.files) == 1
    for side in SIDES:
        assert len(driver.store.rows(b"p" + side, 1, 0, 300).parts) == 1


def test_layers_of_many_kinds(driver):
    k = Schema.per_layer([LayerSpec("fp16", 32), LayerSpec("mlx4g32", 64), LayerSpec("int8", 7)])
    v = Schema.per_layer([LayerSpec("int8", 32), LayerSpec("fp32", 3), LayerSpec("fp16", 9)])
    txn = begin(driver, layers=3, schemas=(k, v))
    stored = {}
    for layer, (side, schema) in itertools.product(range(3), zip(SIDES, (k, v), strict=True)):
        stored[layer, side] = os.urandom(50 * schema.row_bytes(layer))
        fill(txn.begin_write(b"p" + side, layer, 0, 50), stored[layer, side])
    txn.publish()
    assert {key: driver.whole(b"p" + key[1], key[0]) for key in stored} == stored


def test_compaction_of_the_base_does_no_harm(driver):
    """It moves rows, not generations: what is published goes on from where they are by then."""
    txn = begin(driver, b"p")
    prepare(txn, 0, 1)
    txn.publish()
    for _ in range(1, 80):
        publish(driver, rows=1)
        publish(driver, b"other", rows=1)
    late = begin(driver)
    prepare(late, 80, 2)
    fork = begin(driver, b"child", parent=(b"p", 70))
    prepare(fork, 70, 2)
    before = driver.store.session(b"p_pk")
    driver.store.tick()
    assert driver.store.session(b"p_pk").generation == before.generation
    late.publish()
    fork.publish()
    assert holds(driver, rows=82) and holds(driver, b"child", rows=72)
    assert sum(driver.store.verify(b"p")) == 82 * 4 * ROW


def test_receipts_are_bounded_and_the_oldest_go(driver, monkeypatch):
    monkeypatch.setattr(receipts, "KEPT", 5)
    made = []
    for number in range(12):
        txn = begin(driver, b"p%d" % number)
        prepare(txn, 0, 1)
        made.append((txn.id, txn.publish()))
    assert [driver.store.receipt(txn) for txn, _ in made[:7]] == [None] * 7
    assert [driver.store.receipt(txn) for txn, _ in made[7:]] == [receipt for _, receipt in made[7:]]


def test_receipts_outlive_their_prefix_and_the_process(open_store):
    driver = open_store()
    txn = begin(driver)
    prepare(txn, 0, 4)
    receipt = txn.publish()
    driver.store.drop_namespaces([b"p"])
    driver.store.close()
    assert open_store().store.receipt(txn.id) == receipt


def test_a_base_that_another_process_evicts_is_stale(open_store, open_peer):
    driver = open_store(StoreOptions(max_bytes=100_000))
    publish(driver, rows=100)
    there = open_peer(max_bytes=100_000)
    txn = begin(driver)
    prepare(txn, 100, 5)
    there.call("put", b"big", 0, 0, b"\7" * 90_000)
    assert driver.store.lookup(b"p") is None
    with pytest.raises(StaleGeneration):
        txn.publish()
    assert driver.store._engine.reserved == 0
    assert publish(driver, rows=4).tokens == 4


def test_a_parent_that_another_process_drops_is_stale(open_store, open_peer):
    driver = open_store()
    publish(driver, b"parent", rows=100)
    there = open_peer()
    txn = begin(driver, b"child", parent=(b"parent", 50))
    prepare(txn, 50, 5)
    there.call("drop_namespaces", [b"parent"])
    publish(driver, b"parent", rows=100, value=2)
    with pytest.raises(Stale):
        txn.publish()
    assert driver.store.lookup(b"child") is None


def test_its_own_base_and_parent_are_not_evicted(open_store):
    driver = open_store(StoreOptions(max_bytes=120_000))
    publish(driver, b"parent", rows=100)
    txn = begin(driver, b"child", parent=(b"parent", 50))
    prepare(txn, 50, 5)
    for number in range(6):
        publish(driver, b"other%d" % number, rows=100)
    txn.publish()
    assert driver.store.lookup(b"child").tokens == 55
    assert driver.store.info().bytes <= 120_000


def test_what_can_never_fit_evicts_nothing(open_store):
    driver = open_store(StoreOptions(max_bytes=100_000))
    publish(driver, rows=100)
    before = state(driver)
    with pytest.raises(OutOfBudget):
        begin(driver, b"big", tokens=1000)
    assert state(driver) == before


@pytest.mark.parametrize("tokens", [None, 800])
def test_what_turns_out_not_to_fit_evicts_nothing(tokens, open_store):
    """Neither when nobody knows how much is to come, nor when what is pinned leaves no room for all of it."""
    driver = open_store(StoreOptions(max_bytes=220_000))
    for name in (b"p", b"q", b"r"):
        publish(driver, name, rows=100)
    driver.store.pin(b"p")
    before = state(driver)
    for rows in (800, 1000):
        with pytest.raises(OutOfBudget):
            txn = begin(driver, b"big", tokens=tokens)
            try:
                for start in range(0, rows, 100):
                    prepare(txn, start, 100)
                txn.publish()
            finally:
                txn.abort()
        assert state(driver) == before
    txn = begin(driver, b"fits", tokens=None if tokens is None else 500)
    prepare(txn, 0, 500)
    assert txn.publish().tokens == 500 and driver.store.info().bytes <= 220_000
    assert driver.store.lookup(b"p") is not None and driver.store.lookup(b"q") is None


def test_a_process_that_dies_with_a_transaction_open_leaves_files_that_are_swept(open_store, open_peer):
    driver = open_store()
    publish(driver)
    there = open_peer()
    there.call("transaction", b"p", 4, 1000)
    assert len(driver.files) == 2
    there.kill()
    driver.store.close()
    driver = open_store()
    assert len(driver.files) == 1 and holds(driver)
    publish(driver, rows=2)
    assert driver.store.lookup(b"p").tokens == 6

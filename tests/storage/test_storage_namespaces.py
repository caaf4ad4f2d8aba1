"""Namespaces: what a lookup answers, forks, cuts, snapshots, states, and removal."""

import os

import msgpack
import pytest
from pionkv.kernels import LayerSpec
from pionkv.storage import (
    BadRange,
    NamespaceExists,
    Schema,
    SchemaMismatch,
    SnapshotLimit,
    StoreOptions,
    UnknownNamespace,
    UnknownSession,
    UnknownSnapshot,
)
from pionkv.storage.buffers import WINDOW_BYTES

ROW = 64

MANIFEST = msgpack.packb({"weights": "a", "created": 1.5})


def test_a_lookup_hits_only_when_both_sides_agree(driver, schema):
    store = driver.store
    assert store.lookup(b"p") is None and store.miss_reason(b"p") == "absent"
    store.register(b"p", schema, schema)
    assert store.lookup(b"p") is None and store.miss_reason(b"p") == "incomplete"
    driver.put(b"p_pk", 0, 0, bytes(3 * ROW))
    assert store.lookup(b"p") is None
    driver.put(b"p_pv", 0, 0, bytes(2 * ROW))
    assert store.lookup(b"p") is None
    driver.put(b"p_pv", 0, 2, bytes(ROW))
    assert store.lookup(b"p").tokens == 3 and store.miss_reason(b"p") == ""
    driver.put(b"p_pk", 4, 0, bytes(3 * ROW))
    assert store.lookup(b"p") is None, "the sides hold different layers"
    driver.put(b"p_pv", 4, 0, bytes(3 * ROW))
    view = store.lookup(b"p")
    assert (view.namespace, view.tokens, view.layers, view.bytes) == (b"p", 3, 2, 12 * ROW)
    driver.put(b"p_pk", 4, 3, bytes(ROW))
    driver.put(b"p_pv", 4, 3, bytes(ROW))
    assert store.lookup(b"p") is None, "layers of one side differ"


def test_states_alone_are_a_hit_and_with_half_the_rows_a_miss(driver, schema):
    driver.store.put_state(b"p", 3, b"state")
    assert driver.store.lookup(b"p").states == 1
    driver.store.register(b"p", schema, schema)
    assert driver.store.lookup(b"p").tokens == 0
    driver.put(b"p_pk", 0, 0, bytes(ROW))
    assert driver.store.lookup(b"p") is None


def test_a_single_session_is_no_namespace(driver, schema):
    driver.store.create_session(b"p", schema)
    driver.put(b"p", 0, 0, bytes(ROW))
    assert driver.store.lookup(b"p") is None
    assert list(driver.store.namespaces()) == []
    with pytest.raises(UnknownNamespace):
        driver.store.namespace(b"p")


def test_registering_again(driver, schema):
    store = driver.store
    store.register(b"p", schema, schema, blocks=(64, b"\1" * 16), prefill_us=7)
    store.register(b"p", schema, schema)
    assert store.namespace(b"p").prefill_us == 7
    assert store.blocks(b"p") == (64, b"\1" * 16)
    store.register(b"p", schema, schema, blocks=(32, b""), prefill_us=0)
    assert store.namespace(b"p").prefill_us == 0 and store.blocks(b"p") == (32, b"")
    with pytest.raises(SchemaMismatch) as caught:
        store.register(b"p", schema, Schema.uniform(LayerSpec("fp16", 64)), prefill_us=9)
    assert (caught.value.field, caught.value.stored, caught.value.asked) == ("V dim", "32", "64")
    assert store.namespace(b"p").prefill_us == 0
    other = Schema.uniform(LayerSpec("int8", 32))
    store.create_session(b"q_pv", other)
    with pytest.raises(SchemaMismatch, match="V format"):
        store.register(b"q", schema, schema)
    with pytest.raises(UnknownSession):
        store.session(b"q_pk")


def test_a_manifest_is_kept_as_it_is(driver, schema):
    driver.store.register(b"p", schema, schema)
    assert driver.store.manifest(b"p") is None and driver.store.blocks(b"p") is None
    driver.store.set_manifest(b"p", MANIFEST)
    assert driver.store.manifest(b"p") == MANIFEST
    driver.store.drop_namespaces([b"p"])
    for call in (
        driver.store.manifest,
        driver.store.blocks,
        lambda name: driver.store.set_manifest(name, MANIFEST),
    ):
        with pytest.raises(UnknownNamespace):
            call(b"p")


def test_a_fork_shares_pages_and_nothing_else(driver):
    driver.prefix(b"p", layers=2, rows=10)
    before = driver.store.info()
    driver.store.fork(b"p", b"child", 6)
    after = driver.store.info()
    assert (after.pages, after.bytes) == (before.pages, before.bytes)
    assert after.rows == before.rows + 2 * 2 * 6
    assert driver.store.lookup(b"child").tokens == 6
    driver.put(b"child_pk", 0, 3, b"\2" * ROW)
    driver.put(b"child_pk", 0, 6, b"\3" * ROW)
    driver.put(b"p_pk", 0, 10, b"\4" * ROW)
    assert driver.whole(b"child_pk", 0) == b"\1" * (3 * ROW) + b"\2" * ROW + b"\1" * (2 * ROW) + b"\3" * ROW
    assert driver.whole(b"p_pk", 0) == b"\1" * (10 * ROW) + b"\4" * ROW
    driver.store.drop_namespaces([b"p"])
    assert driver.get(b"child_pv", 1, 0, 6) == b"\1" * (6 * ROW)
    driver.store.drop_namespaces([b"child"])
    assert driver.store.info().bytes == 0 and driver.files == []


def test_a_fork_needs_a_parent_and_a_free_name(driver):
    driver.prefix(b"p", layers=1, rows=2)
    driver.prefix(b"q", layers=1, rows=2)
    with pytest.raises(UnknownNamespace):
        driver.store.fork(b"absent", b"child")
    with pytest.raises(NamespaceExists):
        driver.store.fork(b"p", b"q")
    with pytest.raises(BadRange):
        driver.store.fork(b"p", b"child", -1)


def test_states_come_along_only_with_all_the_rows(driver):
    driver.prefix(b"p", layers=1, rows=4)
    driver.store.put_state(b"p", 0, b"after row 4")
    driver.store.fork(b"p", b"same")
    driver.store.fork(b"p", b"shorter", 3)
    assert driver.store.state(b"same", 0) == b"after row 4"
    assert driver.store.states(b"shorter") == []
    driver.store.drop_namespaces([b"p"])
    assert driver.store.state(b"same", 0) == b"after row 4"
    driver.store.truncate(b"same", 2)
    assert driver.store.state(b"same", 0) is None
    assert driver.store.lookup(b"same").states == 0


def test_a_cut_and_other_rows_after_it_equal_a_fresh_run(driver):
    """R17: the cut lies inside a page, and the rows before it stay."""
    driver.prefix(b"p", layers=2, rows=20)
    driver.store.truncate(b"p", 7)
    assert driver.store.lookup(b"p").tokens == 7
    for side in (b"_pk", b"_pv"):
        for layer in range(2):
            driver.put(b"p" + side, layer, 7, b"\2" * (5 * ROW))
            assert driver.whole(b"p" + side, layer) == b"\1" * (7 * ROW) + b"\2" * (5 * ROW)
    assert driver.store.info().rows == 2 * 2 * 12
    driver.store.truncate(b"p", 100)
    assert driver.store.lookup(b"p").tokens == 12
    driver.store.truncate(b"p", 0)
    assert driver.store.lookup(b"p") is None
    assert driver.store.info().bytes == 0 and driver.store.info().rows == 0


def test_a_snapshot_is_a_place_to_go_back_to(driver, schema):
    driver.store.create_session(b"s", schema)
    driver.put(b"s", 0, 0, b"\1" * (4 * ROW))
    first = driver.store.snapshot(b"s")
    driver.put(b"s", 0, 4, b"\2" * ROW)
    driver.put(b"s", 1, 0, b"\2" * ROW)
    second = driver.store.snapshot(b"s")
    assert second > first
    for _ in range(2):
        driver.store.restore(b"s", first)
        assert driver.store.session(b"s").rows == (4, 0)
        driver.put(b"s", 0, 4, b"\3" * (2 * ROW))
    driver.store.restore(b"s", second)
    assert driver.store.session(b"s").rows == (5, 0), "a layer that is shorter is left alone"
    assert driver.store.release_snapshot(b"s", first) is True
    assert driver.store.release_snapshot(b"s", first) is False
    with pytest.raises(UnknownSnapshot):
        driver.store.restore(b"s", first)


def test_snapshots_are_bounded_durable_and_end_with_their_session(open_store, schema):
    driver = open_store(StoreOptions(max_snapshots=2))
    driver.store.create_session(b"s", schema)
    driver.put(b"s", 0, 0, bytes(2 * ROW))
    numbers = [driver.store.snapshot(b"s") for _ in range(2)]
    with pytest.raises(SnapshotLimit):
        driver.store.snapshot(b"s")
    driver.put(b"s", 0, 2, bytes(ROW))
    driver.store.close()
    driver = open_store()
    driver.store.restore(b"s", numbers[0])
    assert driver.store.session(b"s").rows == (2,)
    driver.store.drop_sessions([b"s"])
    driver.store.create_session(b"s", schema)
    with pytest.raises(UnknownSnapshot):
        driver.store.restore(b"s", numbers[1])
    for call in (driver.store.snapshot, lambda sid: driver.store.restore(sid, 1)):
        with pytest.raises(UnknownSession):
            call(b"absent")


def test_states_of_any_size(driver):
    blobs = {0: b"x", 7: os.urandom(WINDOW_BYTES), 4_000_000_000: os.urandom(2 * WINDOW_BYTES + 1)}
    for number, blob in blobs.items():
        driver.store.put_state(b"p", number, blob)
    assert driver.store.states(b"p") == sorted(blobs)
    assert all(driver.store.state(b"p", number) == blob for number, blob in blobs.items())
    kept = driver.store.state(b"p", 7)
    driver.store.put_state(b"p", 7, b"other")
    assert driver.store.state(b"p", 7) == b"other" and kept == blobs[7]
    assert len(driver.files) == 3
    assert driver.store.state(b"p", 1) is None and driver.store.state(b"q", 0) is None
    assert driver.store.drop_states(b"p", 7) == 1
    assert driver.store.drop_states(b"p", 7) == 0
    assert driver.store.drop_states(b"p") == 2
    assert driver.store.drop_states(b"p") == 0
    assert driver.store.info().namespaces == 0 and driver.files == []


@pytest.mark.parametrize(("number", "blob"), [(-1, b"x"), (2**32, b"x"), (0, b"")])
def test_a_state_that_cannot_be(driver, number, blob):
    with pytest.raises(BadRange):
        driver.store.put_state(b"p", number, blob)
    assert driver.store.info().namespaces == 0


def test_dropping_is_complete_and_idempotent(driver, schema):
    driver.prefix(b"p", layers=2, rows=3)
    driver.prefix(b"q", layers=1, rows=3)
    driver.store.put_state(b"p", 0, b"x")
    driver.store.create_session(b"single", schema)
    view = driver.store.rows(b"p_pk", 0, 0, 3)
    assert driver.store.drop_namespaces([b"p", b"absent", b"p"]) == 1
    assert view.parts[0] == b"\1" * (3 * ROW)
    assert driver.store.drop_sessions([b"single", b"q_pk", b"absent"]) == 2
    assert driver.store.namespace(b"q").tokens == -1
    assert driver.store.drop_sessions([b"q_pv"]) == 1
    info = driver.store.info()
    assert (info.sessions, info.namespaces, info.pages, info.bytes, info.rows) == (0, 0, 0, 0, 0)
    assert driver.files == []


def test_listing_many(driver, schema):
    names = [b"ns%04d" % number for number in range(600)]
    for name in names:
        driver.store.register(name, schema, schema)
    assert [view.namespace for view in driver.store.namespaces()] == names
    assert len(list(driver.store.sessions())) == 1200
    listing = driver.store.namespaces()
    next(listing)
    driver.store.drop_namespaces(names)
    assert len(list(listing)) < 600


def test_namespaces_end_when_their_time_comes(driver):
    driver.prefix(b"p", layers=1, rows=2)
    driver.prefix(b"q", layers=1, rows=2)
    driver.store.expire(b"p", driver.clock.now + 10)
    driver.store.expire(b"q", driver.clock.now + 10)
    driver.store.expire(b"q", 0)
    driver.clock.now += 9
    driver.store.tick()
    assert driver.store.lookup(b"p") is not None
    driver.clock.now += 1
    assert driver.store.lookup(b"p") is None and driver.store.miss_reason(b"p") == "expired"
    driver.store.tick()
    assert driver.store.miss_reason(b"p") == "absent"
    assert driver.store.lookup(b"q") is not None
    with pytest.raises(UnknownNamespace):
        driver.store.expire(b"p", 0)


def test_uses_are_written_down_by_a_tick(driver):
    driver.prefix(b"p", layers=1, rows=2)
    driver.store.tick()
    driver.clock.now += 50
    driver.store.credit_hit(b"p")
    driver.store.credit_hit(b"p")
    driver.store.touch(b"p_pk")
    driver.store.touch(b"absent")
    assert driver.store.namespace(b"p").hits == 0
    driver.store.tick()
    view = driver.store.namespace(b"p")
    assert (view.hits, view.used, view.created) == (2, 1050.0, 1000.0)

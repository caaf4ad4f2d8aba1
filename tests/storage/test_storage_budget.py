"""The byte budget: one accountant, whole namespaces go, the least valuable first, and only if that helps."""

import pytest
from pionkv.storage import OutOfBudget, StoreOptions

ROW = 64
HEADER = 4096
ROWS = 512
PREFIX = HEADER + 2 * ROWS * ROW
"""Bytes of a prefix of one layer with `ROWS` rows."""


def budget(open_store, prefixes):
    return open_store(StoreOptions(max_bytes=prefixes * PREFIX))


def names(driver):
    return {view.namespace for view in driver.store.namespaces()}


def disk(driver):
    return sum(path.stat().st_blocks * 512 for path in driver.files)


def test_what_is_accounted_is_what_the_disk_holds(driver):
    driver.prefix(b"p", layers=4, rows=1000)
    driver.prefix(b"q", layers=1, rows=1)
    for row in range(1, 300):
        driver.put(b"q_pk", 0, row, bytes(ROW))
    driver.store.put_state(b"p", 0, bytes(100_001))
    driver.store.sync()
    assert disk(driver) == driver.store.info().bytes


def holds_what_is_accounted(driver):
    """Whether the disk does, but for a block a file in which ext4 keeps where a large one is."""
    driver.store.sync()
    accounted = driver.store.info().bytes
    return accounted <= disk(driver) <= accounted + 4096 * len(driver.files)


def test_blocks_that_are_taken_ahead_are_those_accounted(driver):
    driver.prefix(b"p", layers=1, rows=(9 << 20) // ROW + 3)
    driver.put(b"p_pk", 0, (9 << 20) // ROW + 3, bytes((1 << 20) + ROW))
    driver.store.put_state(b"p", 0, bytes((5 << 20) + 1))
    assert holds_what_is_accounted(driver)


def test_a_write_given_up_leaves_room_for_another(driver):
    driver.prefix(b"p", layers=1, rows=1)
    before = driver.store.info()
    for _ in range(3):
        with driver.store.begin_write(b"p_pk", 0, 1, (8 << 20) // ROW) as write:
            write.next_segment()[:] = bytes(1 << 20)
            write.next_segment()
    assert driver.store.info() == before
    driver.put(b"p_pk", 0, 1, bytes(8 << 20))
    assert holds_what_is_accounted(driver)


def test_bytes_come_back_when_rows_go(driver):
    driver.prefix(b"p", layers=2, rows=100)
    for _ in range(5):
        for side in (b"_pk", b"_pv"):
            for layer in range(2):
                driver.put(b"p" + side, layer, 0, b"\2" * (100 * ROW))
    assert driver.store.info().pages == 1
    assert driver.store.info().bytes == HEADER + 4 * 2 * 4096
    driver.store.drop_namespaces([b"p"])
    assert driver.store.info().bytes == 0 and driver.files == []


def test_the_oldest_of_equals_goes_first_and_whole(open_store):
    driver = budget(open_store, 3)
    for number in range(5):
        driver.prefix(b"p%d" % number, layers=1, rows=ROWS)
        assert driver.store.info().bytes <= driver.store.info().max_bytes
    assert names(driver) == {b"p2", b"p3", b"p4"}
    assert driver.store.info().evictions == 2
    assert len(driver.files) == 3 and disk(driver) <= 3 * PREFIX
    assert driver.store.miss_reason(b"p0") == "absent"


def test_what_is_hit_stays_and_a_scan_of_others_passes_by(open_store):
    driver = budget(open_store, 3)
    driver.prefix(b"hot", layers=1, rows=ROWS)
    for number in range(20):
        driver.store.credit_hit(b"hot")
        driver.store.tick()
        driver.prefix(b"scan%02d" % number, layers=1, rows=ROWS)
    assert b"hot" in names(driver)


def test_what_took_long_to_compute_stays(open_store, schema):
    driver = budget(open_store, 2)
    driver.prefix(b"dear", layers=1, rows=ROWS)
    driver.store.register(b"dear", schema, schema, prefill_us=60_000_000)
    for number in range(4):
        driver.prefix(b"cheap%d" % number, layers=1, rows=ROWS)
    assert names(driver) == {b"dear", b"cheap3"}


def test_what_was_hot_once_ages(open_store):
    driver = budget(open_store, 2)
    driver.prefix(b"once", layers=1, rows=ROWS)
    for _ in range(5):
        driver.store.credit_hit(b"once")
    driver.store.tick()
    for number in range(40):
        driver.prefix(b"p%02d" % number, layers=1, rows=ROWS)
    assert b"once" not in names(driver)


def test_pins_hold_until_the_last_is_gone(open_store):
    driver = budget(open_store, 2)
    driver.prefix(b"pinned", layers=1, rows=ROWS)
    assert [driver.store.pin(b"pinned") for _ in range(2)] == [1, 2]
    driver.store.unpin(b"pinned")
    for number in range(3):
        driver.prefix(b"p%d" % number, layers=1, rows=ROWS)
    assert names(driver) == {b"pinned", b"p2"}
    assert [driver.store.unpin(b"pinned") for _ in range(2)] == [0, 0]
    for number in range(3, 5):
        driver.prefix(b"p%d" % number, layers=1, rows=ROWS)
    assert names(driver) == {b"p3", b"p4"}


def test_a_write_larger_than_the_budget_disturbs_nothing(open_store, schema):
    driver = budget(open_store, 2)
    for name in (b"a", b"b"):
        driver.prefix(name, layers=1, rows=ROWS)
    before = driver.store.info()
    driver.store.create_session(b"big", schema)
    with pytest.raises(OutOfBudget) as caught:
        driver.store.begin_write(b"big", 0, 0, 100 * ROWS)
    assert caught.value.limit == 2 * PREFIX and caught.value.needed > 100 * ROWS * ROW
    assert names(driver) == {b"a", b"b"}
    assert driver.store.info().bytes == before.bytes


def test_a_write_that_pins_leave_no_room_for_disturbs_nothing(open_store, schema):
    driver = budget(open_store, 3)
    for name in (b"a", b"b", b"c"):
        driver.prefix(name, layers=1, rows=ROWS)
    driver.store.pin(b"b")
    driver.store.create_session(b"big", schema)
    with pytest.raises(OutOfBudget):
        driver.store.begin_write(b"big", 0, 0, 5 * ROWS)
    assert names(driver) == {b"a", b"b", b"c"} and driver.store.info().evictions == 0


def test_the_namespace_being_written_is_never_evicted(open_store):
    driver = budget(open_store, 2)
    driver.prefix(b"old", layers=1, rows=ROWS)
    write = driver.store.begin_write(b"old_pk", 0, ROWS, 8)
    write.next_segment()[:] = b"\1" * (8 * ROW)
    with pytest.raises(OutOfBudget):
        driver.prefix(b"new", layers=1, rows=2 * ROWS)
    driver.store.drop_namespaces([b"new"])
    write.commit()
    assert driver.get(b"old_pk", 0, 0, ROWS + 8) == b"\1" * ((ROWS + 8) * ROW)


def test_writes_under_way_count(open_store, schema):
    driver = budget(open_store, 2)
    for name in (b"a", b"b", b"c"):
        driver.store.create_session(name, schema)
    writes = [driver.store.begin_write(name, 0, 0, ROWS) for name in (b"a", b"b")]
    with pytest.raises(OutOfBudget):
        driver.store.begin_write(b"c", 0, 0, 2 * ROWS)
    for write in writes:
        write.abort()
    driver.store.begin_write(b"c", 0, 0, 2 * ROWS).abort()


def test_evicting_a_parent_frees_only_what_its_child_does_not_share(open_store):
    driver = budget(open_store, 2)
    driver.prefix(b"parent", layers=1, rows=ROWS)
    driver.store.fork(b"parent", b"child", 100)
    driver.store.pin(b"child")
    driver.store.pin(b"child")
    with pytest.raises(OutOfBudget):
        driver.prefix(b"new", layers=1, rows=2 * ROWS)
    driver.store.drop_namespaces([b"new"])
    assert b"parent" in names(driver), "its eviction would have freed nothing"
    assert driver.get(b"child_pk", 0, 0, 100) == b"\1" * (100 * ROW)


def test_states_are_in_the_budget(open_store):
    driver = budget(open_store, 2)
    driver.prefix(b"a", layers=1, rows=ROWS)
    driver.store.put_state(b"b", 0, bytes(PREFIX))
    assert names(driver) == {b"b"}
    with pytest.raises(OutOfBudget):
        driver.store.put_state(b"c", 0, bytes(4 * PREFIX))
    assert names(driver) == {b"b"} and len(driver.files) == 1

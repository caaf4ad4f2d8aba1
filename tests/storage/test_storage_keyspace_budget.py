"""Plain keys and prefixes share one budget: prefixes go first, then keys that end, and no other key ever."""

import pytest
from pionkv.storage import OutOfBudget, StoreOptions
from pionkv.storage.keyspace import generic, strings

BUDGET = 1 << 20
ROW = 64
ROWS = 1024
VALUE = b"v" * 20_000
LARGE = b"w" * 300_000


def put(driver, name, value=VALUE, ends_in=0):
    at = int((driver.clock.now + ends_in) * 1000) if ends_in else 0
    driver.store.keyspace.change(lambda keys: strings.put(keys, name, value, deadline=at))


def names(driver):
    return driver.store.keyspace.read(lambda keys: {entry.name for entry in generic.entries(keys)})


def prefixes(driver):
    return {view.namespace for view in driver.store.namespaces()}


def fill(driver, prefix, **how):
    """Set keys until one is refused; how many there are."""
    for number in range(1000):
        try:
            put(driver, b"%s%03d" % (prefix, number), **how)
        except OutOfBudget:
            return number
    raise AssertionError("the budget was never met")


@pytest.fixture
def small(open_store):
    return open_store(StoreOptions(max_bytes=BUDGET))


def test_prefixes_go_before_any_key(small):
    small.prefix(b"p", layers=1, rows=ROWS)
    put(small, b"ends", ends_in=100)
    put(small, b"stays")
    count = fill(small, b"k")
    assert prefixes(small) == set() and small.store.info().evictions == 1
    assert b"stays" in names(small) and count > 40
    assert small.store.info().bytes <= BUDGET


def test_keys_that_end_go_next_the_soonest_first(small):
    for number in range(10):
        put(small, b"e%d" % number, ends_in=1000 - number)
    put(small, b"stays")
    while b"e9" in names(small):
        put(small, b"more%d" % len(names(small)))
    assert {b"e%d" % number for number in range(8)} <= names(small)
    fill(small, b"k")
    assert not {b"e%d" % number for number in range(10)} & names(small)
    assert b"stays" in names(small) and small.store.keyspace.info().evicted == 10


def test_a_refused_write_changes_nothing(small):
    count = fill(small, b"k")
    before = names(small), small.store.info().bytes
    for value in (VALUE, LARGE, b"x" * (BUDGET + 1)):
        with pytest.raises(OutOfBudget):
            put(small, b"one more", value)
    assert (names(small), small.store.info().bytes) == before
    assert len(names(small)) == count and len(small.files) == 0


def test_a_full_store_still_lets_values_be_replaced_and_removed(small):
    fill(small, b"k")
    put(small, b"k000", b"V" * len(VALUE))
    small.store.keyspace.change(lambda keys: generic.delete(keys, [b"k001"]))
    put(small, b"new")
    assert b"new" in names(small)


def test_a_key_is_not_removed_to_make_room_for_itself(small):
    fill(small, b"f")
    small.store.keyspace.change(lambda keys: generic.delete(keys, [b"f000"]))
    put(small, b"k", ends_in=10)
    with pytest.raises(OutOfBudget):
        put(small, b"k", VALUE * 2, ends_in=10)
    assert small.store.keyspace.read(lambda keys: strings.get(keys, b"k")) == VALUE


def test_a_prefix_takes_the_room_of_keys_that_end_and_of_no_other(small):
    put(small, b"ends", LARGE, ends_in=100)
    put(small, b"stays", LARGE)
    small.prefix(b"p", layers=4, rows=ROWS)
    assert names(small) == {b"stays"}
    with pytest.raises(OutOfBudget):
        small.prefix(b"q", layers=8, rows=ROWS)
    assert b"stays" in names(small)


def test_large_values_are_accounted_for_as_the_disk_has_them(driver):
    put(driver, b"a", LARGE)
    put(driver, b"b", LARGE + LARGE)
    driver.store.keyspace.change(lambda keys: generic.copy(keys, b"a", b"c"))
    disk = sum(path.stat().st_blocks * 512 for path in driver.files)
    assert driver.store.info().bytes - driver.store.keyspace.info().bytes == disk
    driver.store.keyspace.change(generic.flush)
    assert driver.store.info().bytes == 0
    for _ in range(3):
        driver.store.tick()
    assert driver.files == [], "freed files are kept for a moment, to be written again"


def test_flush_leaves_nothing(driver):
    driver.prefix(b"p", layers=2, rows=10)
    put(driver, b"k")
    put(driver, b"ends", ends_in=10)
    driver.store.keyspace.change(generic.flush)
    info = driver.store.info()
    assert (info.bytes, info.namespaces, info.sessions, info.pages, info.rows) == (0, 0, 0, 0, 0)
    assert names(driver) == set() and driver.files == []

"""Keys with deadlines: gone for every reader at their time, swept later in bounded steps."""

import pytest
from pionkv.storage.keyspace import expiry, generic, hashes, strings
from pionkv.storage.keyspace.expiry import ABSENT, NEVER, SWEPT_ITEMS, SWEPT_KEYS, DeadlineRule


def put(driver, name, value=b"v", ends_in=0):
    at = int((driver.clock.now + ends_in) * 1000) if ends_in else 0
    driver.store.keyspace.change(lambda keys: strings.put(keys, name, value, deadline=at))


def get(driver, name):
    return driver.store.keyspace.read(lambda keys: strings.get(keys, name))


def deadline(driver, name):
    return driver.store.keyspace.read(lambda keys: expiry.deadline(keys, name))


def test_a_key_is_there_until_its_deadline_and_not_at_it(driver):
    put(driver, b"k", ends_in=5)
    driver.clock.now += 4.999
    assert get(driver, b"k") == b"v"
    driver.clock.now += 0.001
    assert get(driver, b"k") is None and deadline(driver, b"k") == ABSENT
    assert driver.store.keyspace.info().keys == 1


def test_the_tick_removes_what_has_ended_and_nothing_else(driver):
    put(driver, b"ends", ends_in=5)
    put(driver, b"later", ends_in=50)
    put(driver, b"never")
    driver.clock.now += 10
    driver.store.tick()
    info = driver.store.keyspace.info()
    assert (info.keys, info.deadlines, info.expired) == (2, 1, 1)
    assert get(driver, b"later") == get(driver, b"never") == b"v"


def test_a_write_to_an_ended_key_begins_anew(driver):
    put(driver, b"n", b"41", ends_in=5)
    driver.clock.now += 5
    assert driver.store.keyspace.change(lambda keys: strings.increment(keys, b"n", 1)) == 1
    assert deadline(driver, b"n") == NEVER
    assert driver.store.keyspace.info().expired == 1


def test_one_tick_removes_a_bounded_number(driver):
    def fill(keys):
        for number in range(SWEPT_KEYS + 10):
            strings.put(keys, b"%d" % number, b"", deadline=keys.now + 1000)

    driver.store.keyspace.change(fill)
    driver.clock.now += 2
    driver.store.tick()
    assert driver.store.keyspace.info().keys == 10
    driver.store.tick()
    assert driver.store.keyspace.info().keys == 0 and driver.store.keyspace.info().bytes == 0


def test_a_large_value_goes_at_once_and_its_contents_piecemeal(driver):
    values = {b"%d" % number: b"v" for number in range(SWEPT_ITEMS + 10)}
    keyspace = driver.store.keyspace
    keyspace.change(lambda keys: hashes.put(keys, b"h", values))
    keyspace.change(lambda keys: generic.delete(keys, [b"h"]))
    assert keyspace.info().bytes == 0
    left = lambda: keyspace.read(lambda keys: keys.reader.entries("fields"))  # noqa: E731
    assert left() == SWEPT_ITEMS + 10
    driver.store.tick()
    assert left() == 10
    driver.store.tick()
    assert left() == 0 and keyspace.read(lambda keys: keys.reader.entries("leftovers")) == 0


def test_nothing_is_written_when_nothing_is_due(driver):
    put(driver, b"k", ends_in=100)
    driver.store.tick()
    driver.store.sync()
    before = driver.store.keyspace.read(lambda keys: keys.reader.txn.id())
    driver.store.keyspace.sweep()
    assert driver.store.keyspace.read(lambda keys: keys.reader.txn.id()) == before


@pytest.mark.parametrize(
    ("rule", "old", "new", "allowed"),
    [
        (DeadlineRule.ALWAYS, 0, 5, True),
        (DeadlineRule.IF_NONE, 0, 5, True),
        (DeadlineRule.IF_NONE, 4, 5, False),
        (DeadlineRule.IF_SET, 0, 5, False),
        (DeadlineRule.IF_SET, 4, 5, True),
        (DeadlineRule.IF_LATER, 0, 5, False),
        (DeadlineRule.IF_LATER, 5, 5, False),
        (DeadlineRule.IF_LATER, 4, 5, True),
        (DeadlineRule.IF_SOONER, 0, 5, True),
        (DeadlineRule.IF_SOONER, 5, 5, False),
        (DeadlineRule.IF_SOONER, 6, 5, True),
    ],
)
def test_a_key_without_a_deadline_counts_as_ending_never(rule, old, new, allowed):
    assert rule.allows(old, new) is allowed


def test_reads_count_as_use_and_are_written_down_by_the_tick(driver):
    used = lambda: driver.store.keyspace.read(lambda keys: keys.find(b"k").used)  # noqa: E731
    put(driver, b"k")
    assert used() == 1000
    driver.clock.now += 60
    driver.store.keyspace.read(lambda keys: strings.get(keys, b"k"), note_use=False)
    driver.store.tick()
    assert used() == 1000
    get(driver, b"k")
    driver.store.tick()
    assert used() == 1060

"""Cursors over keys and fields: what is there all the time is met, whatever comes and goes meanwhile."""

import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pionkv.storage.keyspace import generic, hashes, strings
from pionkv.storage.keyspace.entry import Kind


def everything(keyspace, count, between=lambda: None):
    """Names met from cursor 0 to cursor 0."""
    met, cursor = [], 0
    while True:
        step = partial(generic.scan, cursor=cursor, count=count, wanted=lambda entry: True)
        cursor, found = keyspace.read(step)
        met += found
        if not cursor:
            return met
        between()


def fill(keyspace, names):
    keyspace.change(lambda keys: [strings.put(keys, name, b"") for name in names])


@pytest.mark.parametrize("count", [1, 3, 10, 1000])
def test_every_key_is_met_once_when_nothing_changes(driver, count):
    names = [b"k%d" % number for number in range(50)] + [b"long" * 1000, b""]
    fill(driver.store.keyspace, names)
    assert sorted(everything(driver.store.keyspace, count)) == sorted(names)


def test_what_stays_is_met_though_others_come_and_go(driver):
    keyspace = driver.store.keyspace
    stay, go = [b"s%d" % n for n in range(40)], [b"g%d" % n for n in range(40)]
    fill(keyspace, stay + go)
    chance = random.Random(7)

    def disturb():
        name = chance.choice(go)
        if not keyspace.change(lambda keys: generic.delete(keys, [name])):
            fill(keyspace, [name])

    assert set(everything(keyspace, 3, disturb)) >= set(stay)


def test_ended_keys_are_not_met(driver):
    fill(driver.store.keyspace, [b"a"])
    driver.store.keyspace.change(lambda keys: strings.put(keys, b"b", b"", deadline=keys.now + 1))
    driver.clock.now += 1
    assert everything(driver.store.keyspace, 10) == [b"a"]


def some_fields(cursor, keys):
    return generic.scan_fields(keys, keys.get(b"h", Kind.HASH), cursor, 7)


def test_fields_are_met_once(driver):
    values = {b"f%d" % number: b"%d" % number for number in range(100)}
    keyspace = driver.store.keyspace
    keyspace.change(lambda keys: hashes.put(keys, b"h", values))
    met, cursor = [], 0
    while True:
        cursor, found = keyspace.read(partial(some_fields, cursor))
        met += found
        if not cursor:
            break
    assert len(met) == len(values) and dict(met) == values


def test_a_random_key_is_any_of_them(driver):
    names = {b"k%d" % number for number in range(8)}
    keyspace, chance = driver.store.keyspace, random.Random(1)
    assert keyspace.read(lambda keys: generic.random_key(keys, chance)) is None
    fill(keyspace, names)
    assert {keyspace.read(lambda keys: generic.random_key(keys, chance)) for _ in range(300)} == names


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=20))
def test_scores_sort_as_their_keys_do(scores):
    from pionkv.storage.keyspace.zsets import sortable

    for low, high in zip(sorted(scores), sorted(scores)[1:], strict=False):
        assert (sortable(low) < sortable(high)) is (low < high)
        assert (sortable(low) == sortable(high)) is (low == high)

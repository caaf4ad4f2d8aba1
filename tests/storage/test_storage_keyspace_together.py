"""Changes of plain keys in one transaction: nobody can tell them from as many transactions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pionkv.storage import Store, StoreOptions
from pionkv.storage.keyspace import expiry, generic, hashes, strings
from pionkv.storage.keyspace.access import ENTRIES_KNOWN, KNOWN_BYTES
from pionkv.storage.keyspace.entry import SHORT_VALUE, Kind
from pionkv.storage.keyspace.errors import KeyspaceError
from pionkv.storage.keyspace.large import LARGE_BYTES
from pionkv.storage.keyspace.strings import Condition

NAMES = st.sampled_from([b"a", b"b", b"5:team1,a", b"n" * 600])
VALUES = st.sampled_from(
    [b"", b"1", b"22", b"v" * KNOWN_BYTES, b"w" * SHORT_VALUE, b"x" * (SHORT_VALUE + 1), b"L" * LARGE_BYTES]
)
NOW = 1_000.0


def doing(function, *args):
    return st.tuples(st.just(function), st.tuples(*args))


CHANGES = st.one_of(
    doing(strings.put, NAMES, VALUES),
    doing(lambda keys, name, value: strings.put(keys, name, value, keep_deadline=True), NAMES, VALUES),
    doing(
        lambda keys, name, value: strings.put(keys, name, value, condition=Condition.IF_ABSENT), NAMES, VALUES
    ),
    doing(lambda keys, name: strings.put(keys, name, b"ends", deadline=keys.now + 5000), NAMES),
    doing(lambda keys, name: bytes(strings.get(keys, name) or b"none"), NAMES),
    doing(lambda keys, name: strings.append(keys, name, b"tail"), NAMES),
    doing(lambda keys, name: strings.increment(keys, name, 7), NAMES),
    doing(lambda keys, name: hashes.put(keys, name, {b"f": b"v"}), NAMES),
    doing(lambda keys, name: expiry.expire(keys, name, keys.now), NAMES),
    doing(expiry.persist, NAMES),
    doing(lambda keys, name: generic.delete(keys, [name]), NAMES),
    doing(generic.rename, NAMES, NAMES),
    doing(lambda keys, name, to: name != to and generic.copy(keys, name, to, replace=True), NAMES, NAMES),
    doing(lambda keys: sorted(entry.name for entry in generic.entries(keys))),
    doing(lambda keys: keys.count()),
    doing(generic.flush),
)


def run(keys, change):
    function, args = change
    try:
        return function(keys, *args)
    except KeyspaceError as error:
        return type(error)


def contents(keys):
    return {
        entry.name: (entry.kind, entry.encoding, entry.count, entry.cost, entry.deadline)
        + ((bytes(strings.load(keys, entry)),) if entry.kind is Kind.STRING else ())
        for entry in generic.entries(keys)
    }


def left_by(store):
    space = store.keyspace
    found = {name: space.read(lambda keys, name=name: keys.find(name)) for name in space.read(contents)}
    known = {name: (entry.count, entry.cost, entry.value) for name, entry in found.items()}
    return space.read(contents), known, space.info(), store.accounts(), store.info().bytes


@given(st.lists(CHANGES, max_size=25))
@settings(max_examples=60, deadline=None)
def test_changes_in_one_transaction_are_those_of_as_many(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("together")
    with (
        Store.open(folder / "one", StoreOptions(), clock=lambda: NOW) as one,
        Store.open(folder / "many", StoreOptions(), clock=lambda: NOW) as many,
    ):
        together = one.keyspace.change(lambda keys: [run(keys, change) for change in changes])
        apart = [many.keyspace.change(lambda keys, change=change: run(keys, change)) for change in changes]
        assert together == apart
        assert left_by(one) == left_by(many)


def test_what_a_given_up_transaction_has_changed_is_not_known(driver):
    space = driver.store.keyspace
    space.change(lambda keys: strings.put(keys, b"k", b"old"))

    def give_up(keys):
        strings.put(keys, b"k", b"new")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        space.change(give_up)
    assert space.read(lambda keys: strings.get(keys, b"k")) == b"old"
    assert space.change(lambda keys: strings.append(keys, b"k", b"er")) == 5


def test_more_keys_than_are_known_at_once_are_all_set(driver):
    names = [b"%d" % number for number in range(ENTRIES_KNOWN + 10)]
    space = driver.store.keyspace
    space.change(lambda keys: [strings.put(keys, name, name) for name in names])
    assert space.read(lambda keys: [strings.get(keys, name) for name in names]) == names
    assert space.info().keys == len(names)


def test_room_is_made_for_a_key_by_one_that_was_set_in_the_same_transaction(open_store):
    driver = open_store(StoreOptions(max_bytes=70_000))

    def change(keys):
        for number in range(30):
            strings.put(keys, b"%d" % number, b"v" * 300, deadline=keys.now + 1000 + number)
        strings.put(keys, b"stays", b"w" * 60_000)

    driver.store.keyspace.change(change)
    info = driver.store.keyspace.info()
    assert info.evicted > 0 and driver.store.info().bytes <= 70_000
    assert driver.store.keyspace.read(lambda keys: strings.length(keys, b"stays")) == 60_000
    names = driver.store.keyspace.read(lambda keys: {entry.name for entry in generic.entries(keys)})
    assert len(names) == info.keys and b"0" not in names

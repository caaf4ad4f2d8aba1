"""Plain keys shared by processes, and what a killed process leaves behind."""

import pytest
from pionkv.storage.keyspace import expiry, strings
from pionkv.storage.keyspace.large import LARGE_BYTES

LARGE = b"L" * (LARGE_BYTES + 3)


def get(driver, name):
    found = driver.store.keyspace.read(lambda keys: strings.get(keys, name))
    return found if found is None else bytes(found)


@pytest.mark.parametrize("value", [b"", b"small", b"v" * 5000, LARGE])
def test_what_one_process_sets_the_others_see(open_store, open_peer, value):
    driver, peer = open_store(), open_peer()
    peer.call("set_key", b"k", value)
    assert get(driver, b"k") == value
    driver.store.keyspace.change(lambda keys: strings.put(keys, b"k", value + b"!"))
    assert peer.call("get_key", b"k") == value + b"!"


def test_processes_count_together(open_store, open_peer):
    driver, peers = open_store(), [open_peer(), open_peer()]
    for peer in peers:
        peer.send("count", b"n", 200)
    for _ in range(200):
        driver.store.keyspace.change(lambda keys: strings.increment(keys, b"n", 1))
    for peer in peers:
        peer.answer()
    assert get(driver, b"n") == b"600"


def test_a_killed_process_loses_nothing_that_was_acknowledged(open_store, open_peer):
    peer = open_peer()
    peer.call("set_key", b"small", b"1")
    peer.call("set_key", b"large", LARGE)
    peer.kill()
    driver = open_store()
    assert get(driver, b"small") == b"1" and get(driver, b"large") == LARGE


def test_a_value_that_was_half_written_when_its_process_died_is_swept(open_store, open_peer):
    peer = open_peer()
    peer.call("begin_key", b"k", 1 << 20)
    peer.kill()
    driver = open_store()
    assert get(driver, b"k") is None and driver.files == []


def test_versions_move_with_changes_of_any_process(open_store, open_peer):
    driver, peer = open_store(), open_peer()
    peer.call("set_key", b"k", b"1")
    version = lambda: driver.store.keyspace.read(lambda keys: keys.find(b"k").version)  # noqa: E731
    first = version()
    get(driver, b"k")
    assert version() == first
    peer.call("set_key", b"k", b"1")
    second = version()
    assert second > first
    driver.store.keyspace.change(lambda keys: expiry.expire(keys, b"k", keys.now + 10_000))
    assert version() > second

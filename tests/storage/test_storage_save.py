"""A copy of the store: one moment, whole, and of no consequence to the store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pionkv.storage import DirectoryError, SaveBusy, SaveExists, Store, StoreOptions
from pionkv.storage.keyspace import strings

BUDGET = 8 << 20


def save(store: Store, name: str) -> None:
    copy = store.begin_save(name)
    try:
        while not copy.link():
            copy.renew()
        copy.copy()
    finally:
        copy.close()


def contents(driver: Any, store: Store) -> dict[bytes, Any]:
    """Every row of every session, every state, every key."""
    driver = type(driver)(store, driver.path, driver.clock)
    found: dict[bytes, Any] = {}
    for view in list(store.sessions()):
        found[view.sid] = [driver.whole(view.sid, layer) for layer in range(len(view.rows))], view.generation
    for record in list(store.namespaces()):
        blobs = {
            number: bytes(store.state(record.namespace, number)) for number in store.states(record.namespace)
        }
        found[b"state " + record.namespace] = blobs
    found[b"key"] = store.keyspace.read(
        lambda keys: strings.get(keys, b"key") and bytes(strings.get(keys, b"key"))
    )
    return found


def filled(driver: Any) -> Store:
    store = driver.store
    for number in range(4):
        driver.prefix(b"p%d" % number, 3, 200, fill=number)
    store.put_state(b"p1", 0, bytes(100_000))
    store.keyspace.change(lambda keys: strings.put(keys, b"key", b"x" * 500_000))
    return store


@pytest.mark.parametrize("name", ["one", "deep/er/two"])
def test_a_copy_is_the_store_of_that_moment(driver: Any, name: str) -> None:
    store = filled(driver)
    before = contents(driver, store)
    save(store, name)
    driver.prefix(b"p1", 3, 300, fill=9)
    store.drop_namespaces([b"p2"])
    path = driver.path / "saved" / name
    with Store.open(path) as copy:
        assert contents(driver, copy) == before
        assert all(sum(copy.verify(record.namespace)) > 0 for record in list(copy.namespaces()))


def test_what_the_store_does_later_reaches_no_copy_and_the_reverse(open_store: Any) -> None:
    """At its budget the store writes again into the files of what it evicts: not into those of a copy."""
    driver = open_store(StoreOptions(max_bytes=BUDGET))
    store = driver.store
    for number in range(3):
        driver.prefix(b"old%d" % number, 2, 8000, fill=number)
    before = contents(driver, store)
    save(store, "copy")
    for number in range(12):
        driver.prefix(b"new%d" % number, 2, 8000, fill=100 + number)
    assert store.info().evictions > 3
    after = contents(driver, store)
    with Store.open(driver.path / "saved" / "copy", StoreOptions(max_bytes=BUDGET)) as copy:
        assert contents(driver, copy) == before
        other = type(driver)(copy, driver.path, driver.clock)
        for number in range(12):
            other.prefix(b"more%d" % number, 2, 8000, fill=200 + number)
    assert contents(driver, store) == after


def test_pages_that_go_while_they_are_linked(driver: Any) -> None:
    store = filled(driver)
    copy = store.begin_save("copy")
    store.drop_namespaces([b"p0"])
    assert not copy.link()
    store.drop_namespaces([b"p3"])
    while not copy.link():
        copy.renew()
    driver.prefix(b"late", 1, 10)
    copy.copy()
    copy.close()
    with Store.open(driver.path / "saved" / "copy") as other:
        assert [record.namespace for record in other.namespaces()] == [b"p1", b"p2"]
        assert sum(other.verify(b"p1")) > 0


def test_changes_during_the_copy_of_the_catalog_are_not_in_it(driver: Any) -> None:
    store = filled(driver)
    before = contents(driver, store)
    copy = store.begin_save("copy")
    while not copy.link():
        copy.renew()
    for number in range(300):
        store.keyspace.change(lambda keys, number=number: strings.put(keys, b"k%d" % number, bytes(1000)))
    store.sync()
    store.keyspace.change(lambda keys: strings.put(keys, b"key", b"other"))
    copy.copy()
    copy.close()
    with Store.open(driver.path / "saved" / "copy") as other:
        assert contents(driver, other) == before
        assert other.keyspace.info().keys == 1


def test_one_copy_at_a_time_and_no_name_twice(driver: Any) -> None:
    store = filled(driver)
    first = store.begin_save("a")
    with pytest.raises(SaveBusy):
        store.begin_save("b")
    first.close()
    save(store, "b")
    with pytest.raises(SaveExists):
        store.begin_save("b")
    assert sorted(path.name for path in (driver.path / "saved").iterdir()) == [".lock", "b"]


def test_what_a_killed_process_left_is_cleared_away(driver: Any) -> None:
    store = filled(driver)
    left = driver.path / "saved" / ".making-dead"
    left.mkdir(parents=True)
    (left / "x").write_bytes(b"x")
    save(store, "a")
    assert not left.exists() and (driver.path / "saved" / "a").is_dir()


def test_a_copy_that_the_end_of_the_store_interrupts_leaves_nothing(driver: Any) -> None:
    copy = filled(driver).begin_save("a")
    assert copy.link()
    driver.store.close()
    with pytest.raises(DirectoryError, match="closed meanwhile"):
        copy.copy()
    assert [path.name for path in (driver.path / "saved").iterdir()] == [".lock"]


def test_a_lost_page_is_lost_in_the_copy_too(driver: Any) -> None:
    store = filled(driver)
    next(path for path in (driver.path / "pages").iterdir()).unlink()
    save(store, "a")
    assert (driver.path / "saved" / "a").is_dir()


def test_a_copy_can_be_moved_and_served(driver: Any, tmp_path: Path) -> None:
    store = filled(driver)
    before = contents(driver, store)
    save(store, "a")
    shutil.copytree(driver.path / "saved" / "a", tmp_path / "elsewhere")
    shutil.rmtree(driver.path / "saved" / "a")
    with Store.open(tmp_path / "elsewhere") as copy:
        assert contents(driver, copy) == before

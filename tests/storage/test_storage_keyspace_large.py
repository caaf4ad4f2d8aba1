"""Large strings: in pages of their own, checked when read, kept as long as a checkpoint may name them."""

import pytest
from pionkv.storage import Durability, StoreOptions
from pionkv.storage.keyspace import expiry, generic, strings
from pionkv.storage.keyspace.errors import DamagedValue, ValueLimit
from pionkv.storage.keyspace.large import LARGE_BYTES

BIG = bytes(range(256)) * 4096
OTHER = b"o" * LARGE_BYTES


def put(driver, name, value):
    driver.store.keyspace.change(lambda keys: strings.put(keys, name, value))


def get(driver, name):
    found = driver.store.keyspace.read(lambda keys: strings.get(keys, name))
    return found if found is None else bytes(found)


def files_after_ticks(driver):
    """Freed files may be kept for a moment, to be written again."""
    for _ in range(4):
        driver.store.tick()
    return driver.files


@pytest.mark.parametrize("size", [LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, (1 << 20) + 7, 3 << 20])
def test_values_around_every_limit_come_back(driver, size):
    value = (BIG * 4)[:size]
    put(driver, b"k", value)
    assert get(driver, b"k") == value
    assert bool(driver.files) is (size >= LARGE_BYTES)


def test_a_value_is_sent_from_its_page_and_outlives_its_key(driver):
    put(driver, b"k", BIG)
    view = driver.store.keyspace.read(lambda keys: strings.get(keys, b"k"))
    assert isinstance(view, memoryview) and view.readonly
    put(driver, b"k", OTHER)
    driver.store.keyspace.change(lambda keys: generic.delete(keys, [b"k"]))
    for number in range(20):
        put(driver, b"n%d" % number, b"n" * len(BIG))
    assert view == BIG


def test_a_copy_shares_the_page_and_the_last_of_them_frees_it(open_store):
    driver = open_store(StoreOptions(durability=Durability.NONE))
    put(driver, b"a", BIG)
    driver.store.keyspace.change(lambda keys: generic.copy(keys, b"a", b"b"))
    assert len(driver.files) == 1
    driver.store.keyspace.change(lambda keys: generic.delete(keys, [b"a"]))
    assert get(driver, b"b") == BIG
    driver.store.keyspace.change(lambda keys: generic.rename(keys, b"b", b"c"))
    assert get(driver, b"c") == BIG
    driver.store.keyspace.change(lambda keys: expiry.expire(keys, b"c", 1))
    assert files_after_ticks(driver) == [] and driver.store.info().bytes == 0


def test_a_transaction_sees_the_value_that_it_has_made(driver):
    def change(keys):
        strings.put(keys, b"k", BIG)
        assert strings.append(keys, b"k", b"!") == len(BIG) + 1
        return bytes(strings.get_range(keys, b"k", -3, -1))

    assert driver.store.keyspace.change(change) == BIG[-2:] + b"!"
    assert get(driver, b"k") == BIG + b"!"


def test_nothing_is_left_of_a_transaction_that_fails(driver):
    put(driver, b"k", OTHER)
    before = driver.files, driver.store.info().bytes

    def change(keys):
        strings.put(keys, b"k", BIG)
        strings.put(keys, b"n", BIG)
        raise ValueError

    with pytest.raises(ValueError):
        driver.store.keyspace.change(change)
    assert (driver.files, driver.store.info().bytes) == before
    assert get(driver, b"k") == OTHER and get(driver, b"n") is None


def test_a_write_that_is_given_up_leaves_nothing(driver):
    write = driver.store.keyspace.begin_large(b"k", len(BIG))
    write.next_segment()
    write.abort()
    assert driver.files == [] and driver.store.info().bytes == 0


def test_a_value_has_a_greatest_length(driver):
    with pytest.raises(ValueLimit):
        driver.store.keyspace.begin_large(b"k", strings.VALUE_BYTES + 1)
    with pytest.raises(ValueLimit):
        driver.store.keyspace.change(lambda keys: strings.set_range(keys, b"k", strings.VALUE_BYTES, b"x"))


@pytest.mark.parametrize("how", ["a flipped bit", "a missing file"])
def test_a_damaged_value_is_an_error_and_can_be_replaced(open_store, how):
    driver = open_store()
    put(driver, b"k", BIG)
    driver.store.close()
    (path,) = driver.files
    if how == "a missing file":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[-5000] ^= 1
        path.write_bytes(data)
    driver = open_store()
    with pytest.raises(DamagedValue):
        get(driver, b"k")
    with pytest.raises(DamagedValue):
        driver.store.keyspace.change(lambda keys: strings.append(keys, b"k", b"x"))
    put(driver, b"k", OTHER)
    assert get(driver, b"k") == OTHER


def test_a_machine_crash_falls_back_to_the_value_of_the_last_sync(open_store, tmp_path):
    import shutil

    driver = open_store(boot="first")
    put(driver, b"k", BIG)
    put(driver, b"small", b"1")
    driver.store.sync()
    synced = shutil.copyfile(driver.path / "catalog" / "data.mdb", tmp_path / "synced.mdb")
    for number in range(3):
        put(driver, b"k", b"%d" % number + OTHER)
    put(driver, b"small", b"2")
    shutil.copytree(tmp_path / "data", tmp_path / "crashed", ignore=shutil.ignore_patterns("lock.mdb"))
    shutil.copyfile(synced, tmp_path / "crashed" / "catalog" / "data.mdb")
    after = open_store(name="crashed", boot="second")
    assert get(after, b"k") == BIG and get(after, b"small") == b"1"


def test_what_no_checkpoint_names_any_more_is_let_go(driver):
    put(driver, b"k", BIG)
    driver.store.sync()
    put(driver, b"k", OTHER)
    assert len(driver.files) == 2, "the synced value must still be there after a crash"
    driver.store.sync()
    assert len(files_after_ticks(driver)) == 1
    assert get(driver, b"k") == OTHER


def test_values_that_no_checkpoint_has_seen_go_at_once(driver):
    driver.store.sync()
    for number in range(10):
        put(driver, b"k", b"%d" % number + BIG)
    assert driver.store.info().pages == 1


def test_a_value_stored_while_a_checkpoint_begins_is_there_after_a_crash(open_store, open_peer, tmp_path):
    """Another process stores it between the note that a checkpoint begins and the pin, which names it."""
    import shutil

    there = open_peer(boot="first")
    driver = open_store(boot="first")
    put(driver, b"other", b"1")
    catalog = driver.store._engine.catalog
    pin = catalog.pin

    def store_and_pin():
        there.call("set_key", b"k", BIG)
        return pin()

    catalog.pin = store_and_pin
    driver.store.sync()
    catalog.pin = pin
    synced = shutil.copyfile(driver.path / "catalog" / "data.mdb", tmp_path / "synced.mdb")
    there.call("set_key", b"k", OTHER)
    shutil.copytree(tmp_path / "data", tmp_path / "crashed", ignore=shutil.ignore_patterns("lock.mdb"))
    shutil.copyfile(synced, tmp_path / "crashed" / "catalog" / "data.mdb")
    assert get(open_store(name="crashed", boot="second"), b"k") == BIG


@pytest.mark.parametrize("durability", list(Durability))
def test_a_sync_leaves_no_pin_where_nobody_makes_the_next_checkpoint(durability, open_store):
    driver = open_store(StoreOptions(durability=durability))
    put(driver, b"k", b"1")
    driver.store.sync()
    for number in range(2_000):
        put(driver, b"k", b"%d" % number * 100)
    size = driver.store.info().catalog_bytes
    for number in range(2_000):
        put(driver, b"k", b"%d" % number * 100)
        if durability is Durability.EVERYSEC and number % 100 == 0:
            driver.store.sync()
    assert driver.store.info().catalog_bytes < 2 * size

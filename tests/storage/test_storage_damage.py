"""Damaged page files: a hit is right, or it is not a hit. Never other bytes."""

import itertools
import os
import shutil
from pathlib import Path

import lmdb
import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pionkv.storage import CatalogCorrupt, DirectoryError, Quarantined
from pionkv.storage.records import seal, unseal

ROW = 64
LAYERS, ROWS = 3, 200


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def assert_right_or_quarantined(driver, name, fill):
    """Reads everything; whether the damage was noticed."""
    for side in (b"_pk", b"_pv"):
        for layer in range(LAYERS):
            try:
                assert driver.get(name + side, layer, 0, ROWS) == bytes([fill]) * (ROWS * ROW)
            except Quarantined as error:
                assert driver.store.lookup(name) is None
                assert driver.store.miss_reason(name) == f"quarantined: {error.reason}"
                return True
    return False


@pytest.fixture
def damaged(open_store):
    """A store with two prefixes, closed, and a way to open it again."""
    driver = open_store()
    driver.prefix(b"p", LAYERS, ROWS, fill=1)
    first = driver.files[0]
    driver.prefix(b"q", LAYERS, ROWS, fill=2)
    second = next(path for path in driver.files if path != first)
    driver.store.close()
    return first, second, open_store


@pytest.fixture
def copies(damaged, tmp_path):
    """Opens a fresh copy of the damaged store's directory, after a change to its first page."""
    first, _, open_store = damaged
    numbers = itertools.count()

    def open_copy(change):
        name = f"copy{next(numbers)}"
        shutil.copytree(tmp_path / "data", tmp_path / name)
        change(tmp_path / name / "pages" / first.name)
        return open_store(name=name)

    return open_copy


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True))
def test_a_flipped_bit_is_noticed_or_harmless(copies, damaged, where):
    bit = int(where * damaged[0].stat().st_size * 8)
    driver = copies(lambda page: flip(page, bit))
    if not assert_right_or_quarantined(driver, b"p", 1):
        places = [
            place
            for side in (b"_pk", b"_pv")
            for mapped in driver.store.locate(b"p" + side, None, 0, ROWS).mapped
            for place in mapped.places
        ]
        assert bit // 8 >= 4096, "the header is all checked"
        assert not any(place.offset <= bit // 8 < place.offset + place.nbytes for place in places)
    assert not assert_right_or_quarantined(driver, b"q", 2)
    driver.store.close()


def test_damage_is_found_on_the_first_read_and_only_that_prefix_is_gone(damaged):
    first, _, open_store = damaged
    flip(first, (4096 + 5 * ROW) * 8)
    driver = open_store()
    assert driver.store.lookup(b"p").tokens == ROWS, "nobody has looked at the bytes yet"
    with pytest.raises(Quarantined) as caught:
        driver.store.rows(b"p_pk", 0, 0, 1)
    assert "digest" in caught.value.reason and caught.value.namespace == b"p"
    for call in (
        lambda: driver.store.rows(b"p_pv", 2, 0, 1),
        lambda: driver.store.session(b"p_pk"),
        lambda: driver.store.begin_write(b"p_pk", 0, 0, 1),
        lambda: driver.store.fork(b"p", b"child"),
        lambda: driver.store.truncate(b"p", 1),
    ):
        with pytest.raises(Quarantined):
            call()
    assert driver.store.info().quarantined == 1
    assert not assert_right_or_quarantined(driver, b"q", 2)


def test_quarantine_survives_a_restart(damaged):
    first, _, open_store = damaged
    flip(first, 4096 * 8)
    driver = open_store()
    with pytest.raises(Quarantined):
        driver.store.rows(b"p_pk", 0, 0, 1)
    driver.store.close()
    assert open_store().store.lookup(b"p") is None


def test_registering_or_dropping_makes_a_quarantined_prefix_usable(damaged, schema):
    first, second, open_store = damaged
    for path in (first, second):
        flip(path, 4096 * 8)
    driver = open_store()
    for name in (b"p", b"q"):
        with pytest.raises(Quarantined):
            driver.store.rows(name + b"_pk", 0, 0, 1)
    driver.store.register(b"p", schema, schema)
    assert driver.store.session(b"p_pk").rows == ()
    driver.store.drop_namespaces([b"q"])
    assert driver.files == []
    for name in (b"p", b"q"):
        driver.prefix(name, LAYERS, ROWS, fill=3)
        assert not assert_right_or_quarantined(driver, name, 3)


def test_forks_of_damaged_pages_are_quarantined_with_their_parent(damaged):
    first, _, open_store = damaged
    driver = open_store()
    driver.store.fork(b"p", b"child")
    driver.store.close()
    flip(first, 4096 * 8)
    driver = open_store()
    with pytest.raises(Quarantined):
        driver.store.rows(b"child_pk", 0, 0, 1)
    assert driver.store.lookup(b"p") is None


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, -1, -4096])
def test_a_truncated_file_is_noticed(damaged, length):
    first, _, open_store = damaged
    os.truncate(first, length if length >= 0 else first.stat().st_size + length)
    driver = open_store()
    noticed = assert_right_or_quarantined(driver, b"p", 1)
    assert noticed or length == -4096, "whole blocks that hold no row may go"
    assert not assert_right_or_quarantined(driver, b"q", 2)


def test_junk_at_the_end_is_noticed_or_harmless(damaged):
    first, second, open_store = damaged
    with first.open("ab") as file:
        file.write(b"junk")
    with second.open("ab") as file:
        file.write(bytes(4096))
    driver = open_store()
    assert assert_right_or_quarantined(driver, b"p", 1)
    assert not assert_right_or_quarantined(driver, b"q", 2)


def test_a_page_replaced_by_another_of_equal_size_is_noticed(damaged):
    first, second, open_store = damaged
    assert first.stat().st_size == second.stat().st_size
    shutil.copyfile(second, first)
    driver = open_store()
    with pytest.raises(Quarantined, match="holds page"):
        driver.store.rows(b"p_pk", 0, 0, 1)
    assert not assert_right_or_quarantined(driver, b"q", 2)


@pytest.mark.parametrize("what", ["missing", "a directory", "zeros"])
def test_a_page_that_is_no_page_is_noticed(damaged, what):
    first, _, open_store = damaged
    size = first.stat().st_size
    first.unlink()
    if what == "a directory":
        first.mkdir()
    elif what == "zeros":
        first.write_bytes(bytes(size))
    driver = open_store()
    assert assert_right_or_quarantined(driver, b"p", 1)
    assert not assert_right_or_quarantined(driver, b"q", 2)


def test_a_damaged_state_is_noticed(open_store):
    driver = open_store()
    driver.store.put_state(b"p", 1, b"state" * 1000)
    driver.store.close()
    flip(driver.files[0], 4096 * 8 + 77)
    driver = open_store()
    with pytest.raises(Quarantined):
        driver.store.state(b"p", 1)
    assert driver.store.lookup(b"p") is None
    with pytest.raises(Quarantined):
        driver.store.put_state(b"p", 2, b"x")


def test_verify_reads_everything_again(damaged):
    first, _, open_store = damaged
    driver = open_store()
    assert sum(driver.store.verify(b"p")) == 2 * LAYERS * ROWS * ROW
    last = driver.store.locate(b"p_pv", range(LAYERS - 1, LAYERS), 0, ROWS).mapped[0].places[0]
    with first.open("r+b") as file:
        file.seek(last.offset + last.nbytes - 1)
        file.write(b"\7")
    with pytest.raises(Quarantined):
        sum(driver.store.verify(b"p"))


def test_part_of_a_piece_cannot_pass_for_the_whole(driver, schema):
    """Rows appended later extend a digest piece that was verified before: it is checked again."""
    driver.store.create_session(b"s", schema)
    driver.put(b"s", 0, 0, b"\1" * (3 * ROW))
    for row in range(3, 50):
        driver.put(b"s", 0, row, bytes([row]) * ROW)
        assert driver.get(b"s", 0, row, row + 1) == bytes([row]) * ROW


def test_a_catalog_cut_short_is_refused_at_open(damaged, tmp_path):
    _, _, open_store = damaged
    data = tmp_path / "data" / "catalog" / "data.mdb"
    os.truncate(data, data.stat().st_size - 1)
    with pytest.raises((DirectoryError, CatalogCorrupt)):
        open_store()


def test_a_catalog_that_is_none_is_refused_at_open(damaged, tmp_path):
    _, _, open_store = damaged
    (tmp_path / "data" / "catalog" / "data.mdb").write_bytes(b"\xff" * 65536)
    with pytest.raises(DirectoryError):
        open_store()


def test_a_flipped_bit_in_a_session_record_is_noticed(open_store, tmp_path):
    """LMDB has no checksums of its own: other extents would be other rows."""
    driver = open_store()
    driver.prefix(b"p", 1, 10)
    with driver.store._engine.catalog.snapshot() as reader:
        record = reader.get("sessions", b"p_pk")
    driver.store.close()
    data = tmp_path / "data" / "catalog" / "data.mdb"
    raw = data.read_bytes()
    data.write_bytes(raw.replace(record, record[:30] + bytes([record[30] ^ 1]) + record[31:]))
    driver = open_store()
    with pytest.raises(CatalogCorrupt):
        driver.store.rows(b"p_pk", 0, 0, 10)


def test_a_catalog_of_another_version_is_refused_at_open(open_store, tmp_path):
    driver = open_store()
    driver.prefix(b"p", 1, 10)
    driver.store.close()
    with lmdb.open(str(tmp_path / "data" / "catalog"), max_dbs=64) as env, env.begin(write=True) as txn:
        meta = env.open_db(b"meta", txn=txn)
        numbers = msgpack.unpackb(unseal(txn.get(b"counters", db=meta)))
        txn.put(b"counters", seal(msgpack.packb([1, *numbers[1:]])), db=meta)
    with pytest.raises(DirectoryError, match=r"the catalog is of version 1, this build reads \d+"):
        open_store()

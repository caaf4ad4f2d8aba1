"""Compaction: many extents become few, and nobody can tell."""

import random

import pytest
from pionkv.storage import StoreOptions
from pionkv.storage.extents import rows_of
from pionkv.storage.write import MAX_EXTENTS

ROW = 64


def extents(driver, sid, layer=0):
    with driver.store._engine.catalog.snapshot() as reader:
        return reader.session(sid).layers[layer]


def scatter(driver, sid, rows, times, layer=0):
    """Overwrite single rows here and there; the rows as they are then."""
    model = [bytes([1]) * ROW] * rows
    chance = random.Random(times)
    for number in range(times):
        row = chance.randrange(rows)
        model[row] = bytes([number % 251]) * ROW
        driver.put(sid, layer, row, model[row])
    return b"".join(model)


@pytest.fixture
def scattered(driver):
    driver.prefix(b"p", layers=2, rows=1000)
    return driver, scatter(driver, b"p_pk", 1000, 200)


def test_a_tick_makes_one_extent_of_many(scattered):
    driver, whole = scattered
    assert len(extents(driver, b"p_pk")) > MAX_EXTENTS
    before = driver.store.session(b"p_pk"), driver.store.namespace(b"p")
    view = driver.store.rows(b"p_pk", 0, 0, 1000)
    driver.store.tick()
    assert len(extents(driver, b"p_pk")) == 1
    assert driver.whole(b"p_pk", 0) == whole == b"".join(view.parts)
    after = driver.store.session(b"p_pk"), driver.store.namespace(b"p")
    assert after[0] == before[0], "rows and generation are the same"
    assert (after[1].generation, after[1].bytes) == (before[1].generation, before[1].bytes)


def test_the_pages_of_overwritten_rows_go(scattered):
    driver, _ = scattered
    pages = driver.store.info().pages
    driver.store.tick()
    assert driver.store.info().pages < pages or pages == 2
    assert driver.store.info().pages == len(driver.files)
    driver.store.drop_namespaces([b"p"])
    assert driver.files == []


def test_layers_in_few_extents_are_left_alone(driver):
    driver.prefix(b"p", layers=1, rows=1000)
    scatter(driver, b"p_pk", 1000, 10)
    before = extents(driver, b"p_pk")
    driver.store.tick()
    assert extents(driver, b"p_pk") == before and 1 < len(before) <= MAX_EXTENTS


def test_a_fork_keeps_the_pages_it_shares(scattered):
    driver, whole = scattered
    driver.store.fork(b"p", b"child")
    driver.store.tick()
    assert len(extents(driver, b"child_pk")) > MAX_EXTENTS
    assert driver.whole(b"child_pk", 0) == driver.whole(b"p_pk", 0) == whole


def test_without_room_nothing_happens(open_store):
    driver = open_store(StoreOptions(max_bytes=2 * 16384 * ROW))
    driver.prefix(b"p", layers=1, rows=12_000)
    scatter(driver, b"p_pk", 12_000, 200)
    before = extents(driver, b"p_pk")
    driver.store.tick()
    assert extents(driver, b"p_pk") == before
    assert driver.store.lookup(b"p") is not None


def test_a_session_that_changes_meanwhile_is_left_alone(scattered, monkeypatch):
    driver, whole = scattered
    engine = driver.store._engine
    create = engine.pages.create

    def create_and_change(*args):
        page = create(*args)
        monkeypatch.undo()
        driver.put(b"p_pk", 0, 0, b"\xfa" * ROW)
        return page

    monkeypatch.setattr(engine.pages, "create", create_and_change)
    driver.store.tick()
    assert driver.whole(b"p_pk", 0) == b"\xfa" * ROW + whole[ROW:]


def test_large_layers_are_done_piece_by_piece(driver, monkeypatch):
    monkeypatch.setattr("pionkv.storage.compact.PIECE_BYTES", 100 * ROW)
    driver.prefix(b"p", layers=1, rows=1000)
    whole = scatter(driver, b"p_pk", 1000, 300)
    driver.store.tick()
    assert len(extents(driver, b"p_pk")) <= MAX_EXTENTS
    assert driver.whole(b"p_pk", 0) == whole
    assert rows_of(extents(driver, b"p_pk")) == 1000

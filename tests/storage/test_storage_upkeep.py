"""What costs nothing when nothing changed, and what is bounded however much is stored."""

import os

import pytest
from pionkv.kernels import LayerSpec
from pionkv.storage import Schema
from pionkv.storage.known import DecodedSessions
from pionkv.storage.reaper import LARGE_BYTES, Reaper
from pionkv.storage.records import SessionRecord

ROW = 64


def transaction(driver):
    with driver.store._engine.catalog.snapshot() as reader:
        return reader.txn.id()


def test_asking_again_for_what_is_there_is_no_transaction(driver, schema):
    driver.store.register(b"p", schema, schema, prefill_us=5)
    driver.store.create_session(b"s", schema)
    before = transaction(driver)
    driver.store.register(b"p", schema, schema)
    driver.store.register(b"p", schema, schema, prefill_us=5)
    driver.store.create_session(b"s", schema)
    driver.store.lookup(b"p")
    assert transaction(driver) == before
    driver.store.register(b"p", schema, schema, prefill_us=6)
    assert transaction(driver) == before + 1


def test_an_idle_tick_is_no_transaction(driver):
    driver.prefix(b"p", layers=1, rows=1)
    driver.store.sync()
    driver.store.tick()
    driver.store.sync()
    before = transaction(driver)
    for _ in range(3):
        driver.store.tick()
    assert transaction(driver) == before


def test_decoded_sessions_are_bounded_and_never_stale(monkeypatch):
    monkeypatch.setattr("pionkv.storage.known._CACHED_BYTES", 1000)
    schema = Schema.uniform(LayerSpec("fp16", 32))
    cache = DecodedSessions()
    raw = {}
    for number in range(50):
        sid = b"s%02d" % number
        raw[sid] = SessionRecord.new(sid, number, b"s" + sid, 0, schema, 1).encode()
        assert cache.get(sid, raw[sid]).slot == number
    assert cache.get(b"s49", raw[b"s49"]) is cache.get(b"s49", raw[b"s49"])
    assert sum(len(found[0]) for found in cache._found.values()) == cache._bytes <= 1000
    other = SessionRecord.new(b"s49", 77, b"ss49", 0, schema, 2).encode()
    assert cache.get(b"s49", other).slot == 77
    assert cache.get(b"s49", raw[b"s49"]).slot == 49


@pytest.mark.parametrize("size", [4096, LARGE_BYTES])
def test_a_removed_file_is_gone_at_once_and_its_blocks_soon(tmp_path, size):
    reaper = Reaper()
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    handles = len(os.listdir("/dev/fd"))
    reaper.unlink(str(path))
    assert not path.exists()
    reaper.unlink(str(path))
    reaper.close()
    reaper.close()
    assert len(os.listdir("/dev/fd")) == handles


def test_large_prefixes_come_and_go(driver):
    rows = LARGE_BYTES // ROW
    handles = len(os.listdir("/dev/fd"))
    for fill in range(3):
        driver.prefix(b"p", layers=1, rows=rows, fill=fill)
        view = driver.store.rows(b"p_pk", 0, 0, rows)
        driver.store.drop_namespaces([b"p"])
        assert driver.files == []
        assert view.parts[0][-1] == fill
    del view
    driver.store._engine.reaper.close()
    assert len(os.listdir("/dev/fd")) == handles

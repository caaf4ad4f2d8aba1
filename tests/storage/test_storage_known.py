"""What is known from one call to the next: never used once anybody has changed anything."""

import re
from pathlib import Path

import msgpack
import pytest
from pionkv.kernels import LayerSpec
from pionkv.storage import (
    Expired,
    Immutable,
    Quarantined,
    RowsNotStored,
    Schema,
    Stale,
    StaleGeneration,
    StoreOptions,
    UnknownSession,
)
from pionkv.storage.known import Known

ROW = 64
ONE, TWO = b"\1" * ROW, b"\2" * ROW


def mapped(driver):
    """Maps of page files that this process has, those of removed files too."""
    return re.findall(rf"{driver.path}/pages/\S+", Path("/proc/self/maps").read_text())


# Known itself


def test_what_is_known_ends_with_its_state():
    known = Known[str, int](2)
    known.of(1)["a"] = 1
    assert known.of(1) == {"a": 1}
    assert known.of(2) == {} and known.of(1) == {}


def test_no_more_names_than_wanted_are_known():
    known = Known[str, int](2)
    known.of(1).update(a=1, b=2)
    assert known.of(1) == {}


def test_who_was_given_an_older_state_adds_nothing_to_a_newer_one():
    known = Known[str, int](8)
    older = known.of(1)
    newer = known.of(2)
    older["a"] = 1
    assert newer == known.of(2) == {}


def test_a_writer_takes_what_is_known_along():
    known = Known[str, int](8)
    found = known.of(1)
    found["a"] = 1
    known.moved(2, found)
    assert known.of(2) == {"a": 1}
    known.forget()
    assert known.of(2) == {}


# Rows that were read


def test_rows_that_were_read_are_looked_up_once(driver, monkeypatch):
    driver.prefix(b"p", layers=1, rows=4)
    first = driver.store.rows(b"p_pk", 0, 1, 3)
    monkeypatch.setattr("pionkv.storage.read._read_one", None)
    assert driver.store.rows(b"p_pk", 0, 1, 3) is first
    with pytest.raises(TypeError):
        driver.store.rows(b"p_pk", 0, 1, 4)


def test_rows_are_read_anew_after_each_change(driver):
    driver.prefix(b"p", layers=1, rows=2)
    assert driver.get(b"p_pk", 0, 0, 2) == driver.get(b"p_pk", 0, 0, 2) == 2 * ONE
    driver.put(b"p_pk", 0, 1, TWO)
    assert driver.get(b"p_pk", 0, 0, 2) == ONE + TWO
    driver.store.truncate(b"p", 1)
    with pytest.raises(RowsNotStored):
        driver.get(b"p_pk", 0, 0, 2)
    driver.store.drop_namespaces([b"p"])
    with pytest.raises(UnknownSession):
        driver.get(b"p_pk", 0, 0, 1)


def test_rows_are_read_anew_after_a_change_by_another_process(driver, open_peer, schema):
    driver.store.create_session(b"s", schema)
    driver.put(b"s", 0, 0, ONE)
    assert driver.get(b"s", 0, 0, 1) == ONE
    peer = open_peer()
    peer.call("put", b"s", 0, 0, TWO)
    assert driver.get(b"s", 0, 0, 1) == TWO
    peer.call("drop_sessions", [b"s"])
    with pytest.raises(UnknownSession):
        driver.get(b"s", 0, 0, 1)


def test_rows_of_another_generation_are_not_known(driver):
    driver.prefix(b"p", layers=1, rows=1)
    at = driver.store.namespace(b"p").generation
    for _ in range(2):
        assert driver.store.rows(b"p_pk", 0, 0, 1, at).parts == [ONE]
        with pytest.raises(StaleGeneration):
            driver.store.rows(b"p_pk", 0, 0, 1, at + 1)
    driver.put(b"p_pk", 0, 1, TWO)
    with pytest.raises(StaleGeneration):
        driver.store.rows(b"p_pk", 0, 0, 1, at)


def test_a_layer_without_rows_is_known_to_have_none(driver):
    driver.prefix(b"p", layers=1, rows=1)
    assert driver.store.rows(b"p_pk", 1, 0, 1) is driver.store.rows(b"p_pk", 1, 0, 1) is None
    driver.put(b"p_pk", 1, 0, TWO)
    assert driver.get(b"p_pk", 1, 0, 1) == TWO


def test_nothing_that_ends_by_itself_is_known(driver):
    driver.prefix(b"p", layers=1, rows=1)
    driver.prefix(b"q", layers=1, rows=1)
    assert driver.get(b"p_pk", 0, 0, 1) == ONE
    driver.store.expire(b"p", driver.clock.now + 10)
    assert driver.get(b"p_pk", 0, 0, 1) == driver.get(b"q_pk", 0, 0, 1) == ONE
    driver.clock.now += 10
    with pytest.raises(Expired):
        driver.get(b"p_pk", 0, 0, 1)
    assert driver.get(b"q_pk", 0, 0, 1) == ONE


def test_reading_what_is_known_is_use(driver):
    driver.prefix(b"p", layers=1, rows=1)
    driver.get(b"p_pk", 0, 0, 1)
    driver.store.tick()
    driver.get(b"p_pk", 0, 0, 1)
    driver.clock.now += 100
    driver.get(b"p_pk", 0, 0, 1)
    driver.store.tick()
    assert driver.store.namespace(b"p").used == driver.clock.now


def test_known_rows_do_not_keep_what_was_dropped(driver):
    driver.prefix(b"p", layers=1, rows=1)
    driver.prefix(b"q", layers=1, rows=1)
    for name in (b"p_pk", b"q_pk"):
        assert driver.get(name, 0, 0, 1) == ONE
    assert len(mapped(driver)) == 2
    driver.store.drop_namespaces([b"p"])
    assert mapped(driver) == [f"{driver.path}/pages/{driver.files[0].name}"]


def test_known_rows_do_not_keep_what_another_process_dropped(driver, open_peer):
    driver.prefix(b"p", layers=1, rows=1)
    assert driver.get(b"p_pk", 0, 0, 1) == ONE
    open_peer().call("drop_namespaces", [b"p"])
    driver.store.tick()
    assert mapped(driver) == []


def test_known_rows_do_not_keep_more_maps_than_are_wanted(open_store):
    driver = open_store(StoreOptions(max_maps=2))
    for number in range(5):
        driver.prefix(b"p%d" % number, layers=1, rows=1)
    for number in range(5):
        assert driver.get(b"p%d_pk" % number, 0, 0, 1) == ONE
    assert len(mapped(driver)) == 2


def test_known_rows_are_verified_again_when_that_is_asked(driver):
    driver.prefix(b"p", layers=1, rows=1)
    assert driver.get(b"p_pk", 0, 0, 1) == ONE
    place = driver.store.locate(b"p_pk", range(1), 0, 1).mapped[0].places[0]
    assert driver.get(b"p_pk", 0, 0, 1) == ONE
    with place.path.open("r+b") as file:
        file.seek(place.offset)
        file.write(b"\7")
    with pytest.raises(Quarantined):
        sum(driver.store.verify(b"p"))
    with pytest.raises(Quarantined):
        driver.get(b"p_pk", 0, 0, 1)


# Sessions that are written to


@pytest.fixture
def held(driver, schema):
    """A store whose session `p_pk` was just written to."""
    driver.store.register(b"p", schema, schema)
    driver.put(b"p_pk", 0, 0, ONE)
    driver.put(b"p_pk", 1, 0, ONE)
    return driver


def test_a_session_is_looked_at_before_its_first_write_only(held, monkeypatch):
    monkeypatch.setattr("pionkv.storage.write._hold", None)
    for layer in range(2, 40):
        with held.store.begin_write(b"p_pk", layer, 0, 1) as write:
            write.next_segment()[:] = TWO
            write.commit()
    assert held.store.session(b"p_pk").rows == (1,) * 40
    monkeypatch.undo()
    assert all(held.whole(b"p_pk", layer) == (ONE if layer < 2 else TWO) for layer in range(40))


def test_writes_to_two_sessions_in_turn_are_all_there(held):
    for layer in range(2, 20):
        for sid in (b"p_pk", b"p_pv"):
            held.put(sid, layer - 2 if sid == b"p_pv" else layer, 0, TWO)
    held.put(b"p_pk", 0, 1, TWO)
    assert held.whole(b"p_pk", 0) == ONE + TWO
    assert held.store.session(b"p_pv").rows == (1,) * 18
    with held.store.begin_write(b"p_pk", 20, 0, 1) as one, held.store.begin_write(b"p_pv", 0, 1, 1) as two:
        one.next_segment()[:] = ONE
        two.next_segment()[:] = ONE
        held.store.commit([one, two])
    assert held.whole(b"p_pk", 20) == ONE and held.whole(b"p_pv", 0) == TWO + ONE


def test_a_held_session_that_another_process_dropped_is_gone(held, open_peer):
    peer = open_peer()
    with held.store.begin_write(b"p_pk", 2, 0, 1) as write:
        write.next_segment()[:] = TWO
        peer.call("drop_namespaces", [b"p"])
        with pytest.raises(UnknownSession):
            write.commit()
    with pytest.raises(UnknownSession):
        held.store.begin_write(b"p_pk", 2, 0, 1)


def test_a_held_session_that_was_made_anew_is_another_one(held):
    with held.store.begin_write(b"p_pk", 2, 0, 1) as write:
        write.next_segment()[:] = TWO
        held.store.drop_namespaces([b"p"])
        wide = Schema.uniform(LayerSpec("fp16", 64))
        held.store.register(b"p", wide, wide)
        with pytest.raises(Stale):
            write.commit()
    seen = []
    held.store.begin_write(b"p_pk", 0, 0, 1, suits=seen.append).abort()
    assert [spec.dim for spec in seen] == [64]


def test_a_held_session_that_was_sealed_takes_no_more(held):
    held.put(b"p_pv", 0, 0, ONE)
    held.put(b"p_pv", 1, 0, ONE)
    held.store.set_manifest(b"p", msgpack.packb({"weights": "a", "immutable": True}))
    with pytest.raises(Immutable):
        held.store.begin_write(b"p_pk", 2, 0, 1)


def test_a_held_session_whose_bytes_were_found_to_be_damaged_takes_no_more(held):
    place = held.store.locate(b"p_pk", range(1), 0, 1).mapped[0].places[0]
    held.put(b"p_pk", 2, 0, ONE)
    with place.path.open("r+b") as file:
        file.seek(place.offset)
        file.write(b"\7")
    held.put(b"p_pk", 3, 0, ONE)
    with pytest.raises(Quarantined):
        sum(held.store.verify(b"p"))
    with pytest.raises(Quarantined):
        held.store.begin_write(b"p_pk", 4, 0, 1)


def test_a_held_session_that_will_end_ends(held):
    held.store.expire(b"p", held.clock.now + 10)
    held.put(b"p_pk", 2, 0, ONE)
    held.clock.now += 10
    with pytest.raises(Expired):
        held.store.begin_write(b"p_pk", 3, 0, 1)


def test_a_held_session_that_was_evicted_for_another_is_gone(open_store, schema):
    driver = open_store(StoreOptions(max_bytes=64 << 10))
    driver.prefix(b"p", layers=1, rows=100)
    for number in range(20):
        driver.prefix(b"q%d" % number, layers=2, rows=100)
    with pytest.raises(UnknownSession):
        driver.store.begin_write(b"p_pk", 0, 100, 1)
    last = b"q19"
    assert driver.whole(last + b"_pk", 1) == 100 * ONE

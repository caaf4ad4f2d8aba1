"""Where rows lie is found once in a state of the catalog, and never told when it is no longer so."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from pionkv.storage import BadRange, Expired, Quarantined, RowsNotStored, UnknownSession

ROW = 64
ONE, TWO = b"\1" * ROW, b"\2" * ROW


@pytest.fixture(params=["prefix", "session"])
def locate(request, driver):
    """Finds the places of a prefix `p` of one row, or of its K side."""
    driver.prefix(b"p", layers=2, rows=1)

    def of(store=driver.store):
        if request.param == "prefix":
            return store.locate_prefix(b"p")
        return store.locate(b"p_pk", None, 0, 1)

    return of


def bytes_at(located):
    """The rows of the first layer and side."""
    (place,) = located.mapped[0].places
    return place.path.read_bytes()[place.offset :][: place.nbytes]


def known(locate):
    """Twice the same: the first question may note that clients are told of a page, which is a commit."""
    locate()
    found = locate()
    assert locate() is found
    return found


def test_places_are_found_once(driver, locate, monkeypatch):
    found = known(locate)
    monkeypatch.setattr("pionkv.storage.places._mapped", None)
    assert locate() is found and bytes_at(found) == ONE


def test_places_are_found_anew_after_each_change(driver, locate, open_peer):
    before = known(locate)
    driver.put(b"p_pk", 0, 0, TWO)
    after = known(locate)
    assert (bytes_at(before), bytes_at(after)) == (ONE, TWO) and after.generation > before.generation
    open_peer().call("put", b"p_pk", 0, 0, ONE)
    assert bytes_at(locate()) == ONE


def test_places_of_what_is_gone_are_not_told(driver, locate, open_peer):
    known(locate)
    open_peer().call("drop_namespaces", [b"p"])
    with suppress(UnknownSession):  # as a session is refused; a prefix has no places then
        assert locate() is None


def test_places_of_what_is_to_end_are_looked_up_each_time(driver, locate):
    driver.store.expire(b"p", driver.clock.now + 10)
    locate()
    assert locate() is not locate()
    driver.clock.now += 10
    with suppress(Expired):
        assert locate() is None


def test_places_of_bytes_that_were_found_to_be_damaged_are_not_told(driver, locate):
    (place,) = known(locate).mapped[0].places
    with place.path.open("r+b") as file:
        file.seek(place.offset)
        file.write(b"\7")
    with pytest.raises(Quarantined):
        sum(driver.store.verify(b"p"))
    with suppress(Quarantined):
        assert locate() is None


def test_asking_for_known_places_is_use(driver, locate):
    known(locate)
    driver.store.tick()
    driver.clock.now += 100
    locate()
    driver.store.tick()
    assert driver.store.namespace(b"p").used == driver.clock.now


def test_rows_lie_in_the_file_where_locate_says(driver, schema):
    driver.store.create_session(b"s", schema)
    data = os.urandom(6 * ROW)
    driver.put(b"s", 1, 0, data)
    driver.put(b"s", 1, 2, data[:ROW])
    located = driver.store.locate(b"s", range(2), 1, 5)
    (mapped,) = located.mapped
    assert (located.generation, located.rows, mapped.layer) == (driver.store.session(b"s").generation, 4, 1)
    found = mapped.places
    assert [place.nbytes for place in found] == [ROW, ROW, 2 * ROW]
    read = b"".join(place.path.read_bytes()[place.offset :][: place.nbytes] for place in found)
    assert read == driver.get(b"s", 1, 1, 5)
    assert driver.store.locate(b"s", None, 0, 1).first and not located.first
    assert driver.store.locate(b"s", range(1), 0, 1).mapped == []
    with pytest.raises(RowsNotStored):
        driver.store.locate(b"s", None, 0, 7)
    with pytest.raises(BadRange):
        driver.store.locate(b"s", None, 1, 1)

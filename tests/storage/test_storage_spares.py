"""Files that are written again: only when nobody can see it, and never more than was accounted."""

import fcntl

import pytest
from pionkv.storage import StoreOptions
from pionkv.storage.errors import PageGone
from pionkv.storage.spares import MAX_BYTES, MIN_BYTES, TOTAL_BYTES

ROW = 64
ROWS = 2 * MIN_BYTES // ROW
HEADER = 4096
ONE = HEADER + ROWS * ROW
"""Bytes of a page of `ROWS` rows of one layer and side."""


@pytest.fixture
def session(driver, schema):
    driver.store.create_session(b"s", schema)
    overwrite(driver, 0)
    return driver


def overwrite(driver, fill, rows=ROWS):
    driver.put(b"s", 0, 0, bytes([fill]) * (rows * ROW))


def named_inodes(driver):
    with driver.store._engine.catalog.snapshot() as reader:
        numbers = [key.hex() for key, _ in reader.scan("pages")]
    return {(driver.path / "pages" / number).stat().st_ino for number in numbers}


def disk(driver):
    return sum(path.stat().st_blocks * 512 for path in driver.files)


def test_overwriting_takes_turns_between_two_files(session):
    seen = set()
    for fill in range(1, 10):
        overwrite(session, fill)
        assert session.whole(b"s", 0) == bytes([fill]) * (ROWS * ROW)
        seen |= named_inodes(session)
        assert session.store.info().bytes == ONE
    assert len(seen) <= 3 and len(session.files) == 2


def test_spares_go_after_two_ticks_and_with_their_process(session, open_store):
    overwrite(session, 1)
    assert len(session.files) == 2
    session.store.tick()
    session.store.tick()
    assert len(session.files) == 1
    overwrite(session, 2)
    assert len(session.files) == 2
    session.store.close()
    assert len(session.files) == 1
    assert open_store().whole(b"s", 0) == bytes([2]) * (ROWS * ROW)


def test_what_is_dropped_is_gone_at_once(session):
    session.store.drop_sessions([b"s"])
    assert session.files == []


def test_views_keep_their_rows(session):
    views = []
    for fill in range(8):
        overwrite(session, fill)
        views.append(session.store.rows(b"s", 0, 0, ROWS))
    for fill, view in enumerate(views):
        assert b"".join(view.parts) == bytes([fill]) * (ROWS * ROW)


def test_views_of_other_processes_keep_their_rows(session, open_peer):
    there = open_peer()
    there.call("hold", b"s", 0, 0, ROWS)
    there.call("tick")
    for fill in range(1, 6):
        overwrite(session, fill)
    assert there.call("held") == bytes(ROWS * ROW)


def test_a_page_that_was_lent_to_a_client_is_never_written_again(session):
    place = session.store.locate(b"s", range(1), 0, ROWS).mapped[0].places[0]
    with place.path.open("rb") as file:
        for fill in range(1, 6):
            overwrite(session, fill)
        file.seek(place.offset)
        assert file.read(place.nbytes) == bytes(ROWS * ROW)
    assert not place.path.exists()


def test_a_page_that_another_process_may_write_to_is_left_alone(open_store, open_peer, peer_error, schema):
    """Theirs is evicted under its write; ours, of the same layout, must not get that file."""
    limit = {"max_bytes": 2 * ONE}
    there, here = open_peer(**limit), open_store(StoreOptions(**limit))
    there.call("put", b"theirs", 0, 0, b"\1" * (ROWS * ROW))
    there.call("begin", b"theirs", 1, 0, b"\2" * (ROWS * ROW))
    for fill in range(4):
        here.store.create_session(b"s%d" % fill, schema)
        here.put(b"s%d" % fill, 0, 0, bytes([fill]) * (ROWS * ROW))
    with pytest.raises(peer_error, match="UnknownSession"):
        there.call("commit")
    for fill in (2, 3):
        assert here.whole(b"s%d" % fill, 0) == bytes([fill]) * (ROWS * ROW)


def test_evicted_files_are_written_again(open_store, schema):
    driver = open_store(StoreOptions(max_bytes=3 * ONE))
    inodes = set()
    for number in range(12):
        name = b"s%02d" % number
        driver.store.create_session(name, schema)
        driver.put(name, 0, 0, bytes([number]) * (ROWS * ROW))
        inodes |= named_inodes(driver)
        assert driver.store.info().bytes <= 3 * ONE
        assert disk(driver) <= 4 * ONE
    assert len(inodes) <= 5
    for number in range(9, 12):
        assert driver.whole(b"s%02d" % number, 0) == bytes([number]) * (ROWS * ROW)


def test_what_is_accounted_is_still_what_the_disk_holds(session):
    """The new page uses less, then more, of the blocks that the file has already."""
    overwrite(session, 1)
    overwrite(session, 2)
    before = named_inodes(session)
    session.put(b"s", 1, 0, b"\3" * (100 * ROW))
    assert named_inodes(session) == before
    session.put(b"s", 0, 0, b"\4" * ((ROWS // 2) * ROW))
    session.put(b"s", 0, ROWS // 2, b"\5" * ((ROWS // 2) * ROW))
    for _ in range(2):
        session.store.tick()
    assert session.whole(b"s", 0) == b"\4" * (ROWS // 2 * ROW) + b"\5" * (ROWS // 2 * ROW)
    session.store.sync()
    assert disk(session) == session.store.info().bytes


@pytest.mark.parametrize("rows", [MIN_BYTES // ROW // 2, MAX_BYTES // ROW + 1])
def test_small_and_large_files_are_not_kept(driver, schema, rows):
    driver.store.create_session(b"s", schema)
    for fill in range(3):
        overwrite(driver, fill, rows)
        assert len(driver.files) == 1
    assert driver.whole(b"s", 0) == b"\2" * (rows * ROW)


def test_spares_are_bounded(driver, schema):
    rows = MAX_BYTES // ROW // 2
    names = [b"s%02d" % number for number in range(3 * TOTAL_BYTES // (rows * ROW))]
    for name in names:
        driver.store.create_session(name, schema)
        driver.put(name, 0, 0, bytes(rows * ROW))
    for name in names:
        driver.put(name, 0, 0, b"\1" * (rows * ROW))
    live = driver.store.info().bytes
    assert live < disk(driver) <= live + TOTAL_BYTES


def test_a_killed_process_leaves_no_spares(open_store, open_peer):
    there = open_peer()
    for fill in range(3):
        there.call("put", b"s", 0, 0, bytes([fill]) * (ROWS * ROW))
    there.kill()
    here = open_store()
    assert len(here.files) == 1
    assert here.whole(b"s", 0) == bytes([2]) * (ROWS * ROW)


def test_a_reader_that_meets_the_change_looks_again(session, monkeypatch):
    """It has read the record of a page that is then freed, locked for its new life, and has another name."""
    engine = session.store._engine
    rows = engine.maps.rows
    met = []

    def overtaken(page, *where):
        if not met:
            met.append(page)
            overwrite(session, 1)
            overwrite(session, 2)
        return rows(page, *where)

    monkeypatch.setattr(engine.maps, "rows", overtaken)
    assert session.whole(b"s", 0) == bytes([2]) * (ROWS * ROW)
    with pytest.raises(PageGone):
        rows(met[0], 0, 0, 0, 1)


def test_a_file_locked_for_its_new_life_is_gone_for_readers(session):
    engine = session.store._engine
    with engine.catalog.snapshot() as reader:
        ((page, _, _),) = reader.session(b"s").layers[0]
    engine.pages.close()
    with open(session.path / "pages" / f"{page:016x}", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(PageGone):
            engine.maps.rows(page, 0, 0, 0, 1)
    assert session.whole(b"s", 0) == bytes(ROWS * ROW)

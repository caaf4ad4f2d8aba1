"""Rows in, rows out: appends, overwrites, ranges, ids, limits, and what is refused."""

import os
import threading
from dataclasses import replace

import msgpack
import pytest
from pionkv.kernels import LayerSpec
from pionkv.storage import (
    BadRange,
    Expired,
    Gap,
    LayerLimit,
    NameLimit,
    RowLimit,
    RowsNotStored,
    Schema,
    SchemaMismatch,
    Stale,
    StoreClosed,
    StoreOptions,
    UnknownSession,
    WriteClosed,
)
from pionkv.storage.buffers import WINDOW_BYTES
from pionkv.storage.records import SessionRecord

ROW = 64


@pytest.fixture
def session(driver, schema):
    driver.store.create_session(b"s", schema)
    return driver


def test_what_does_not_suit_a_layer_takes_nothing(open_store, schema):
    driver = open_store(StoreOptions(max_bytes=64 << 10))
    driver.store.create_session(b"old", schema)
    driver.put(b"old", 0, 0, bytes(600 * ROW))
    driver.store.create_session(b"s", schema)
    before, seen = driver.store.info(), []

    def suits(spec):
        seen.append(spec)
        raise ValueError

    for start in (0, 1):  # the second would leave a gap: that is looked at afterwards
        with pytest.raises(ValueError):
            driver.store.begin_write(b"s", 3, start, 500, suits=suits)
    assert seen == [LayerSpec("fp16", 32)] * 2
    assert driver.store.info() == before and len(driver.files) == 1
    with pytest.raises(UnknownSession):
        driver.store.begin_write(b"nobody", 0, 0, 1, suits=suits)
    assert len(seen) == 2
    with driver.store.begin_write(b"s", 0, 0, 500, suits=seen.append):
        assert driver.store.info().evictions == before.evictions + 1


def test_nothing_is_written_to_what_has_ended(driver):
    driver.prefix(b"p", layers=1, rows=2)
    driver.store.expire(b"p", driver.clock.now + 10)
    driver.store.begin_write(b"p_pk", 0, 2, 1).abort()
    driver.clock.now += 10
    with pytest.raises(Expired):
        driver.store.begin_write(b"p_pk", 0, 2, 1)


def test_a_session_is_stored_as_one_array_whatever_was_changed_of_it(schema):
    """As docs/catalog.md says it, from the first layer on and with layers left out between."""
    record = SessionRecord.new(b"s", 7, b"ss", 0, schema, 1)
    for layer, extents in (
        (0, ((5, 0, 2),)),
        (20, ((1 << 40, 3, 1), (5, 2, 9))),
        (3, ((5, 0, 1),)),
        (20, ()),
    ):
        record = record.with_layer(layer, extents, record.generation + 1)
        raw = record.encode()
        fields = (b"s", 7, b"ss", 0, schema.encode(), record.generation)
        assert raw[:-8] == msgpack.packb((*fields, record.layers, tuple(record.pages.items())))
        assert SessionRecord.decode(raw) == record == replace(record, packed=None)
        assert replace(record, sid=b"other", packed=None).encode() == replace(record, sid=b"other").encode()


def test_rows_come_back_as_they_went_in(session):
    data = os.urandom(10 * ROW)
    session.put(b"s", 0, 0, data)
    assert session.get(b"s", 0, 0, 10) == data
    assert session.get(b"s", 0, 3, 5) == data[3 * ROW : 5 * ROW]
    rows = session.store.rows(b"s", 0, 0, 10)
    assert (rows.count, rows.nbytes, rows.spec) == (10, 640, LayerSpec("fp16", 32))
    assert all(part.readonly for part in rows.parts)


def test_rows_tell_whether_they_begin_the_session(session):
    for layer in (1, 2):
        session.put(b"s", layer, 0, bytes(4 * ROW))
    rows = session.store.rows
    assert rows(b"s", 1, 0, 2).first
    assert not rows(b"s", 1, 1, 2).first and not rows(b"s", 2, 0, 4).first
    found = session.store.rows_of_layers((b"s",), range(3), 0, 4)
    assert [each and each.first for each in found] == [None, True, False]


def test_a_prefix_stored_at_once_is_one_file_and_one_slice_a_layer(driver):
    driver.prefix(b"p", layers=4, rows=300)
    assert len(driver.files) == 1
    assert [len(driver.store.rows(sid, 3, 0, 300).parts) for sid in (b"p_pk", b"p_pv")] == [1, 1]


def test_rows_appended_one_by_one_are_few_slices(session):
    data = os.urandom(1000 * ROW)
    for row in range(1000):
        session.put(b"s", 0, row, data[row * ROW : (row + 1) * ROW])
    assert session.whole(b"s", 0) == data
    assert len(session.store.rows(b"s", 0, 0, 1000).parts) <= 5


def test_a_write_of_many_segments(session):
    count = 3 * WINDOW_BYTES // ROW + 5
    data = os.urandom(count * ROW)
    session.put(b"s", 0, 0, data)
    session.put(b"s", 0, count, data[:ROW])
    assert session.whole(b"s", 0) == data + data[:ROW]


def test_an_overwrite_replaces_its_rows_and_leaves_open_views_alone(session):
    old, new = os.urandom(10 * ROW), os.urandom(3 * ROW)
    session.put(b"s", 0, 0, old)
    before = session.store.rows(b"s", 0, 0, 10)
    session.put(b"s", 0, 4, new)
    assert session.get(b"s", 0, 0, 10) == old[: 4 * ROW] + new + old[7 * ROW :]
    assert b"".join(before.parts) == old


def test_an_overwrite_may_reach_past_the_end(session):
    session.put(b"s", 0, 0, bytes(4 * ROW))
    session.put(b"s", 0, 2, b"\1" * (5 * ROW))
    assert session.whole(b"s", 0) == bytes(2 * ROW) + b"\1" * (5 * ROW)


@pytest.mark.parametrize("start", [0, 4, 10])
def test_a_last_write_ends_its_layer(session, start):
    session.put(b"s", 0, 0, os.urandom(10 * ROW))
    before, new = session.whole(b"s", 0), os.urandom(3 * ROW)
    used = session.store.info().rows
    with session.store.begin_write(b"s", 0, start, 3, last=True) as write:
        segment = write.next_segment()
        segment[:] = new
        assert session.whole(b"s", 0) == before
        write.commit()
    assert session.whole(b"s", 0) == before[: start * ROW] + new
    assert session.store.info().rows - used == start + 3 - 10


def test_a_write_that_must_follow_is_stale_when_others_came_first(session):
    session.put(b"s", 0, 0, os.urandom(4 * ROW))
    with session.store.begin_write(b"s", 0, 4, 1, follows=True) as late:
        late.next_segment()[:] = os.urandom(ROW)
        first = os.urandom(ROW)
        session.put(b"s", 0, 4, first)
        with pytest.raises(Stale):
            late.commit()
    assert session.get(b"s", 0, 4, 5) == first


def test_the_mark_of_a_layer_moves_with_its_rows_and_no_others(session):
    store = session.store
    assert store.layer(b"s", 0) is None
    session.put(b"s", 0, 0, os.urandom(4 * ROW))
    first = store.layer(b"s", 0)
    assert (first.spec, first.rows) == (LayerSpec("fp16", 32), 4)
    session.put(b"s", 1, 0, os.urandom(4 * ROW))
    assert store.layer(b"s", 0) == first
    marks = {first.mark}
    for start, count in ((4, 1), (0, 5), (2, 1)):
        session.put(b"s", 0, start, os.urandom(count * ROW))
        marks.add(store.layer(b"s", 0).mark)
    assert len(marks) == 4
    store.drop_sessions([b"s"])
    with pytest.raises(UnknownSession):
        store.layer(b"s", 0)


def test_ids_in_any_order_and_more_than_once(session):
    data = os.urandom(8 * ROW)
    session.put(b"s", 0, 0, data)
    ids = [7, 0, 1, 2, 2, 5]
    rows = session.store.rows_by_id(b"s", 0, ids)
    assert b"".join(rows.parts) == b"".join(data[i * ROW : (i + 1) * ROW] for i in ids)
    assert rows.count == 6
    for missing in ([8], [0, -1]):
        with pytest.raises(RowsNotStored):
            session.store.rows_by_id(b"s", 0, missing)
    assert session.store.rows_by_id(b"s", 1, [0]) is None


def test_a_layer_without_rows_is_none_and_rows_past_the_end_are_an_error(session):
    assert session.store.rows(b"s", 0, 0, 1) is None
    session.put(b"s", 2, 0, bytes(2 * ROW))
    assert session.store.rows(b"s", 0, 0, 1) is None
    assert session.store.rows(b"s", -1, 0, 1) is None
    assert session.store.session(b"s").rows == (0, 0, 2)
    with pytest.raises(RowsNotStored) as caught:
        session.store.rows(b"s", 2, 1, 3)
    error = caught.value
    assert (error.layer, error.start, error.end, error.rows) == (2, 1, 3, 2)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (3, 2), (-1, 2)])
def test_a_range_that_is_none_is_refused(session, start, end):
    with pytest.raises(BadRange):
        session.store.rows(b"s", 0, start, end)


def test_layers_of_both_sides_as_of_one_moment(driver):
    driver.prefix(b"p", layers=3, rows=5)
    driver.put(b"p_pv", 1, 0, b"\7" * (5 * ROW))
    found = driver.store.rows_of_layers([b"p_pk", b"p_pv"], range(4), 1, 3)
    ones, sevens = b"\1" * (2 * ROW), b"\7" * (2 * ROW)
    assert [rows and b"".join(rows.parts) for rows in found] == [ones] * 3 + [sevens] + [ones] * 2 + [
        None
    ] * 2
    generations = [driver.store.session(sid).generation for sid in (b"p_pk", b"p_pv")]
    driver.store.rows_of_layers([b"p_pk", b"p_pv"], [0], 0, 1, generations=generations)
    driver.put(b"p_pk", 0, 5, bytes(ROW))
    with pytest.raises(Stale):
        driver.store.rows_of_layers([b"p_pk", b"p_pv"], [0], 0, 1, generations=generations)


def test_nothing_is_visible_before_the_commit(session):
    write = session.store.begin_write(b"s", 0, 0, 2)
    write.next_segment()[:] = b"\1" * (2 * ROW)
    assert session.store.rows(b"s", 0, 0, 1) is None
    assert session.store.session(b"s").rows == ()
    write.commit()
    assert session.get(b"s", 0, 0, 2) == b"\1" * (2 * ROW)


def test_a_write_left_by_an_exception_leaves_no_trace(session):
    before = session.store.info()
    with pytest.raises(RuntimeError), session.store.begin_write(b"s", 0, 0, 5) as write:
        write.next_segment()
        raise RuntimeError
    assert session.store.info() == before
    session.put(b"s", 0, 0, b"\2" * ROW)
    assert session.whole(b"s", 0) == b"\2" * ROW


def test_a_write_publishes_all_its_rows_or_none(session):
    write = session.store.begin_write(b"s", 0, 0, 2 * WINDOW_BYTES // ROW)
    write.next_segment()
    with pytest.raises(WriteClosed):
        write.commit()
    for call in (write.next_segment, write.commit, lambda: write.rewrite(lambda row, data: None)):
        with pytest.raises(WriteClosed):
            call()
    write.abort()
    assert session.store.rows(b"s", 0, 0, 1) is None


def test_rows_may_be_rewritten_before_the_commit(session):
    count = 2 * WINDOW_BYTES // ROW + 3
    seen = []

    def invert(first, data):
        seen.append((first, len(data) // ROW))
        data[:] = bytes(255 - byte for byte in data)

    with session.store.begin_write(b"s", 0, 0, count) as write:
        while (segment := write.next_segment()) is not None:
            segment[:] = bytes(len(segment))
        write.rewrite(invert)
        write.commit()
    assert [first for first, _ in seen] == [sum(rows for _, rows in seen[:i]) for i in range(len(seen))]
    assert sum(rows for _, rows in seen) == count
    assert session.whole(b"s", 0) == b"\xff" * (count * ROW)


def test_segments_may_be_filled_in_another_thread(session):
    data = os.urandom(2 * WINDOW_BYTES)
    write = session.store.begin_write(b"s", 0, 0, len(data) // ROW)

    def fill():
        source = memoryview(data)
        while (segment := write.next_segment()) is not None:
            segment[:] = source[: len(segment)]
            source = source[len(segment) :]

    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()
    write.commit()
    assert session.whole(b"s", 0) == data


def test_two_writes_at_once_in_one_layer(session):
    """The later commit wins; neither leaves rows of the other among its own."""
    first, second = (session.store.begin_write(b"s", 0, 0, 4) for _ in range(2))
    first.next_segment()[:] = b"\1" * (4 * ROW)
    second.next_segment()[:] = b"\2" * (4 * ROW)
    second.commit()
    assert session.whole(b"s", 0) == b"\2" * (4 * ROW)
    first.commit()
    assert session.whole(b"s", 0) == b"\1" * (4 * ROW)
    session.put(b"s", 0, 4, b"\3" * ROW)
    assert session.whole(b"s", 0) == b"\1" * (4 * ROW) + b"\3" * ROW


def test_an_aborted_write_between_two_others(session):
    writes = [session.store.begin_write(b"s", 0, 0, 4) for _ in range(3)]
    for number, write in enumerate(writes):
        write.next_segment()[:] = bytes([number]) * (4 * ROW)
    writes[1].abort()
    writes[2].commit()
    assert session.whole(b"s", 0) == b"\2" * (4 * ROW)
    writes[0].commit()
    session.put(b"s", 0, 4, b"\5" * (2 * ROW))
    assert session.whole(b"s", 0) == bytes(4 * ROW) + b"\5" * (2 * ROW)


def test_a_gap_is_refused(session):
    session.put(b"s", 0, 0, bytes(3 * ROW))
    with pytest.raises(Gap) as caught:
        session.store.begin_write(b"s", 0, 4, 1)
    assert (caught.value.layer, caught.value.rows, caught.value.start) == (0, 3, 4)
    with pytest.raises(Gap):
        session.store.begin_write(b"s", 1, 1, 1)


def test_a_session_cut_under_a_write(driver):
    driver.prefix(b"p", layers=1, rows=8)
    write = driver.store.begin_write(b"p_pk", 0, 8, 1)
    write.next_segment()
    driver.store.truncate(b"p", 4)
    with pytest.raises(Gap):
        write.commit()
    assert driver.store.session(b"p_pk").rows == (4,)


def test_a_session_dropped_or_replaced_under_a_write(session, schema):
    first, second = (session.store.begin_write(b"s", 0, 0, 1) for _ in range(2))
    first.next_segment()
    second.next_segment()
    session.store.drop_sessions([b"s"])
    with pytest.raises(UnknownSession):
        first.commit()
    session.store.create_session(b"s", schema)
    with pytest.raises(Stale):
        second.commit()
    assert session.store.rows(b"s", 0, 0, 1) is None


def test_a_page_freed_under_a_write_to_its_other_side(driver, schema):
    """The rows of the write are still there: its page must not go while it is under way."""
    driver.store.register(b"p", schema, schema)
    driver.put(b"p_pv", 0, 0, b"\1" * (4 * ROW))
    write = driver.store.begin_write(b"p_pk", 0, 0, 4)
    write.next_segment()[:] = b"\2" * (4 * ROW)
    for fill in (3, 4, 5):
        driver.put(b"p_pv", 0, 0, bytes([fill]) * (4 * ROW))
    write.commit()
    assert driver.whole(b"p_pk", 0) == b"\2" * (4 * ROW)
    assert driver.whole(b"p_pv", 0) == b"\5" * (4 * ROW)
    assert sum(driver.store.verify(b"p")) == 8 * ROW


def test_limits_are_refused_with_their_numbers(open_store, schema):
    driver = open_store(StoreOptions(max_rows=10, max_layers=3, max_name_bytes=8))
    driver.store.create_session(b"s", schema)
    driver.store.create_session(b"two", Schema.per_layer([LayerSpec("fp16", 32)] * 2))
    with pytest.raises(RowLimit) as rows:
        driver.store.begin_write(b"s", 0, 0, 11)
    assert (rows.value.end, rows.value.limit) == (11, 10)
    for sid, layer, limit in ((b"s", 3, 3), (b"s", -1, 3), (b"two", 2, 2)):
        with pytest.raises(LayerLimit) as layers:
            driver.store.begin_write(sid, layer, 0, 1)
        assert (layers.value.layer, layers.value.limit) == (layer, limit)
    for name in (b"", b"123456789"):
        with pytest.raises(NameLimit) as names:
            driver.store.create_session(name, schema)
        assert (names.value.length, names.value.limit) == (len(name), 8)
    for start, count in ((-1, 1), (0, 0), (0, -1)):
        with pytest.raises(BadRange):
            driver.store.begin_write(b"s", 0, start, count)


def test_names_of_any_bytes_and_every_length(open_store, schema):
    driver = open_store(StoreOptions(max_name_bytes=520))
    names = [
        b"\0",
        b"\xff" * 254,
        b"\xff" * 255,
        b"\xff" * 519 + b"a",
        b"\xff" * 519 + b"b",
        b"_pk",
        b"a b\r\n",
    ]
    for number, name in enumerate(names):
        driver.store.create_session(name, schema)
        driver.put(name, 0, 0, bytes([number]) * ROW)
    assert [driver.whole(name, 0)[0] for name in names] == list(range(len(names)))
    assert {view.sid for view in driver.store.sessions()} == set(names)


def test_a_session_of_the_same_schema_is_found_and_of_another_refused(driver, schema):
    slot = driver.store.create_session(b"s", schema)
    driver.put(b"s", 0, 0, bytes(ROW))
    assert driver.store.create_session(b"s", schema) == slot
    with pytest.raises(SchemaMismatch) as caught:
        driver.store.create_session(b"s", Schema.uniform(LayerSpec("int8", 32)))
    assert (caught.value.field, caught.value.stored, caught.value.asked) == ("format", "fp16", "int8")
    assert driver.store.session(b"s").rows == (1,)


def test_layers_of_different_formats_and_sides_of_different_schemas(driver):
    mixed = Schema.per_layer([LayerSpec("fp16", 64), LayerSpec("mlx4g32", 64), LayerSpec("fp32", 3)])
    plain = Schema.per_layer([LayerSpec("fp16", 64)] * 3)
    driver.store.register(b"p", plain, mixed)
    stored = {}
    for sid, schema in ((b"p_pk", plain), (b"p_pv", mixed)):
        for layer in range(3):
            stored[sid, layer] = os.urandom(7 * schema.row_bytes(layer))
            driver.put(sid, layer, 0, stored[sid, layer])
    assert len(driver.files) == 1
    for (sid, layer), data in stored.items():
        assert driver.whole(sid, layer) == data


def test_generations_only_grow(driver, schema):
    driver.store.register(b"p", schema, schema)
    seen = [driver.put(b"p_pk", 0, 0, bytes(4 * ROW)), driver.put(b"p_pk", 0, 4, bytes(ROW))]
    driver.store.truncate(b"p", 2)
    seen.append(driver.store.session(b"p_pk").generation)
    driver.store.drop_namespaces([b"p"])
    driver.store.register(b"p", schema, schema)
    seen.append(driver.store.session(b"p_pk").generation)
    assert seen == sorted(set(seen))


def test_a_closed_store_says_so(open_store, schema):
    driver = open_store()
    driver.store.create_session(b"s", schema)
    driver.put(b"s", 0, 0, b"\7" * ROW)
    view = driver.store.rows(b"s", 0, 0, 1).parts[0]
    driver.store.close()
    driver.store.close()
    assert view == b"\7" * ROW
    for call in (driver.store.info, lambda: driver.store.lookup(b"s"), driver.store.tick):
        with pytest.raises(StoreClosed):
            call()


def begin_filled(driver, sid, layer, fill, count=4):
    write = driver.store.begin_write(sid, layer, 0, count)
    write.next_segment()[:] = bytes([fill]) * (count * ROW)
    return write


def test_several_writes_in_one_step(driver, schema):
    driver.store.register(b"p", schema, schema)
    writes = [begin_filled(driver, sid, layer, layer) for layer in range(3) for sid in (b"p_pk", b"p_pv")]
    assert driver.store.lookup(b"p") is None
    generations = driver.store.commit(writes)
    assert set(generations) == {driver.store.lookup(b"p").generation}
    assert [driver.whole(b"p_pv", layer) for layer in range(3)] == [bytes([n]) * (4 * ROW) for n in range(3)]
    assert driver.store.commit([]) == []


def test_one_write_that_cannot_be_published_keeps_all_back(driver, schema):
    for sid in (b"a", b"b"):
        driver.store.create_session(sid, schema)
    writes = [begin_filled(driver, sid, 0, 1) for sid in (b"a", b"b")]
    before = driver.store.info()
    driver.store.drop_sessions([b"b"])
    with pytest.raises(UnknownSession):
        driver.store.commit(writes)
    assert driver.store.rows(b"a", 0, 0, 1) is None
    with pytest.raises(WriteClosed):
        writes[0].commit()
    assert driver.store.info().bytes == before.bytes

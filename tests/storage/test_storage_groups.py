"""Layers whose format codes groups of rows: closed groups and a tail, against the definition in numpy."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pionkv.kernels import Element, LayerSpec, NonFinite, pack, unpack
from pionkv.kernels.formats import GROUP_TOKENS, TAIL_TOKENS
from pionkv.storage import (
    BadRange,
    ClosedGroup,
    Grouped,
    PrefixPlan,
    Quarantined,
    Schema,
    Stale,
    Store,
    StoredRuns,
    StoreOptions,
)

DIM = 32
WIDTH = 2 * DIM
FORMATS = ("kivi4", "kivi2", "kivi4_keys", "kivi2_keys")
LONGEST = 700


def some_rows(count, seed=0):
    values = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float16)
    return values * np.float16(3)


class Model:
    """A layer as the definition says: rows that were coded, as they are decoded, and rows that were not."""

    def __init__(self, spec):
        self.spec = spec
        self.coded = np.empty((0, DIM), np.float16)
        self.tail = np.empty((0, DIM), np.float16)

    @property
    def rows(self):
        return np.concatenate([self.coded, self.tail])

    def write(self, start, values):
        if start < len(self.coded):
            self.truncate(start)
        at = start - len(self.coded)
        self.tail = np.concatenate([self.tail[:at], values, self.tail[at + len(values) :]])
        while len(self.tail) >= TAIL_TOKENS + GROUP_TOKENS:
            group, self.tail = self.tail[:GROUP_TOKENS], self.tail[GROUP_TOKENS:]
            self.coded = np.concatenate([self.coded, self._through(group)])

    def truncate(self, rows):
        self.tail = self.tail[: max(0, rows - len(self.coded))]
        self.coded = self.coded[:rows]

    def _through(self, group):
        packed = bytearray(len(group) * self.spec.row_bytes)
        pack(self.spec, group.tobytes(), Element.F16, len(group), packed, backend="oracle")
        out = bytearray(group.nbytes)
        unpack(self.spec, packed, len(group), Element.F16, out, backend="oracle")
        return np.frombuffer(bytes(out), np.float16).reshape(-1, DIM)


def fill(write, values):
    data = memoryview(values.tobytes())
    with write:
        while (segment := write.next_segment()) is not None:
            segment[:] = data[: len(segment)]
            data = data[len(segment) :]
        return write.commit()


def fetched(rows):
    out = memoryview(bytearray(rows.count * WIDTH))
    done = 0
    for run in rows.runs:
        run.unpack(Element.F16, out[done : done + run.count * WIDTH])
        done += run.count * WIDTH
    return np.frombuffer(out, np.float16).reshape(-1, DIM)


def read(store, sid, start, end):
    return fetched(store.rows(sid, 0, start, end))


def same(found, expected):
    assert found.tobytes() == expected.tobytes()


def check(store, sid, model, low=0.0, high=1.0):
    """All rows, and those of a range given in parts of the whole."""
    rows = model.rows
    assert sum(store.session(sid).rows) == len(rows)
    if len(rows):
        same(read(store, sid, 0, len(rows)), rows)
        start = min(int(low * len(rows)), len(rows) - 1)
        end = max(start + 1, int(high * len(rows)))
        same(read(store, sid, start, end), rows[start:end])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("step", [1, 7, 32, 100, 159, 160, 161, 448])
def test_bytes_do_not_depend_on_how_rows_are_split(format, step, driver) -> None:
    """R55, R56: what is closed, and its bytes, are those of one write of all rows."""
    store, spec, values = driver.store, LayerSpec(format, DIM), some_rows(448)
    for sid, size in ((b"once", 448), (b"split", step)):
        store.create_session(sid, Schema.uniform(spec))
        for start in range(0, 448, size):
            fill(
                store.begin_write(sid, 0, start, len(values[start : start + size])),
                values[start : start + size],
            )
    once, split = (store.rows(sid, 0, 0, 448) for sid in (b"once", b"split"))
    closed = (448 - TAIL_TOKENS) // GROUP_TOKENS * GROUP_TOKENS
    expected = bytearray(closed * spec.row_bytes)
    pack(spec, values[:closed].tobytes(), Element.F16, closed, expected, backend="oracle")
    for rows in (once, split):
        assert b"".join(run.data for run in rows.runs if run.spec == spec) == expected
        assert b"".join(run.data for run in rows.runs if run.spec == spec.wire) == values[closed:].tobytes()


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "tail", "again", "truncate", "restart"]),
        st.integers(1, 200),
        st.floats(0, 1),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=12,
)


@given(format=st.sampled_from(FORMATS), actions=ACTIONS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_layer_is_what_the_definition_says(format, actions, tmp_path_factory) -> None:
    """R17, R23, R55, R56: appends of any size, overwrites, cuts within groups and the tail, restarts."""
    path, spec = tmp_path_factory.mktemp("store"), LayerSpec(format, DIM)
    store, model = Store.open(path), Model(spec)
    try:
        store.register(b"p", Schema.uniform(spec), Schema.uniform(spec))
        for seed, (action, size, low, high) in enumerate(actions):
            held, coded = len(model.rows), len(model.coded)
            if action == "append" and held + size <= LONGEST:
                values, start = some_rows(size, seed), held
            elif action == "tail" and len(model.tail):
                start = coded + int(low * (len(model.tail) - 1))
                values = some_rows(min(size, held - start), seed)
            elif action == "again" and held:
                start = int(low * held)
                values = some_rows(held - start + size, seed)
            elif action == "restart":
                store.close()
                store = Store.open(path)
                continue
            elif action == "truncate" and held:
                cut = int(low * held)
                for sid in (b"p_pk", b"p_pv"):
                    assert sum(store.session(sid).rows) == held
                store.truncate(b"p", cut)
                model.truncate(cut)
                check(store, b"p_pk", model)
                continue
            else:
                continue
            for sid in (b"p_pk", b"p_pv"):
                fill(store.begin_write(sid, 0, start, len(values)), values)
            model.write(start, values)
            check(store, b"p_pk", model, low, max(low, high))
            check(store, b"p_pv", model)
        if len(model.rows):
            store.fork(b"p", b"child", None)
            check(store, b"child_pk", model)
            more = some_rows(90, 99)
            fill(store.begin_write(b"child_pk", 0, len(model.rows), 90), more)
            check(store, b"p_pk", model)
            assert sum(store.verify(b"p")) > 0
    finally:
        store.close()


def make(store, format="kivi4_keys", rows=300):
    spec = LayerSpec(format, DIM)
    store.register(b"p", Schema.uniform(spec), Schema.uniform(LayerSpec("kivi4", DIM)))
    values = some_rows(rows)
    for sid in (b"p_pk", b"p_pv"):
        fill(store.begin_write(sid, 0, 0, rows), values)
    model = Model(spec)
    model.write(0, values)
    return model


def test_rows_within_closed_groups_are_not_overwritten(driver) -> None:
    model = make(driver.store)
    generation = driver.store.session(b"p_pk").generation
    with pytest.raises(ClosedGroup, match="rows 10..160 of layer 0 are in closed groups"):
        driver.store.begin_write(b"p_pk", 0, 10, 5)
    assert driver.store.session(b"p_pk").generation == generation
    check(driver.store, b"p_pk", model)


def test_what_cannot_be_coded_is_refused_when_it_comes(driver) -> None:
    """It would poison the group of rows that were accepted before it."""
    model = make(driver.store)
    bad = some_rows(40)
    bad[33, 5] = np.inf
    with pytest.raises(NonFinite) as refused, driver.store.begin_write(b"p_pk", 0, 300, 40) as write:
        write.next_segment()[:] = bad.tobytes()
        write.commit()
    assert (refused.value.row, refused.value.element) == (333, 5)
    check(driver.store, b"p_pk", model)


def test_rows_of_groups_have_no_place_in_a_file(driver) -> None:
    make(driver.store)
    with pytest.raises(Grouped, match="kivi4_keys"):
        driver.store.locate_prefix(b"p")
    with pytest.raises(Grouped, match="kivi4_keys"):
        driver.store.locate(b"p_pk", range(1), 0, 5)


def test_two_writes_begun_on_the_same_rows_do_not_mix(driver) -> None:
    model, values = make(driver.store), some_rows(40, 5)
    late = driver.store.begin_write(b"p_pk", 0, 300, 40)
    fill(driver.store.begin_write(b"p_pk", 0, 300, 40), values)
    with pytest.raises(Stale):
        fill(late, some_rows(40, 6))
    model.write(300, values)
    check(driver.store, b"p_pk", model)


def test_the_ledger_counts_groups_and_tail(driver) -> None:
    """R68: codes, scales and fp16 rows; what left the tail is no row of anybody until its page goes."""
    make(driver.store)
    spec, closed, tail = LayerSpec("kivi4", DIM), 160, 140
    count = driver.store.ledger(b"p")
    for _ in count.steps():
        pass
    logical, parts = count.ledger.logical, spec.row_parts
    assert (logical.codes, logical.scales) == (2 * closed * parts.codes, 2 * closed * parts.scales)
    assert logical.full_precision == 2 * tail * WIDTH
    assert logical.total == driver.store.namespace(b"p").bytes
    physical = count.ledger.physical
    assert (physical.codes, physical.scales, physical.full_precision) == (
        logical.codes,
        logical.scales,
        logical.full_precision,
    )
    assert count.ledger.accounted == driver.store.info().bytes


def test_pages_of_rows_that_left_the_tail_go(driver) -> None:
    """A prefix that grows row by row keeps what a tail takes, not what went through it."""
    store, spec = driver.store, LayerSpec("kivi2_keys", DIM)
    store.create_session(b"s", Schema.uniform(spec))
    values, model = some_rows(1500), Model(spec)
    for start in range(0, 1500, 10):
        fill(store.begin_write(b"s", 0, start, 10), values[start : start + 10])
    model.write(0, values)
    check(store, b"s", model)
    tails = [path for path in driver.files if int(path.name, 16) & 1 << 31]
    assert len(tails) <= 2


@pytest.mark.parametrize("sizes", [(300, 300), (37, 263, 1, 299), (600,)])
def test_transactions_close_groups_like_plain_writes(sizes, driver) -> None:
    """R11, R56: within a transaction, and on top of a parent whose tail goes on."""
    store, keys, values = driver.store, LayerSpec("kivi2_keys", DIM), LayerSpec("kivi2", DIM)
    schemas, rows = (Schema.uniform(keys), Schema.uniform(values)), some_rows(600)
    model = {b"_pk": Model(keys), b"_pv": Model(values)}
    txn = store.begin_transaction(b"t1", PrefixPlan(b"p", schemas, 1))
    start = 0
    for size in sizes:
        for side in model:
            fill(txn.begin_write(b"p" + side, 0, start, size), rows[start : start + size])
            model[side].write(start, rows[start : start + size])
            same(fetched(txn.rows(b"p" + side, 0, 0, start + size)), model[side].rows)
        start += size
    receipt = txn.publish()
    child = store.begin_transaction(b"t2", PrefixPlan(b"c", schemas, 1, parent=(b"p", 590)))
    for side in model:
        check(store, b"p" + side, model[side])
        model[side].truncate(590)
        fill(child.begin_write(b"c" + side, 0, 590, 100), rows[:100])
        model[side].write(590, rows[:100])
    assert child.publish().tokens == 690
    for side in model:
        check(store, b"c" + side, model[side])
    again = store.begin_transaction(b"t3", PrefixPlan(b"p", schemas, 1))
    for side in model:
        fill(again.begin_write(b"p" + side, 0, 600, 1), rows[:1])
    again.abort()
    assert store.receipt(b"t1") == receipt and sum(store.session(b"p_pk").rows) == 600


def parts(store, sid):
    """A layer's bytes, as they are stored."""
    return b"".join(store.rows(sid, 0, 0, store.session(sid).rows[0]).parts)


@pytest.mark.parametrize("format", ["kivi4", "kivi2"])
@pytest.mark.parametrize("sizes", [(5,), (160,), (300, 40), (400, -210, 350, -333, 7), (700, -45, 100, -1)])
def test_a_layer_is_restored_as_it_was_stored(format, sizes, driver) -> None:
    """R55: groups that were cut, or closed one by one, and the tail: nothing is coded again."""
    store = driver.store
    schemas = [Schema.uniform(LayerSpec(name, DIM)) for name in (format + "_keys", format)]
    store.register(b"p", *schemas)
    held = 0
    for seed, size in enumerate(sizes):
        if size < 0:
            store.truncate(b"p", held + size)
        for sid in (b"p_pk", b"p_pv") if size > 0 else ():
            fill(store.begin_write(sid, 0, held, size), some_rows(size, seed))
        held += size
    plan = PrefixPlan(b"q", tuple(schemas), 1, tokens=held, fresh=True)
    transaction = store.begin_transaction(b"restoring", plan)
    for side in (b"_pk", b"_pv"):
        runs = StoredRuns.of(store.rows(b"p" + side, 0, 0, held).runs)
        fill(transaction.begin_stored(b"q" + side, 0, runs), np.frombuffer(parts(store, b"p" + side), "u1"))
    transaction.publish()
    for more in (0, 1, 170):
        for side in (b"_pk", b"_pv"):
            for name in (b"p", b"q") if more else ():
                fill(store.begin_write(name + side, 0, held, more), some_rows(more, 9))
            assert parts(store, b"q" + side) == parts(store, b"p" + side)
            same(read(store, b"q" + side, 0, held + more), read(store, b"p" + side, 0, held + more))
        held += more


@pytest.mark.parametrize(
    "runs", [StoredRuns(((32, 8),), 1), StoredRuns(((0, 0),), 9), StoredRuns(((0, 40),), -31)]
)
def test_rows_that_cannot_be_stored_so_are_refused(runs, driver) -> None:
    schema = Schema.uniform(LayerSpec("kivi4_keys", DIM))
    transaction = driver.store.begin_transaction(b"txn", PrefixPlan(b"q", (schema, schema), 1, tokens=9))
    with pytest.raises(BadRange):
        transaction.begin_stored(b"q_pk", 0, runs)
    transaction.abort()


def test_a_damaged_tail_or_group_is_a_miss(driver, open_store) -> None:
    for number, tail in enumerate((True, False)):
        found = open_store(name=f"damaged{number}")
        make(found.store)
        found.store.close()
        path = next(path for path in found.files if bool(int(path.name, 16) & 1 << 31) is tail)
        with path.open("r+b") as file:
            file.seek(4096)
            byte = file.read(1)[0]
            file.seek(4096)
            file.write(bytes([byte ^ 1]))
        again = open_store(name=f"damaged{number}")
        with pytest.raises(Quarantined):
            again.store.rows(b"p_pk", 0, 0, 300)


def test_a_budget_counts_what_is_coded(open_store) -> None:
    """A prefix that fits the budget only when it is coded is stored."""
    store, spec = open_store(StoreOptions(max_bytes=400_000)).store, LayerSpec("kivi2", 256)
    store.create_session(b"s", Schema.uniform(spec))
    with store.begin_write(b"s", 0, 0, 1600) as write:
        while (segment := write.next_segment()) is not None:
            segment[:] = bytes(len(segment))
        write.commit()
    assert store.info().bytes < 400_000 < 1600 * 512

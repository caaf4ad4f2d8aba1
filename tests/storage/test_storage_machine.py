"""The store against a model: any sequence of operations, with restarts in between, does what a dict would."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pionkv.kernels import LayerSpec
from pionkv.storage import Durability, Gap, NamespaceExists, RowsNotStored, Schema, Store, StoreOptions

ROW = 16
SCHEMA = Schema.uniform(LayerSpec("fp16", ROW // 2))
NAMES = st.sampled_from([b"a", b"b", b"c"])
SIDES = st.sampled_from([b"_pk", b"_pv"])
LAYERS = st.integers(0, 2)
COUNTS = st.sampled_from([1, 1, 1, 2, 3, 7, 40, 300])


class Model:
    """What is stored: of each session the rows of each layer, of each namespace its states."""

    def __init__(self):
        self.sessions = {}
        self.states = {}
        self.snapshots = {}

    def names(self):
        return sorted({sid[:-3] for sid in self.sessions} | set(self.states))

    def tokens(self, name):
        """Rows of a hit, 0 for states alone, None for a miss."""
        sides = [
            {layer: len(rows) for layer, rows in self.sessions.get(name + side, {}).items() if rows}
            for side in (b"_pk", b"_pv")
        ]
        if not any(sides):
            return 0 if self.states.get(name) else None
        counts = set(sides[0].values())
        return counts.pop() if sides[0] == sides[1] and len(counts) == 1 else None

    def drop(self, name):
        for side in (b"_pk", b"_pv"):
            self.sessions.pop(name + side, None)
        self.states.pop(name, None)
        self.snapshots = {key: value for key, value in self.snapshots.items() if key[0][:-3] != name}


class StoreMachine(RuleBasedStateMachine):
    @initialize(durability=st.sampled_from(list(Durability)))
    def start(self, durability):
        self.folder = Path(tempfile.mkdtemp())
        self.options = StoreOptions(durability=durability, max_maps=3, max_open_pages=3)
        self.store = Store.open(self.folder / "data", self.options)
        self.model = Model()
        self.views = []
        self.written = 0

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    def fresh(self, count):
        """Rows that were never stored before."""
        rows = [b"%016d" % number for number in range(self.written, self.written + count)]
        self.written += count
        return rows

    def put(self, sid, layer, start, rows, commit=True):
        data = memoryview(b"".join(rows))
        with self.store.begin_write(sid, layer, start, len(rows)) as write:
            while (segment := write.next_segment()) is not None:
                segment[:] = data[: len(segment)]
                data = data[len(segment) :]
            if commit:
                write.commit()

    @rule(name=NAMES)
    def register(self, name):
        self.store.register(name, SCHEMA, SCHEMA)
        for side in (b"_pk", b"_pv"):
            self.model.sessions.setdefault(name + side, {})

    @rule(name=NAMES, side=SIDES, layer=LAYERS, where=st.floats(0, 1), count=COUNTS, commit=st.booleans())
    def write(self, name, side, layer, where, count, commit):
        sid = name + side
        if sid not in self.model.sessions:
            self.store.create_session(sid, SCHEMA)
            self.model.sessions[sid] = {}
        held = self.model.sessions[sid].get(layer, [])
        start = len(held) if where > 0.4 else int(where * 2 * len(held))
        rows = self.fresh(count)
        self.put(sid, layer, start, rows, commit)
        if commit:
            held[start : start + count] = rows
            self.model.sessions[sid][layer] = held

    @rule(name=NAMES, layers=st.integers(1, 3), count=COUNTS)
    def whole_prefix(self, name, layers, count):
        self.register(name)
        for side in (b"_pk", b"_pv"):
            for layer in range(layers):
                rows = self.fresh(count)
                self.put(name + side, layer, 0, rows)
                held = self.model.sessions[name + side].setdefault(layer, [])
                held[:count] = rows

    @rule(name=NAMES, side=SIDES, layer=LAYERS)
    def gap(self, name, side, layer):
        rows = self.model.sessions.get(name + side)
        if rows is None:
            return
        try:
            self.store.begin_write(name + side, layer, len(rows.get(layer, [])) + 1, 1)
        except Gap as error:
            assert error.rows == len(rows.get(layer, []))
        else:
            raise AssertionError("a gap was accepted")

    @rule(name=NAMES, side=SIDES, layer=LAYERS)
    def hold_a_view(self, name, side, layer):
        held = self.model.sessions.get(name + side, {}).get(layer)
        if held:
            rows = self.store.rows(name + side, layer, 0, len(held))
            self.views.append((rows, b"".join(held)))

    @rule(name=NAMES, tokens=st.integers(0, 320))
    def truncate(self, name, tokens):
        if name not in self.model.names():
            return
        self.store.truncate(name, tokens)
        shorter = False
        for side in (b"_pk", b"_pv"):
            for held in self.model.sessions.get(name + side, {}).values():
                shorter |= len(held) > tokens
                del held[tokens:]
        if shorter:
            self.model.states.pop(name, None)
            self.forget_if_empty(name)

    def forget_if_empty(self, name):
        if not self.model.states.get(name):
            self.model.states.pop(name, None)

    @rule(name=NAMES, child=NAMES, tokens=st.none() | st.integers(0, 320))
    def fork(self, name, child, tokens):
        if name not in self.model.names():
            return
        try:
            self.store.fork(name, child, tokens)
        except NamespaceExists:
            assert child in self.model.names()
            return
        shorter = False
        for side in (b"_pk", b"_pv"):
            parent = self.model.sessions.get(name + side)
            if parent is not None:
                shorter |= any(tokens is not None and len(held) > tokens for held in parent.values())
                self.model.sessions[child + side] = {layer: held[:tokens] for layer, held in parent.items()}
        if not shorter and name in self.model.states:
            self.model.states[child] = dict(self.model.states[name])

    @rule(name=NAMES)
    def drop_namespace(self, name):
        known = name in self.model.names()
        assert self.store.drop_namespaces([name]) == (1 if known else 0)
        self.model.drop(name)

    @rule(name=NAMES, side=SIDES)
    def drop_session(self, name, side):
        sid = name + side
        assert self.store.drop_sessions([sid]) == (1 if sid in self.model.sessions else 0)
        self.model.sessions.pop(sid, None)
        self.model.snapshots = {key: value for key, value in self.model.snapshots.items() if key[0] != sid}

    @rule(name=NAMES, number=st.integers(0, 2), length=st.sampled_from([1, 5000]))
    def put_state(self, name, number, length):
        blob = (b"%d" % self.written).ljust(length, b"s")
        self.written += 1
        self.store.put_state(name, number, blob)
        self.model.states.setdefault(name, {})[number] = blob

    @rule(name=NAMES, number=st.none() | st.integers(0, 2))
    def drop_state(self, name, number):
        states = self.model.states.get(name, {})
        gone = [key for key in states if number in (None, key)]
        assert self.store.drop_states(name, number) == len(gone)
        for key in gone:
            del states[key]
        self.forget_if_empty(name)

    @rule(name=NAMES, side=SIDES)
    def take_snapshot(self, name, side):
        sid = name + side
        taken = [key for key in self.model.snapshots if key[0] == sid]
        if sid in self.model.sessions and len(taken) < self.options.max_snapshots:
            lengths = {layer: len(held) for layer, held in self.model.sessions[sid].items()}
            self.model.snapshots[sid, self.store.snapshot(sid)] = lengths

    @precondition(lambda self: self.model.snapshots)
    @rule(data=st.data())
    def restore_snapshot(self, data):
        sid, number = data.draw(st.sampled_from(sorted(self.model.snapshots)))
        self.store.restore(sid, number)
        lengths = self.model.snapshots[sid, number]
        shorter = False
        for layer, held in self.model.sessions[sid].items():
            shorter |= len(held) > lengths.get(layer, 0)
            del held[lengths.get(layer, 0) :]
        if shorter:
            self.model.states.pop(sid[:-3], None)

    @rule()
    def tick(self):
        self.store.tick()

    @rule(sync=st.booleans())
    def restart(self, sync):
        if sync:
            self.store.sync()
        self.store.close()
        self.store = Store.open(self.folder / "data", self.options)

    @invariant()
    def lookups_and_listings_agree(self):
        if not hasattr(self, "store"):
            return
        for name in (b"a", b"b", b"c"):
            view = self.store.lookup(name)
            assert (None if view is None else view.tokens) == self.model.tokens(name)
            assert self.store.states(name) == sorted(self.model.states.get(name, {}))
        assert [view.namespace for view in self.store.namespaces()] == self.model.names()
        assert [view.sid for view in self.store.sessions()] == sorted(self.model.sessions)

    @invariant()
    def rows_are_right_and_views_stay(self):
        if not hasattr(self, "store"):
            return
        for sid, layers in self.model.sessions.items():
            for layer, held in layers.items():
                if held:
                    assert b"".join(self.store.rows(sid, layer, 0, len(held)).parts) == b"".join(held)
                try:
                    found = self.store.rows(sid, layer, len(held), len(held) + 1)
                    assert found is None and not held
                except RowsNotStored:
                    assert held
        for name, states in self.model.states.items():
            for number, blob in states.items():
                assert self.store.state(name, number) == blob
        for rows, data in self.views:
            assert b"".join(rows.parts) == data

    @invariant()
    def nothing_leaks(self):
        if not hasattr(self, "store"):
            return
        info = self.store.info()
        assert info.rows == sum(len(held) for rows in self.model.sessions.values() for held in rows.values())
        named = {f"{page:016x}" for page in self.named_pages()}
        files = {path.name for path in (self.folder / "data" / "pages").iterdir()}
        assert named <= files and len(named) == info.pages
        if not self.model.sessions and not self.model.states:
            assert info.bytes == 0 and not named

    def named_pages(self):
        with self.store._engine.catalog.snapshot() as reader:
            return [int.from_bytes(key, "big") for key, _ in reader.scan("pages")]


StoreMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_the_store_does_what_a_dict_would = StoreMachine.TestCase

"""Plain keys against a model of dicts, the accounting of their bytes included; the test turns the clock."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pionkv.storage import Store
from pionkv.storage.keyspace import expiry, fields, generic, hashes, large, strings, zranges, zsets
from pionkv.storage.keyspace.entry import SHORT_VALUE, Kind, entry_cost, item_cost, short_cost
from pionkv.storage.keyspace.errors import WrongType
from pionkv.storage.keyspace.zsets import AddRules

NAMES = st.sampled_from([b"a", b"b", b"long" * 200])
FIELDS = st.integers(0, 6).map(lambda number: b"f%d" % number)
MANY = {b"f%d" % number: b"v" for number in range(100)}
"""More fields than go at once with their key."""
VALUES = st.one_of(
    st.binary(max_size=20),
    st.integers(1, 3).map(lambda size: b"v" * (size * 3000)),
    st.sampled_from([b"w" * large.LARGE_BYTES, b"x" * (large.LARGE_BYTES - 1), b"y" * 200_000]),
)
SCORES = st.integers(-50, 50).map(float)

Model = dict[bytes, tuple[object, int]]
"""Value (bytes, dict of bytes, dict of floats) and deadline of each key."""


class Keys(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.path = Path(tempfile.mkdtemp())
        self.now = 1_000.0
        self.store = Store.open(self.path, clock=lambda: self.now)
        self.space = self.store.keyspace
        self.model: Model = {}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.path)

    def held(self, name: bytes, kind: type, of: type = bytes) -> dict | bytes | None:
        """The model's value, or an empty one; None when the key holds another type."""
        value = self.model.get(name, (kind(), 0))[0]
        fits = isinstance(value, kind) and (
            not isinstance(value, dict) or isinstance(next(iter(value.values()), of()), of)
        )
        return value if fits else None

    def change(self, expected_type: bool, run):
        try:
            result = self.space.change(run)
        except WrongType:
            assert not expected_type
            return None
        assert expected_type
        return result

    def keep(self, name: bytes, value: object) -> None:
        if value or isinstance(value, bytes):
            self.model[name] = (value, self.model.get(name, (None, 0))[1])
        else:
            self.model.pop(name, None)

    @rule(name=NAMES, value=VALUES, seconds=st.sampled_from([0, 0, 5, 60]))
    def put(self, name: bytes, value: bytes, seconds: int) -> None:
        deadline = int((self.now + seconds) * 1000) if seconds else 0
        assert self.space.change(lambda keys: strings.put(keys, name, value, deadline=deadline))
        self.model[name] = (value, deadline)

    @rule(name=NAMES, value=VALUES)
    def put_large_or_refuse(self, name: bytes, value: bytes) -> None:
        if len(value) < large.LARGE_BYTES:
            return
        write = self.space.begin_large(name, len(value))
        write.fill(value)
        write.finish()
        rule = strings.Condition.IF_ABSENT
        done = self.space.change(lambda keys: strings.put(keys, name, write, condition=rule))
        write.abort()
        assert done is (name not in self.model)
        if done:
            self.model[name] = (value, 0)

    @rule(name=NAMES, tail=VALUES)
    def append(self, name: bytes, tail: bytes) -> None:
        old = self.held(name, bytes)
        length = self.change(old is not None, lambda keys: strings.append(keys, name, tail))
        if old is not None:
            assert length == len(old) + len(tail)
            self.keep(name, old + tail)

    @rule(name=NAMES, given=st.dictionaries(FIELDS, VALUES, min_size=1, max_size=4))
    def put_some_fields(self, name: bytes, given: dict[bytes, bytes]) -> None:
        self.put_fields(name, given)

    def put_fields(self, name: bytes, given: dict[bytes, bytes]) -> None:
        old = self.held(name, dict)
        new = self.change(old is not None, lambda keys: hashes.put(keys, name, given))
        if old is not None:
            assert new == len(given.keys() - old.keys())
            self.keep(name, old | given)

    @rule(name=NAMES)
    def put_many_fields(self, name: bytes) -> None:
        self.put_fields(name, MANY)

    @rule(name=NAMES, gone=st.lists(FIELDS, min_size=1, max_size=3))
    def delete_fields(self, name: bytes, gone: list[bytes]) -> None:
        old = self.held(name, dict)
        count = self.change(old is not None, lambda keys: hashes.delete(keys, name, gone))
        if old is not None:
            assert count == len(old.keys() & set(gone))
            self.keep(name, {field: old[field] for field in old.keys() - set(gone)})

    @rule(name=NAMES, given=st.lists(st.tuples(FIELDS, SCORES), min_size=1, max_size=6))
    def add_members(self, name: bytes, given: list[tuple[bytes, float]]) -> None:
        old = self.held(name, dict, float)
        added = self.change(old is not None, lambda keys: zsets.add(keys, name, given, AddRules()))
        if old is not None:
            assert added.new == len(dict(given).keys() - old.keys())
            self.keep(name, old | dict(given))

    @rule(name=NAMES, start=st.integers(-5, 5), stop=st.integers(-5, 40), reverse=st.booleans())
    def remove_members(self, name: bytes, start: int, stop: int, reverse: bool) -> None:
        old = self.held(name, dict, float)
        gone = self.change(
            old is not None, lambda keys: zranges.remove_by_index(keys, name, start, stop, reverse=reverse)
        )
        if old is not None:
            order = sorted(old.items(), key=lambda item: (item[1], item[0]), reverse=reverse)
            end = stop + len(order) if stop < 0 else stop
            expected = order[max(start + len(order), 0) if start < 0 else start : max(end + 1, 0)]
            assert gone == expected
            self.keep(name, dict(item for item in order if item not in expected))

    @rule(name=NAMES, to=NAMES, replace=st.booleans())
    def copy(self, name: bytes, to: bytes, replace: bool) -> None:
        if name == to:
            return
        done = self.space.change(lambda keys: generic.copy(keys, name, to, replace=replace))
        assert done is (name in self.model and (replace or to not in self.model))
        if done:
            self.model[to] = self.model[name]

    @rule(name=NAMES, to=NAMES)
    def rename(self, name: bytes, to: bytes) -> None:
        if name in self.model:
            self.space.change(lambda keys: generic.rename(keys, name, to))
            self.model[to] = self.model.pop(name)

    @rule(names=st.lists(NAMES, max_size=3, unique=True))
    def delete(self, names: list[bytes]) -> None:
        gone = self.space.change(lambda keys: generic.delete(keys, names))
        assert gone == sum(self.model.pop(name, None) is not None for name in names)

    @rule(name=NAMES, seconds=st.sampled_from([-1, 5, 60]))
    def expire(self, name: bytes, seconds: int) -> None:
        at = int((self.now + seconds) * 1000)
        assert self.space.change(lambda keys: expiry.expire(keys, name, at)) is (name in self.model)
        if name in self.model:
            self.model[name] = (self.model[name][0], at)
            self.let_end()

    @rule(seconds=st.sampled_from([1, 5, 30]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.let_end()

    @rule()
    def tick(self) -> None:
        self.store.tick()

    @rule()
    def flush(self) -> None:
        self.space.change(generic.flush)
        self.model.clear()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.path, clock=lambda: self.now)
        self.space = self.store.keyspace

    def let_end(self) -> None:
        now = int(self.now * 1000)
        self.model = {name: item for name, item in self.model.items() if not 0 < item[1] <= now}

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.space.read(_contents) == self.model

    @invariant()
    def accounts_for_every_byte(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.space.info().bytes == self.space.read(_cost_of_everything)


def _contents(keys) -> Model:
    found: Model = {}
    for entry in generic.entries(keys):
        if entry.kind is Kind.STRING:
            value: object = bytes(strings.load(keys, entry))
        elif entry.kind is Kind.HASH:
            value = dict(fields.items(keys, entry))
        else:
            value = dict(zranges.by_index(keys, entry.name, 0, -1))
            assert value == {member: zsets.read_score(raw) for member, raw in fields.items(keys, entry)}
        assert entry.count == len(value)
        found[entry.name] = (value, entry.deadline)
    return found


def _cost_of_everything(keys) -> int:
    """Every key that has not been swept, from the lengths of what it holds."""
    total = 0
    for _, raw in list(keys.records()):
        entry = generic.Entry.decode(raw)
        total += entry_cost(entry.name)
        if entry.kind is Kind.STRING:
            apart = large.RECORD_BYTES if large.is_large(entry) else entry.count
            short = entry.count <= SHORT_VALUE
            total += short_cost(entry.name, entry.count) if short else item_cost(8, apart)
        elif entry.kind is Kind.HASH:
            total += sum(fields.cost(field, value) for field, value in fields.items(keys, entry))
        else:
            total += sum(zsets.cost(member) for member, _ in fields.items(keys, entry))
    return total


Keys.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, database=None)
TestKeys = Keys.TestCase

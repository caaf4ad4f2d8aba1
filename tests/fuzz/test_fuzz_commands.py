"""Any sequence of commands over a real socket does what a dict of numpy arrays would, also across crashes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pionkv.kernels import Element, LayerSpec, pack, unpack
from wire import ErrorReply, Wire

PREFIX, SIDES = "p", ("p_pk", "p_pv")
NAMES = st.sampled_from(("a", "b", *SIDES))
SINGLE = st.sampled_from(("a", "b"))
SPECS = st.sampled_from(
    [(32, "fp32"), (32, "fp16"), (64, "fp16"), (32, "bf16"), (32, "int8"), (64, "mlx4g32")]
)
LAYERS = st.sampled_from([0, 0, 1, 1, 2])
COUNTS = st.sampled_from([1, 2, 5, 40])
ELEMENTS = st.sampled_from(["", "F32", "F16", "BF16", "RAW"])
FORMS = st.sampled_from(["", "F32", "F16", "NATIVE", "RAW"])
PLACES = st.integers(0, 1 << 16)
"""Taken modulo what is held, and a little more, so that most are within."""


class Session:
    """Layer number to packed rows, one numpy row each; and the lengths at each snapshot."""

    def __init__(self, dim: int, format: str) -> None:
        self.spec = LayerSpec(format, dim)
        self.layers: dict[int, np.ndarray] = {}
        self.snapshots: dict[int, dict[int, int]] = {}

    def held(self, layer: int) -> np.ndarray:
        return self.layers.get(layer, np.empty((0, self.spec.row_bytes), np.uint8))

    def lengths(self) -> dict[int, int]:
        return {layer: len(rows) for layer, rows in self.layers.items() if len(rows)}


class CommandMachine(RuleBasedStateMachine):
    """Sends a command, and asks the model what the reply must be."""

    server = None
    crashes = False

    def __init__(self) -> None:
        super().__init__()
        self.wire = Wire(self.server.port)
        self.sessions: dict[str, Session] = {}
        self.states: dict[int, bytes] = {}
        self.random = np.random.default_rng(1)
        self.crashed = False

    def teardown(self) -> None:
        self.wire.ok("V.DROP", "a", "b")
        self.wire.ok("KV.PREFIX.DROP", PREFIX)
        self.wire.close()

    @initialize(single=SPECS, pair=SPECS, count=COUNTS)
    def begin(self, single, pair, count) -> None:
        """Something to work on, since random steps would seldom meet."""
        self.create("a", single)
        self.register(pair)
        for name in ("a", *SIDES):
            for layer in range(2):
                self.store(name, layer, 0, count, "")

    def refused(self, text: str, *command) -> None:
        reply = self.wire.command(*command)
        assert isinstance(reply, ErrorReply) and text in str(reply), reply

    @rule(name=SINGLE, spec=SPECS)
    def create(self, name, spec) -> None:
        command = ("V.CREATE", name, spec[0], "VQUANT", spec[1])
        if name in self.sessions and self.sessions[name].spec != LayerSpec(spec[1], spec[0]):
            self.refused("SCHEMAMISMATCH", *command)
            return
        assert self.wire.ok(*command) >= 0
        self.sessions.setdefault(name, Session(*spec))

    @rule(spec=SPECS)
    def register(self, spec) -> None:
        command = ("KV.PREFIX.REGISTER", PREFIX, *spec)
        if SIDES[0] in self.sessions and self.sessions[SIDES[0]].spec != LayerSpec(spec[1], spec[0]):
            self.refused("SCHEMAMISMATCH", *command)
            return
        assert self.wire.ok(*command) == b"OK"
        for side in SIDES:
            self.sessions.setdefault(side, Session(*spec))

    @rule(name=NAMES, layer=LAYERS, where=PLACES, count=COUNTS, element=ELEMENTS)
    def store(self, name, layer, where, count, element) -> None:
        session = self.sessions.get(name, Session(32, "fp16"))
        blob, packed = self.rows(session.spec, count, element)
        held = session.held(layer)
        start = where % (len(held) + 2)
        command = ("V.STOREBATCH", name, layer, start, count, blob, *(("FMT", element) if element else ()))
        if name not in self.sessions:
            self.refused("session not found", *command)
        elif start > len(held):
            self.refused(f"gap (layer holds {len(held)} rows, start is {start})", *command)
        else:
            assert self.wire.ok(*command) == b"OK"
            grown = np.zeros((max(len(held), start + count), session.spec.row_bytes), np.uint8)
            grown[: len(held)], grown[start : start + count] = held, packed
            session.layers[layer] = grown

    def rows(self, spec, count, element) -> tuple[bytes, np.ndarray]:
        """New rows as they are sent, and as the oracle stores them."""
        values = self.random.standard_normal((count, spec.dim), np.float32)
        kind = Element[element] if element not in ("", "RAW") else Element.F32
        sent = {Element.F32: values, Element.F16: values.astype(np.float16)}.get(kind)
        if sent is None:
            sent = (values.view(np.uint32) >> 16).astype(np.uint16)
        packed = np.zeros((count, spec.row_bytes), np.uint8)
        pack(spec, np.ascontiguousarray(sent), kind, count, packed, backend="oracle")
        return packed.tobytes() if element == "RAW" else sent.tobytes(), packed

    def fetched(self, spec, packed, form) -> bytes:
        """What rows look like in a reply."""
        if form == "RAW" or (form == "NATIVE" and spec.format == "fp16"):
            return packed.tobytes()
        kind = Element.F16 if form == "F16" else Element.F32
        out = np.zeros((len(packed), spec.dim * kind.itemsize), np.uint8)
        unpack(spec, np.ascontiguousarray(packed), len(packed), kind, out, backend="oracle")
        return out.tobytes()

    @rule(name=NAMES, layer=LAYERS, where=PLACES, count=PLACES, form=FORMS)
    def fetch_range(self, name, layer, where, count, form) -> None:
        rows = len(self.sessions[name].held(layer)) if name in self.sessions else 0
        start = where % (rows + 1)
        end = start + 1 + count % (rows - start + 1)
        command = ("V.FETCH", name, layer, "RANGE", start, end, *(("FMT", form) if form else ()))
        if name not in self.sessions:
            self.refused("session not found", *command)
            return
        session = self.sessions[name]
        held = session.held(layer)
        if not len(held):
            assert self.wire.ok(*command) is None
        elif end > len(held):
            self.refused(f"of layer {layer} are not stored (layer holds {len(held)})", *command)
        else:
            assert self.wire.ok(*command) == self.fetched(session.spec, held[start:end], form)

    @rule(name=NAMES, layer=LAYERS, places=st.lists(PLACES, min_size=1, max_size=5), beyond=st.booleans())
    def fetch_ids(self, name, layer, places, beyond) -> None:
        if name not in self.sessions:
            return
        session = self.sessions[name]
        held = session.held(layer)
        ids = [place % (len(held) + beyond or 1) for place in places]
        command = ("V.FETCH", name, layer, *ids)
        if not len(held):
            assert self.wire.ok(*command) is None
        elif max(ids) >= len(held):
            self.refused("are not stored", *command)
        else:
            assert self.wire.ok(*command) == self.fetched(session.spec, held[ids], "")

    @rule(name=NAMES, end=COUNTS, form=FORMS)
    def fetch_batch(self, name, end, form) -> None:
        if name not in self.sessions or not self.sessions[name].layers:
            return
        session = self.sessions[name]
        command = ("V.FETCH", name, "BATCH", 0, end, 3, *(("FMT", form) if form else ()))
        if any(0 < len(session.held(layer)) < end for layer in range(3)):
            self.refused("are not stored", *command)
            return
        layers = [session.held(layer)[:end] for layer in range(3)]
        assert self.wire.ok(*command) == [
            self.fetched(session.spec, rows, form) if len(rows) else None for rows in layers
        ]

    @rule(name=NAMES)
    def info(self, name) -> None:
        if name not in self.sessions:
            self.refused("session not found", "V.INFO", name)
            return
        lines = self.wire.ok("V.INFO", name).decode().splitlines()
        told = {line for line in lines if line.endswith(tuple("0123456789")) and "_tokens:" in line}
        lengths = self.sessions[name].lengths()
        expected = {f"layer_{layer}_tokens:{count}" for layer, count in lengths.items()}
        assert told == expected | {f"total_tokens:{sum(lengths.values())}"}

    @property
    def is_hit(self) -> bool:
        keys, values = (self.sessions[side].lengths() if side in self.sessions else {} for side in SIDES)
        rows_agree = bool(keys) and keys == values and len(set(keys.values())) == 1
        return rows_agree or (not keys and not values and bool(self.states))

    @rule()
    def lookup(self) -> None:
        assert self.wire.ok("KV.PREFIX.LOOKUP", PREFIX) == (b"HIT" if self.is_hit else b"MISS")

    @rule()
    def explain(self) -> None:
        """Why, the rows of the sides, and who is listed: nothing but what there is."""
        told = self.wire.ok("KV.PREFIX.EXPLAIN", PREFIX)
        found = dict(zip(told[::2], told[1::2], strict=True))
        assert found[b"answer"] == (b"HIT" if self.is_hit else b"MISS")
        there = SIDES[0] in self.sessions or bool(self.states)
        assert (found[b"reason"] in (b"absent", b"dropped")) == (not there)
        assert self.wire.ok("KV.PREFIX.LIST") == ([PREFIX.encode()] if there else [])
        if there:
            assert found[b"states"] == len(self.states)
        if SIDES[0] in self.sessions:
            both = set.intersection(*(set(self.sessions[side].lengths()) for side in SIDES))
            assert self.wire.ok("KV.PREFIX.WARM", PREFIX) == b"%d" % len(both)

    @rule(layer=LAYERS, length=st.sampled_from([1, 100, 70_000]))
    def store_state(self, layer, length) -> None:
        blob = self.random.bytes(length)
        assert self.wire.ok("SSM.PREFIX.STORE", PREFIX, layer, blob) == b"OK"
        self.states[layer] = blob

    @rule(layer=LAYERS)
    def fetch_state(self, layer) -> None:
        assert self.wire.ok("SSM.PREFIX.FETCH", PREFIX, layer) == self.states.get(layer)

    @rule(layer=st.none() | LAYERS)
    def drop_state(self, layer) -> None:
        assert self.wire.ok("SSM.PREFIX.DROP", PREFIX, *(() if layer is None else (layer,))) == b"OK"
        self.states = {} if layer is None else {n: blob for n, blob in self.states.items() if n != layer}

    @rule(name=NAMES)
    def snapshot(self, name) -> None:
        if name in self.sessions and len(self.sessions[name].snapshots) < 16:
            number = self.wire.ok("V.SNAPSHOT", name)
            self.sessions[name].snapshots[number] = self.sessions[name].lengths()

    @rule(name=NAMES, data=st.data())
    def restore(self, name, data) -> None:
        session = self.sessions.get(name)
        if session is None or not session.snapshots:
            return
        number = data.draw(st.sampled_from(sorted(session.snapshots)))
        assert self.wire.ok("V.RESTORE", name, number) == b"OK"
        before = session.lengths()
        lengths = session.snapshots[number]
        session.layers = {layer: rows[: lengths.get(layer, 0)] for layer, rows in session.layers.items()}
        if name in SIDES and session.lengths() != before:
            self.states = {}  # a state belongs to the end of its prefix
        self.info(name)

    @rule(name=NAMES, data=st.data())
    def commit(self, name, data) -> None:
        session = self.sessions.get(name)
        if session is None:
            return
        number = data.draw(st.sampled_from([*sorted(session.snapshots), 1 << 40]))
        known = session.snapshots.pop(number, None) is not None
        assert self.wire.ok("V.COMMIT", name, number) == int(known)

    @rule(names=st.lists(SINGLE, min_size=1, max_size=3))
    def drop(self, names) -> None:
        assert self.wire.ok("V.DROP", *names) == len(set(names) & set(self.sessions))
        for name in names:
            self.sessions.pop(name, None)

    @rule()
    def drop_prefix(self) -> None:
        known = SIDES[0] in self.sessions or bool(self.states)
        assert self.wire.ok("KV.PREFIX.DROP", PREFIX, "nobody") == int(known)
        self.states = {}
        for side in SIDES:
            self.sessions.pop(side, None)

    @precondition(lambda self: self.crashes and not self.crashed and self.sessions)
    @rule()
    def crash(self) -> None:
        """Everything that was acknowledged is there afterwards."""
        self.crashed = True
        self.wire.close()
        self.server.restart(crash=True)
        self.wire = Wire(self.server.port)


@pytest.mark.parametrize("crashes, examples", [(False, 60), (True, 5)], ids=["one life", "crashes"])
def test_commands_against_a_model(crashes, examples, fuzzed_server) -> None:
    machine = type("Machine", (CommandMachine,), {"server": fuzzed_server, "crashes": crashes})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

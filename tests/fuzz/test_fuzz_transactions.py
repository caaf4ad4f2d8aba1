"""Any sequence of transactions and transitions, by several clients of two servers on one directory, does what
a dict would: also when clients leave and when a server is killed in between.

Every row holds a number of its own, so a row that is foreign, old or missing cannot be taken for another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from server_process import ServerProcess
from wire import ErrorReply, Wire

DIM, LAYERS, SIDES = 32, 2, ("k", "v")
ROW_BYTES = DIM * 4
LAST = np.float32(15)
"""The greatest code of four bits: values of 0 and this are coded without an error, whatever the group."""
PLACES = tuple(product(range(LAYERS), SIDES))
NAMES = st.sampled_from(("a", "b", "c"))
PEERS = st.integers(0, 3)
"""Two clients of each server."""
COUNTS = st.sampled_from((1, 2, 5, 30, 170))
ANY = st.integers(0, 1 << 16)
"""Taken modulo what is there."""

Rows = dict[tuple[int, str], list[int]]


def no_rows() -> Rows:
    return {place: [] for place in PLACES}


def blob(numbers: list[int]) -> bytes:
    """Rows whose elements are the bits of their numbers."""
    bits = np.array(numbers, np.uint32)[:, None] >> np.arange(DIM, dtype=np.uint32) & 1
    return (bits * LAST).astype(np.float32).tobytes()


@dataclass
class Prefix:
    """Rows of each place, and how often they have changed."""

    rows: Rows = field(default_factory=no_rows)
    version: int = 0

    @property
    def layers(self) -> set[int]:
        return {layer for (layer, _), rows in self.rows.items() if rows}

    @property
    def tokens(self) -> int | None:
        """Rows of all stored layers; None when they do not agree."""
        counts = {len(self.rows[layer, side]) for layer in self.layers for side in SIDES}
        return 0 if not counts else counts.pop() if len(counts) == 1 else None


@dataclass
class Open:
    """A transaction as its client sees it."""

    id: bytes
    peer: int
    name: str
    version: int | None
    base: Rows
    parent: str | None
    added: Rows = field(default_factory=no_rows)
    dead: bool = False

    def length(self, place: tuple[int, str]) -> int:
        return len(self.base[place]) + len(self.added[place])


class TransactionMachine(RuleBasedStateMachine):
    """Sends a command, and asks the model what the reply must be."""

    servers: tuple[ServerProcess, ServerProcess]
    crashes = False
    format = "fp32"
    """Formats that close groups refuse to overwrite some of their rows; a parent that closes one is stale."""

    def __init__(self) -> None:
        super().__init__()
        self.prefixes: dict[str, Prefix] = {}
        self.open: list[Open] = []
        self.receipts: list[tuple[bytes, object, str, int, Rows]] = []
        self.number = 0
        self.changes = 0
        self.closable: set[int] = set()
        self.crashed = False
        self.peers = [self.connect(peer) for peer in range(4)]
        # What an example that failed has left.
        self.peers[0].ok("KV.PREFIX.DROP", "a", "b", "c")

    def connect(self, peer: int) -> Wire:
        return Wire(self.servers[peer % 2].port)

    def teardown(self) -> None:
        try:
            for name in "abc":
                for peer in (0, 1):
                    self.check(name, peer)
        finally:
            for wire in self.peers:
                wire.close()
        for server in self.servers:
            with Wire(server.port) as wire:
                wire.ok("KV.PREFIX.DROP", "a", "b", "c")
                while self.ledger(wire, "workspace_bytes"):
                    pass
                assert self.ledger(wire, "accounted_bytes") == 0
        for server in self.servers:
            assert list((server.data_dir / "pages").iterdir()) == []

    def ledger(self, wire: Wire, name: str) -> int:
        lines = wire.ok("V.LEDGER").decode().split()
        return int(dict(line.split(":") for line in lines)[name])

    # What the model knows

    def fresh(self, count: int) -> list[int]:
        self.number += count
        return list(range(self.number - count, self.number))

    def moved(self, name: str) -> None:
        self.changes += 1
        self.prefixes[name].version = self.changes
        for rows in self.prefixes[name].rows.values():
            # Of 160 rows and more all but the newest 128 may be in closed groups, and stay there when cut.
            if len(rows) >= 160:
                self.closable.update(rows[:-128])

    def version(self, name: str) -> int | None:
        return self.prefixes[name].version if name in self.prefixes else None

    def refused(self, code: str, peer: int, *command: object) -> None:
        reply = self.peers[peer].command(*command)
        assert isinstance(reply, ErrorReply) and str(reply).split()[0] == code, (command, reply)

    @property
    def grouped(self) -> bool:
        return self.format.startswith("kivi")

    def is_busy(self, peer: int, name: str) -> bool:
        """Whether this client has a transaction open on the prefix."""
        return any(txn.peer == peer and txn.name == name and not txn.dead for txn in self.open)

    def pick(self, items: list, number: int):
        return items[number % len(items)]

    # Transactions

    @rule(name=NAMES, peer=PEERS, parent=st.none() | NAMES, cut=ANY)
    def begin(self, name, peer, parent, cut) -> None:
        source = self.prefixes.get(name if parent is None else parent)
        held = source.tokens if source is not None else 0
        tokens = cut % ((held or 0) + 2) if parent is not None else held
        options = () if parent is None else ("FROM", parent, tokens)
        command = ("KV.PREFIX.BEGIN", name, "KV", DIM, self.format, "LAYERS", LAYERS, *options)
        impossible = (
            self.is_busy(peer, name),
            parent is not None and source is None,
            held is None and (parent is None or tokens),
            tokens and held is not None and tokens > held,
        )
        code = "ERR" if any(impossible) else ""
        if not code and tokens and source.layers != set(range(LAYERS)):
            code = "SCHEMAMISMATCH"
        if code:
            self.refused(code, peer, *command)
        else:
            base = {place: source.rows[place][:tokens] if tokens else [] for place in PLACES}
            txn = self.peers[peer].ok(*command)
            self.open.append(Open(txn, peer, name, self.version(name), base, parent))

    @precondition(lambda self: self.open)
    @rule(which=ANY, count=COUNTS)
    def prepare_all(self, which, count) -> None:
        txn = self.pick(self.open, which)
        for place in PLACES:
            self.prepare(txn, place, txn.length(place), count)

    @precondition(lambda self: self.open)
    @rule(which=ANY, place=st.sampled_from(PLACES), shift=st.sampled_from((0, 0, 0, -1, 1)), count=COUNTS)
    def prepare_one(self, which, place, shift, count) -> None:
        txn = self.pick(self.open, which)
        self.prepare(txn, place, max(0, txn.length(place) + shift), count)

    def prepare(self, txn: Open, place, start: int, count: int) -> None:
        layer, side = place
        rows = self.fresh(count)
        sid = f"{txn.name}_p{side}"
        command = ("V.STOREBATCH", sid, layer, start, count, blob(rows), "TXN", txn.id)
        if txn.dead:
            self.refused("TXNDEAD", txn.peer, *command)
        elif start != txn.length(place):
            self.refused("ERR", txn.peer, *command)
            txn.dead = True
        else:
            assert self.peers[txn.peer].ok(*command) == b"OK"
            txn.added[place] += rows

    @precondition(lambda self: self.open)
    @rule(which=ANY)
    def publish(self, which) -> None:
        txn = self.pick(self.open, which)
        command = ("KV.PREFIX.PUBLISH", txn.id)
        lengths = {txn.length(place) for place in PLACES}
        grown = any(txn.added.values())
        if txn.dead:
            self.refused("TXNDEAD", txn.peer, *command)
        elif len(lengths) > 1 or lengths == {0} or (txn.parent is None and not grown):
            self.refused("ERR", txn.peer, *command)
        elif txn.version != self.version(txn.name):
            self.refused("STALE", txn.peer, *command)
            txn.dead = True
        elif not self.parent_is_there(txn):
            reply = self.peers[txn.peer].command(*command)
            assert isinstance(reply, ErrorReply), reply
            txn.dead = True
        else:
            receipt = self.peers[txn.peer].command(*command)
            if isinstance(receipt, ErrorReply):
                assert self.grouped and txn.parent is not None and str(receipt).startswith("STALE"), receipt
                txn.dead = True
                return
            self.open.remove(txn)
            rows = {place: txn.base[place] + txn.added[place] for place in PLACES}
            self.prefixes[txn.name] = Prefix(rows)
            self.moved(txn.name)
            assert receipt[0] == txn.name.encode() and receipt[2] == lengths.pop()
            self.receipts.append((txn.id, receipt, txn.name, self.version(txn.name), rows))

    def parent_is_there(self, txn: Open) -> bool:
        """Whether the rows that a transaction began with are still those of its parent."""
        if txn.parent is None:
            return True
        parent = self.prefixes.get(txn.parent)
        tokens = len(txn.base[PLACES[0]])
        if parent is None:
            return False
        if not tokens:
            return True
        even = parent.tokens is not None and parent.tokens >= tokens
        return even and all(parent.rows[place][:tokens] == txn.base[place] for place in PLACES)

    @precondition(lambda self: self.receipts)
    @rule(which=ANY, peer=PEERS)
    def publish_again(self, which, peer) -> None:
        txn, receipt, *_ = self.pick(self.receipts, which)
        assert self.peers[peer].ok("KV.PREFIX.PUBLISH", txn) == receipt

    @precondition(lambda self: self.receipts)
    @rule(which=ANY, peer=PEERS)
    def read_at(self, which, peer) -> None:
        _, receipt, name, version, rows = self.pick(self.receipts, which)
        command = ("V.FETCHALL", f"{name}_pk", f"{name}_pv", 0, receipt[2], "AT", receipt[1])
        if version == self.version(name):
            assert self.peers[peer].ok(*command) == [blob(rows[place]) for place in PLACES]
        else:
            self.refused("STALE", peer, *command)
            self.refused("STALE", peer, "KV.PREFIX.LOOKUP", name, "AT", receipt[1])

    @precondition(lambda self: self.open)
    @rule(which=ANY)
    def abort(self, which) -> None:
        txn = self.pick(self.open, which)
        assert self.peers[txn.peer].ok("KV.PREFIX.ABORT", txn.id) == b"OK"
        self.open.remove(txn)
        self.refused("NOTXN", txn.peer, "KV.PREFIX.PUBLISH", txn.id)

    @rule(peer=PEERS)
    def leave_and_come_back(self, peer) -> None:
        self.peers[peer].close()
        self.peers[peer] = self.connect(peer)
        self.open = [txn for txn in self.open if txn.peer != peer]

    # Transitions

    @rule(name=NAMES, peer=PEERS, place=st.sampled_from(PLACES), where=ANY, count=COUNTS)
    def store(self, name, peer, place, where, count) -> None:
        layer, side = place
        if name not in self.prefixes:
            assert self.peers[peer].ok("KV.PREFIX.REGISTER", name, DIM, self.format) == b"OK"
            self.prefixes[name] = Prefix()
            self.moved(name)
        rows = self.fresh(count)
        held = self.prefixes[name].rows[place]
        start = where % (len(held) + 1)
        command = ("V.STOREBATCH", f"{name}_p{side}", layer, start, count, blob(rows))
        if self.is_busy(peer, name):
            self.refused("ERR", peer, *command)
        else:
            reply = self.peers[peer].command(*command)
            if isinstance(reply, ErrorReply) and "closed groups" in str(reply):
                assert (
                    self.grouped and start + count < len(held) and not self.closable.isdisjoint(held[start:])
                )
                return
            assert reply == b"OK", reply
            held[start : start + count] = rows
            self.moved(name)

    @rule(name=NAMES, peer=PEERS, where=ANY)
    def truncate(self, name, peer, where) -> None:
        prefix = self.prefixes.get(name)
        longest = max(map(len, prefix.rows.values())) if prefix is not None else 0
        tokens = where % (longest + 1)
        if prefix is None:
            self.refused("ERR", peer, "KV.PREFIX.TRUNCATE", name, tokens)
            return
        assert self.peers[peer].ok("KV.PREFIX.TRUNCATE", name, tokens) > 0
        prefix.rows = {place: rows[:tokens] for place, rows in prefix.rows.items()}
        if tokens < longest:
            self.moved(name)

    @rule(name=NAMES, child=NAMES, peer=PEERS, where=st.none() | ANY)
    def fork(self, name, child, peer, where) -> None:
        prefix = self.prefixes.get(name)
        longest = max(map(len, prefix.rows.values())) if prefix is not None else 0
        tokens = None if where is None else where % (longest + 2)
        command = ("KV.PREFIX.FORK", name, child, *(() if tokens is None else (tokens,)))
        if prefix is None or child in self.prefixes:
            self.refused("ERR", peer, *command)
            return
        assert self.peers[peer].ok(*command) > 0
        self.prefixes[child] = Prefix({place: rows[:tokens] for place, rows in prefix.rows.items()})
        self.moved(child)

    @rule(peer=PEERS, places=st.lists(st.integers(0, 2), min_size=3, max_size=3))
    def reorder(self, peer, places) -> None:
        names = [name for name in "abc" if name in self.prefixes]
        if not names:
            return
        order = [place % len(names) for place in places[: len(names)]]
        sids = [f"{name}_p{side}" for side in SIDES for name in names]
        both = [*order, *(len(names) + place for place in order)]
        assert self.peers[peer].ok("V.REORDER", *sids, ",".join(map(str, both))) > 0
        before = {name: self.prefixes[name].rows for name in names}
        for name, place in zip(names, order, strict=True):
            if names[place] != name:
                self.prefixes[name].rows = {key: list(rows) for key, rows in before[names[place]].items()}
                self.moved(name)

    @rule(name=NAMES, peer=PEERS)
    def drop(self, name, peer) -> None:
        assert self.peers[peer].ok("KV.PREFIX.DROP", name) == (name in self.prefixes)
        self.prefixes.pop(name, None)

    # Looking

    @rule(name=NAMES, peer=PEERS)
    def check(self, name, peer) -> None:
        """Every row, and whether it is a hit, as one client of one server sees it."""
        wire, prefix = self.peers[peer], self.prefixes.get(name)
        hit = prefix is not None and bool(prefix.tokens)
        assert wire.ok("KV.PREFIX.LOOKUP", name) == (b"HIT" if hit else b"MISS")
        if prefix is None:
            self.refused("ERR", peer, "V.INFO", f"{name}_pk")
            return
        for (layer, side), rows in prefix.rows.items():
            sid = f"{name}_p{side}"
            if rows:
                self.refused("ERR", peer, "V.FETCH", sid, layer, "RANGE", 0, len(rows) + 1)
            found = wire.ok("V.FETCH", sid, layer, "RANGE", 0, max(1, len(rows)))
            assert found == (blob(rows) if rows else None)
        checked = wire.ok("KV.PREFIX.VERIFY", name)
        assert self.grouped or checked == sum(map(len, prefix.rows.values())) * ROW_BYTES

    @precondition(lambda self: self.crashes and not self.crashed and self.open)
    @rule(which=st.integers(0, 1))
    def kill(self, which) -> None:
        """Its transactions are gone with it; what was published is not, and the other goes on."""
        self.crashed = True
        self.servers[which].restart(crash=True)
        for peer in (which, which + 2):
            self.leave_and_come_back(peer)


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "data"
    servers = ServerProcess(folder), ServerProcess(folder)
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.close()


@pytest.mark.parametrize(
    "format, crashes, examples",
    [("fp32", False, 40), ("fp32", True, 5), ("kivi4", False, 15), ("kivi4", True, 3)],
    ids=["alive", "killed", "groups-alive", "groups-killed"],
)
def test_transactions_do_what_the_model_does(format, crashes, examples, two_servers) -> None:
    """R1-R23, over sockets and across processes."""
    settled = {"servers": two_servers, "crashes": crashes, "format": format}
    machine = type("Machine", (TransactionMachine,), settled)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

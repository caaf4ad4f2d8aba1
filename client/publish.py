"""Publish a prefix in a store, on an open lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from . import requests
from .deadline import Deadline
from .errors import BadReply, NotStored, ServerRefused
from .identity import BLOCK_SIZE, token_table
from .lane import Lane
from .requests import Found, Name
from .shape import Shape, runs

KEYS, VALUES = 0, 1
SIDES = (KEYS, VALUES)


class Source(Protocol):
    """The rows and states of a prefix.

    Attributes:
        first: The first row that it has.
    """

    first: int

    def width(self, side: int, layer: int) -> int:
        """Bytes of one row as it is sent."""

    def rows(self, side: int, layer: int, start: int, end: int) -> tuple[memoryview, str]:
        """Rows `start` to `end - 1` as they are sent, and the name of their element type."""

    def state(self, index: int) -> memoryview:
        """The cache with this index in the model, as bytes."""


class Filled(Source, Protocol):
    """Caches that hold a prefix, with all its rows.

    Attributes:
        shape: What they look like.
        tokens: How many tokens they hold.
    """

    shape: Shape
    tokens: int

    def row_bytes(self, first: int) -> int:
        """Bytes of the rows from `first` on."""

    def snapshot(self, first: int) -> Copy:
        """A copy of the rows from `first` on, and of the states."""


class Copy(Source, Protocol):
    """What shares no memory with the caches that it was taken from."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""


def publish(
    lane: Lane,
    deadline: Deadline,
    namespace: Name,
    shape: Shape,
    source: Source,
    ids: Sequence[int],
    prefill_ms: int,
    model: str | None = None,
) -> int:
    """Store the tokens `ids` under a name that somebody chose; others may have stored rows there before.

    The source has all rows. All states go before all
    keys, and all keys before all values: a server calls a prefix stored when both sides hold the same layers,
    so it does not do so before the last layer has arrived.

    Returns:
        The number of runs of rows, and states, stored.

    Raises:
        ServerRefused: The server has another schema under the name, no room, or does not take a value.
        StoreError: The server answered nonsense, or is not available.
    """
    plan, table = shape.plan, token_table(ids)
    blocks = None if table is None else (BLOCK_SIZE, table)
    command = requests.register(namespace, plan.uniform or plan.keys, plan.values, prefill_ms, blocks, model)
    lane.send(command, deadline)
    lane.receive(deadline)
    stored = _store_states(lane, deadline, namespace, shape, source)
    stored += _store_rows(lane, deadline, namespace, shape, source, 0, len(ids))
    _receive_all(lane, deadline)
    return stored


def publish_tokens(
    lane: Lane,
    deadline: Deadline,
    namespace: Name,
    shape: Shape,
    source: Source,
    ids: Sequence[int],
    prefill_ms: int,
    model: str,
    parent: Found | None,
) -> int:
    """Store the tokens `ids` under the name that stands for them: all at once, and what `parent` has shared.

    Args:
        lane: The lane.
        deadline: Bounds all of it.
        namespace: The name.
        shape: What the model's caches look like.
        source: Its rows and states.
        ids: The tokens.
        prefill_ms: What it takes to compute them.
        model: The model's digest.
        parent: A stored prefix whose rows are not sent again, if it is still there.

    Returns:
        The number of runs of rows, and states, stored.

    Raises:
        NotStored: The source begins after the rows that are stored.
        ServerRefused: There is no room, a value cannot be stored, or somebody published it meanwhile.
        StoreError: The server answered nonsense, or is not available.
    """
    lane.send(("KV.PREFIX.LOOKUP", namespace), deadline)
    if lane.receive(deadline) == "HIT":
        stored = _store_states(lane, deadline, namespace, shape, source)
        _receive_all(lane, deadline)
        return stored
    first, txn = _begin(lane, deadline, namespace, shape, ids, prefill_ms, model, parent)
    with _aborted_on_refusal(lane, deadline, txn):
        if first < source.first:
            raise NotStored(f"its first {source.first} tokens are not stored any more")
        stored = _store_states(lane, deadline, namespace, shape, source, txn)
        stored += _store_rows(lane, deadline, namespace, shape, source, first, len(ids), txn)
        _receive_all(lane, deadline)
        lane.send(("KV.PREFIX.PUBLISH", txn), deadline)
        lane.receive(deadline)
    return stored


def _begin(
    lane: Lane,
    deadline: Deadline,
    namespace: Name,
    shape: Shape,
    ids: Sequence[int],
    prefill_ms: int,
    model: str,
    parent: Found | None,
    *,
    again: bool = False,
) -> tuple[int, bytes]:
    """The first row that the transaction needs, and its id."""
    plan = shape.plan
    layout = plan.uniform or plan.keys
    lane.send(requests.begin(namespace, layout, plan, ids, prefill_ms, model, parent), deadline)
    try:
        txn = lane.receive(deadline)
    except ServerRefused:
        if again:
            raise
        # The parent is gone, or what is left of the prefix itself is in the way: one side of it, for example.
        lane.send(("KV.PREFIX.DROP", namespace), deadline)
        lane.receive(deadline)
        return _begin(lane, deadline, namespace, shape, ids, prefill_ms, model, None, again=True)
    if not isinstance(txn, bytes):
        raise BadReply("KV.PREFIX.BEGIN answered something else")
    return (0 if parent is None else parent.tokens), txn


@contextmanager
def _aborted_on_refusal(lane: Lane, deadline: Deadline, txn: bytes) -> Iterator[None]:
    try:
        yield
    except (ServerRefused, NotStored):
        # With replies outstanding the connection is closed, which ends the transaction as well.
        if not lane.pending:
            lane.send(("KV.PREFIX.ABORT", txn), deadline)
            lane.receive(deadline)
        raise


def _store_states(
    lane: Lane,
    deadline: Deadline,
    namespace: Name,
    shape: Shape,
    source: Source,
    txn: bytes | None = None,
) -> int:
    within: requests.Command = () if txn is None else ("TXN", txn)
    for index in shape.layout.state_caches:
        _send(lane, ("SSM.PREFIX.STORE", namespace, index, source.state(index), *within), deadline)
    return len(shape.layout.state_caches)


def _store_rows(
    lane: Lane,
    deadline: Deadline,
    namespace: Name,
    shape: Shape,
    source: Source,
    first: int,
    end: int,
    txn: bytes | None = None,
) -> int:
    """Rows `first` to `end - 1` of every cache kept as rows, all keys before all values."""
    stored = 0
    for sid, side in zip(requests.sessions_of(namespace), SIDES, strict=True):
        for layer in range(len(shape.layout.rows)):
            for start, stop in runs(first, end, source.width(side, layer)):
                rows, form = source.rows(side, layer, start, stop)
                _send(lane, requests.store(sid, layer, start, stop - start, rows, form, txn), deadline)
                stored += 1
    return stored


def _send(lane: Lane, command: requests.Command, deadline: Deadline) -> None:
    lane.send(command, deadline)
    # One reply is left outstanding, so that the server works while the next rows are prepared.
    while lane.pending > 1:
        lane.receive(deadline)


def _receive_all(lane: Lane, deadline: Deadline) -> None:
    while lane.pending:
        lane.receive(deadline)

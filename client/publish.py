"""Publish a prefix in a store, on an open lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from . import cache_states, requests
from .deadline import Deadline
from .identity import BLOCK_SIZE, token_table
from .lane import Lane
from .layout import ELEMENTS
from .prefix import Shape, runs
from .requests import Name
from .rows import packed_rows, rows_of


def publish(
    lane: Lane,
    deadline: Deadline,
    namespace: Name,
    shape: Shape,
    caches: Sequence[Any],
    ids: Sequence[int],
    prefill_ms: int,
    model: str | None = None,
) -> int:
    """Store the tokens `ids`, which the caches hold first, or exactly where some are no rows.

    All states go before all keys, and all keys before all values: a server calls a prefix stored when both
    sides hold the same layers, so it does not do so before the last layer has arrived.

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
    stored = 0
    for index in shape.layout.state_caches:
        blob = memoryview(cache_states.dump(caches[index], len(ids)))
        _send(lane, ("SSM.PREFIX.STORE", namespace, index, blob), deadline)
        stored += 1
    rows = [caches[index] for index in shape.layout.row_caches]
    sides = ([cache.keys for cache in rows], [cache.values for cache in rows])
    for sid, arrays, specs in zip(
        requests.sessions_of(namespace), sides, (plan.keys, plan.values), strict=True
    ):
        for layer, (array, spec) in enumerate(zip(arrays, specs, strict=True)):
            width = spec.row_bytes if shape.attached else array.nbytes // array.shape[2]
            for start, end in runs(0, len(ids), width):
                _send(lane, _store(sid, layer, array, start, end), deadline)
                stored += 1
    while lane.pending:
        lane.receive(deadline)
    return stored


def _store(sid: bytes, layer: int, array: Any, start: int, end: int) -> requests.Command:
    if isinstance(array, mx.array):
        rows, form = rows_of(array, start, end), ELEMENTS[array.dtype].name
    else:
        rows, form = packed_rows(array, start, end), "RAW"
    return requests.store(sid, layer, start, end - start, rows, form)


def _send(lane: Lane, command: requests.Command, deadline: Deadline) -> None:
    lane.send(command, deadline)
    # One reply is left outstanding, so that the server works while the next rows are prepared.
    while lane.pending > 1:
        lane.receive(deadline)

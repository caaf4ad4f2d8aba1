"""Restore a prefix from a store and publish one, on an open lane."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache
from pionkv.kernels.formats import LayerSpec

from . import requests
from .deadline import Deadline
from .errors import BadReply, NotStored, ServerRefused
from .identity import BLOCK_SIZE, check_tokens, token_table
from .lane import Lane
from .layout import ELEMENTS, CacheLayout
from .plan import Plan
from .rows import Landing, Scratch, landing, rows_of

BULK_BYTES = 64 * 1024 * 1024
"""Longest run of rows in one bulk string; servers accept 512 MiB."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a client and its prefixes agree on."""

    layout: CacheLayout
    plan: Plan

    @property
    def specs(self) -> tuple[LayerSpec, ...]:
        """All layers as a reply orders them: k0 v0 k1 v1 and so on."""
        return tuple(spec for pair in zip(self.plan.keys, self.plan.values, strict=True) for spec in pair)


def restore(
    lane: Lane, deadline: Deadline, namespace: str, shape: Shape, ids: Sequence[int]
) -> list[KVCache]:
    """Caches that hold the rows of the tokens `ids`, in the model's own element types.

    Every array is new, so that a cache may be written to without touching any other.

    Raises:
        OtherTokens: The name stands for other tokens.
        NotStored: It is not there, or not whole, or stored in other formats.
        StoreError: The server refused, answered nonsense, or is not available.
    """
    tokens = len(ids)
    _check_stored(lane, deadline, namespace, shape, ids)
    scratch = Scratch()
    landings = [
        landing(side, spec, tokens, scratch)
        for layer, specs in zip(shape.layout, _pairs(shape.specs), strict=True)
        for side, spec in zip((layer.keys, layer.values), specs, strict=True)
    ]
    for start, end in _runs(tokens, max(spec.row_bytes for spec in shape.specs)):
        _fetch(lane, deadline, namespace, shape.specs, landings, start, end)
    arrays = [each.array() for each in landings]
    # What is still to be computed can be computed by the thread that began it only.
    mx.eval(arrays)
    return [
        KVCache.from_state((keys, values, tokens))
        for keys, values in zip(arrays[::2], arrays[1::2], strict=True)
    ]


def _pairs(specs: Sequence[LayerSpec]) -> Iterator[tuple[LayerSpec, LayerSpec]]:
    return zip(specs[::2], specs[1::2], strict=True)


def _check_stored(lane: Lane, deadline: Deadline, namespace: str, shape: Shape, ids: Sequence[int]) -> None:
    sids = requests.sessions_of(namespace)
    lane.send(("KV.PREFIX.LOOKUP", namespace), deadline)
    lane.send(("KV.PREFIX.BLOCKS", namespace), deadline)
    for sid in sids:
        lane.send(("V.INFO", sid), deadline)
    hit = lane.receive(deadline)
    table, *texts = [_reply_or_refusal(lane, deadline) for _ in range(1 + len(sids))]
    if not isinstance(table, ServerRefused):
        check_tokens(table, ids)
    if hit != "HIT":
        raise NotStored("not stored")
    for side, text, asked in zip("KV", texts, (shape.plan.keys, shape.plan.values), strict=True):
        if isinstance(text, ServerRefused):
            raise NotStored("dropped a moment ago")
        _check_side(side, requests.SessionInfo.parse(text), asked, len(ids))


def _check_side(side: str, info: requests.SessionInfo, asked: Sequence[LayerSpec], tokens: int) -> None:
    if len(info.specs) != len(asked):
        raise NotStored(f"stored with {len(info.specs)} layers, asked {len(asked)}")
    for layer, (stored, wanted) in enumerate(zip(info.specs, asked, strict=True)):
        if stored != wanted:
            raise NotStored(f"{side} of layer {layer} is stored as {_name(stored)}, asked {_name(wanted)}")
    if min(info.rows) < tokens:
        raise NotStored(f"only {min(info.rows)} of {tokens} rows are stored on the {side} side")


def _reply_or_refusal(lane: Lane, deadline: Deadline) -> object:
    try:
        return lane.receive(deadline)
    except ServerRefused as error:
        return error


def _name(spec: LayerSpec) -> str:
    return f"{spec.format} of {spec.dim}"


def _fetch(
    lane: Lane,
    deadline: Deadline,
    namespace: str,
    specs: Sequence[LayerSpec],
    landings: Sequence[Landing],
    start: int,
    end: int,
) -> None:
    """One run of rows of everything; a landing is told of its rows when the next one's are about to come."""

    def place(index: int, length: int) -> memoryview:
        if index >= len(landings):
            raise BadReply(f"more than {len(landings)} runs of rows")
        if index:
            landings[index - 1].landed(start, end)
        if length != (end - start) * specs[index].row_bytes:
            raise BadReply(f"{length} bytes for {end - start} rows of {specs[index].row_bytes}")
        return landings[index].place(start, end)

    lane.send(requests.fetch_all(namespace, start, end, "RAW"), deadline)
    count = lane.receive_rows(place, deadline)
    if count != len(landings):
        raise BadReply(f"{count} runs of rows where {len(landings)} were expected")
    landings[-1].landed(start, end)


def publish(
    lane: Lane,
    deadline: Deadline,
    namespace: str,
    shape: Shape,
    caches: Sequence[Any],
    ids: Sequence[int],
    prefill_ms: int,
) -> int:
    """Store the rows of the tokens `ids`, which the caches begin with.

    All keys go before all values: a server calls a prefix stored when both sides hold the same layers, so it
    does not do so before the last layer has arrived.

    Returns:
        The number of runs of rows stored.

    Raises:
        ServerRefused: The server has another schema under the name, no room, or does not take a value.
        StoreError: The server answered nonsense, or is not available.
    """
    plan, table = shape.plan, token_table(ids)
    blocks = None if table is None else (BLOCK_SIZE, table)
    command = requests.register(namespace, plan.uniform or plan.keys, plan.values, prefill_ms, blocks)
    lane.send(command, deadline)
    lane.receive(deadline)
    stored = 0
    sides = ([cache.keys for cache in caches], [cache.values for cache in caches])
    for sid, arrays in zip(requests.sessions_of(namespace), sides, strict=True):
        for layer, array in enumerate(arrays):
            stored += _store(lane, deadline, sid, layer, array, len(ids))
    while lane.pending:
        lane.receive(deadline)
    return stored


def _store(lane: Lane, deadline: Deadline, sid: bytes, layer: int, array: mx.array, tokens: int) -> int:
    form = ELEMENTS[array.dtype].name
    runs = list(_runs(tokens, array.nbytes // array.shape[2]))
    for start, end in runs:
        rows = rows_of(array, start, end)
        lane.send(requests.store(sid, layer, start, end - start, rows, form), deadline)
        # One reply is left outstanding, so that the server works while the next rows are prepared.
        while lane.pending > 1:
            lane.receive(deadline)
    return len(runs)


def _runs(tokens: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut the rows so that each run fits a bulk string."""
    step = max(1, BULK_BYTES // row_bytes)
    return ((start, min(start + step, tokens)) for start in range(0, tokens, step))

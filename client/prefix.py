"""Restore a prefix from a store, on an open lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, QuantizedKVCache
from pionkv.kernels.formats import LayerSpec

from . import cache_states, requests
from .deadline import Deadline
from .errors import Absent, NotStored, ServerRefused
from .fetching import Wanted, fetch
from .identity import check_tokens
from .lane import Lane
from .mapping import NotMapped, PrefixMap, fill
from .pace import Watch
from .plan import Attached
from .requests import Name
from .route import Route
from .rows import Landing, landings
from .shape import ModelLayout, Shape


def restore(
    lane: Lane,
    deadline: Deadline,
    namespace: Name,
    shape: Shape,
    ids: Sequence[int],
    route: Route,
    watch: Watch | None = None,
    at: int | None = None,
) -> list[Any]:
    """Caches that hold the tokens `ids`, in the model's own element types.

    Every array is new, so that a cache may be written to without touching any other.

    Args:
        lane: The lane.
        deadline: Bounds all of it.
        namespace: The prefix.
        shape: What the caches must look like.
        ids: The tokens.
        route: How rows come; what came is counted there.
        watch: Says when the rest of what comes over a connection had better be prefilled: then the caches
            hold fewer tokens, which they tell. None, and for a model that keeps states: all of them.
        at: The generation that the rows must be of; None: whatever is stored under the name.

    Raises:
        OtherTokens: The name stands for other tokens.
        NotStored: It is not there, or not whole, or stored in other formats.
        StoreError: The server refused, answered nonsense, or is not available.
    """
    tokens: int = len(ids)
    arrays: list[Any] = []
    _check_stored(lane, deadline, namespace, shape, ids)
    if shape.specs:
        watched = None if shape.whole else watch
        tokens, arrays = _rows(lane, deadline, namespace, shape, tokens, route, watched, at)
    held = states(lane, deadline, namespace, shape.layout, len(ids))
    # What is still to be computed can be computed by the thread that began it only.
    mx.eval(arrays)
    caches: dict[int, Any] = dict(zip(shape.layout.state_caches, held, strict=True))
    sides = zip(arrays[::2], arrays[1::2], strict=True)
    for index, (keys, values) in zip(shape.layout.row_caches, sides, strict=True):
        caches[index] = _cache(keys, values, tokens, shape.attached)
    return [caches[index] for index in range(len(caches))]


def _cache(keys: Any, values: Any, tokens: int, attached: Attached | None) -> Any:
    if attached is None:
        return KVCache.from_state((keys, values, tokens))
    return QuantizedKVCache.from_state((keys, values, tokens, attached.group_size, attached.bits))


def _rows(
    lane: Lane,
    deadline: Deadline,
    namespace: Name,
    shape: Shape,
    tokens: int,
    route: Route,
    watch: Watch | None,
    at: int | None,
) -> tuple[int, list[Any]]:
    """How many tokens came, and the arrays of all layers kept as rows: k0 v0 k1 v1 and so on."""
    if route.maps and not any(spec.details.grouped for spec in shape.specs):
        arriving = _map(lane, deadline, namespace, shape, tokens, route)
        if arriving is not None:
            return tokens, [each.array() for each in arriving]
    arriving = _landings(shape, tokens)
    wanted = Wanted(namespace, tuple(spec.wire.row_bytes for spec in shape.specs), at)
    came = fetch(lane, deadline, wanted, arriving, tokens, route, watch)
    if came < tokens:
        for each in arriving:
            each.cut(came)
    return came, [each.array() for each in arriving]


def _landings(shape: Shape, tokens: int) -> Sequence[Landing]:
    sides = [side for layer in shape.layout.rows for side in (layer.keys, layer.values)]
    specs = [spec.wire for spec in shape.specs]
    return landings(list(zip(sides, specs, strict=True)), tokens, shape.attached)


def _map(
    lane: Lane,
    deadline: Deadline,
    namespace: Name,
    shape: Shape,
    tokens: int,
    route: Route,
) -> Sequence[Landing] | None:
    """Take all rows from the server's files; None when that cannot be done."""
    lane.send(("KV.PREFIX.MAP", namespace), deadline)
    # The server finds the rows meanwhile.
    arriving = _landings(shape, tokens)
    try:
        found = PrefixMap.parse(lane.receive(deadline))
        if found is None:
            raise NotStored("dropped a moment ago")
        fill(found, shape.specs, arriving, 0, tokens)
    except ServerRefused as error:
        # It is elsewhere, or does not know the command: it will not learn it.
        route.maps, route.not_mapped = False, str(error)
        return None
    except NotMapped as error:
        route.not_mapped = str(error)
        return None
    route.mapped_bytes += shape.plan.bytes(tokens)
    route.used = 0
    return arriving


def states(lane: Lane, deadline: Deadline, namespace: Name, layout: ModelLayout, tokens: int) -> list[Any]:
    """The caches that are no rows."""
    for index in layout.state_caches:
        lane.send(("SSM.PREFIX.FETCH", namespace, index), deadline)
    blobs = [_reply_or_refusal(lane, deadline) for _ in layout.state_caches]
    if not all(isinstance(blob, bytes) for blob in blobs):
        raise NotStored("not all of its states are stored")
    return [
        cache_states.load(blob, layout.kinds[index], tokens)
        for index, blob in zip(layout.state_caches, blobs, strict=True)
        if isinstance(blob, bytes)
    ]


def _check_stored(lane: Lane, deadline: Deadline, namespace: Name, shape: Shape, ids: Sequence[int]) -> None:
    sids = requests.sessions_of(namespace)
    lane.send(("KV.PREFIX.LOOKUP", namespace), deadline)
    lane.send(("KV.PREFIX.BLOCKS", namespace), deadline)
    for sid in sids:
        lane.send(("V.INFO", sid), deadline)
    hit = lane.receive(deadline)
    table, *texts = [_reply_or_refusal(lane, deadline) for _ in range(1 + len(sids))]
    if not isinstance(table, ServerRefused):
        check_tokens(table, ids, whole=shape.whole)
    if hit != "HIT":
        raise Absent("not stored")
    for side, text, asked in zip("KV", texts, (shape.plan.keys, shape.plan.values), strict=True):
        if not asked:
            continue
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

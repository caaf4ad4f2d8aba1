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
from .fetching import Fetch, Wanted
from .identity import check_tokens
from .lane import Lane
from .mapped_prefix import ask_where, may_map, take_mapped
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
    rows = None
    _ask_stored(lane, deadline, namespace)
    if shape.specs:
        watched = None if shape.whole else watch
        rows = _Rows(lane, deadline, namespace, shape, tokens, route, watched, at)
        # What was found by its tokens a moment ago will hardly turn out to be something else.
        if at is not None:
            rows.ask()
    try:
        _check_stored(lane, deadline, shape, ids)
    except NotStored:
        if rows is not None:
            rows.give_up()
        raise
    if rows is not None:
        tokens, arrays = rows.bring()
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


class _Rows:
    """The rows of all layers kept as rows, out of the server's files or over connections.

    Arguments as of `restore`.
    """

    def __init__(
        self,
        lane: Lane,
        deadline: Deadline,
        namespace: Name,
        shape: Shape,
        tokens: int,
        route: Route,
        watch: Watch | None,
        at: int | None,
    ) -> None:
        self._lane = lane
        self._deadline = deadline
        self._namespace = namespace
        self._shape = shape
        self._tokens = tokens
        self._route = route
        self._watch = watch
        self._at = at
        self._maps = may_map(route, shape)
        self._fetch: Fetch | None = None
        self._arriving: Sequence[Landing] = ()

    def ask(self) -> None:
        """Ask for them; replies to earlier questions may be received before them."""
        if self._maps:
            ask_where(self._lane, self._namespace, self._deadline)
        else:
            widths = tuple(spec.wire.row_bytes for spec in self._shape.specs)
            wanted = Wanted(self._namespace, widths, self._at)
            self._fetch = Fetch(self._lane, self._deadline, wanted, self._tokens, self._route, self._watch)
            self._fetch.ask()
        # The server finds the rows meanwhile.
        self._arriving = _landings(self._shape, self._tokens)

    def give_up(self) -> None:
        """Receive a short answer that is of no use any more, so that the connection can go on."""
        if self._maps and self._lane.pending:
            self._lane.receive_any(self._deadline)

    def bring(self) -> tuple[int, list[Any]]:
        """How many tokens came, and the arrays: k0 v0 k1 v1 and so on. Raises as `restore`."""
        if not self._arriving:
            self.ask()
        if self._maps:
            where = (self._lane, self._deadline, self._shape, self._arriving, self._tokens, self._at)
            if not take_mapped(*where, self._route):
                self._maps = False
                self.ask()
        came = self._tokens if self._fetch is None else self._fetch.into(self._arriving)
        if came < self._tokens:
            for each in self._arriving:
                each.cut(came)
        return came, [each.array() for each in self._arriving]


def _landings(shape: Shape, tokens: int) -> Sequence[Landing]:
    sides = [side for layer in shape.layout.rows for side in (layer.keys, layer.values)]
    specs = [spec.wire for spec in shape.specs]
    return landings(list(zip(sides, specs, strict=True)), tokens, shape.attached)


def states(lane: Lane, deadline: Deadline, namespace: Name, layout: ModelLayout, tokens: int) -> list[Any]:
    """The caches that are no rows."""
    for index in layout.state_caches:
        lane.send(("SSM.PREFIX.FETCH", namespace, index), deadline)
    blobs = [lane.receive_any(deadline) for _ in layout.state_caches]
    if not all(isinstance(blob, bytes) for blob in blobs):
        raise NotStored("not all of its states are stored")
    return [
        cache_states.load(blob, layout.kinds[index], tokens)
        for index, blob in zip(layout.state_caches, blobs, strict=True)
        if isinstance(blob, bytes)
    ]


def _ask_stored(lane: Lane, deadline: Deadline, namespace: Name) -> None:
    lane.send(("KV.PREFIX.LOOKUP", namespace), deadline)
    lane.send(("KV.PREFIX.BLOCKS", namespace), deadline)
    for sid in requests.sessions_of(namespace):
        lane.send(("V.INFO", sid), deadline)


def _check_stored(lane: Lane, deadline: Deadline, shape: Shape, ids: Sequence[int]) -> None:
    """See that the answers to `_ask_stored` are those of these tokens, in these formats."""
    hit = lane.receive(deadline)
    table, *texts = [lane.receive_any(deadline) for _ in range(3)]
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


def _name(spec: LayerSpec) -> str:
    return f"{spec.format} of {spec.dim}"

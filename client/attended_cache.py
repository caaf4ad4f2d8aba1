"""A cache whose first rows stay in the server, and how attention over all of them is put together."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, create_attention_mask

from .attend import AttendQueries, merge
from .attention_seam import Attention, is_replaced
from .errors import StoreError, UnsupportedModel

Rows = Sequence[tuple[Any, Any]]
"""Keys and values ``[1, heads, tokens or more, head_dim]`` of each layer."""


class Prefix(Protocol):
    """The stored rows of some tokens, of all layers that keep rows.

    Attributes:
        tokens: How many there are.
        rows: The rows, once they are held here, too.
    """

    tokens: int
    rows: Rows | None

    def attend(self, layer: int, queries: Any, kv_heads: int) -> tuple[Any, Any]:
        """Outputs and log-sum-exps of queries ``[heads, queries, head_dim]`` over the rows of a layer."""

    def bring(self, error: StoreError) -> Rows:
        """Get the rows here, because the server has failed; what is not to be had is computed."""


class RemotePrefix:
    """A prefix that a server attends to.

    Attributes:
        tokens: How many tokens it holds.
        rows: The rows, once they are held here, too.
        namespace: Its name.
        failure: Why they are, if they are.
    """

    def __init__(self, client: AttendQueries, namespace: str, tokens: int, fetch: Callable[[], Rows]) -> None:
        """Prepare; nothing is asked.

        Args:
            client: Asks the server.
            namespace: The prefix.
            tokens: How many tokens it holds.
            fetch: Called without arguments, returns the rows however that may be done.
        """
        self.tokens = tokens
        self.namespace = namespace
        self.rows: Rows | None = None
        self.failure: StoreError | None = None
        self._client = client
        self._fetch = fetch

    def attend(self, layer: int, queries: Any, kv_heads: int) -> tuple[Any, Any]:
        """See `Prefix.attend`. Raises `StoreError`."""
        q = np.array(queries)
        out, lse = self._client.attend_query(self.namespace, layer, q, with_lse=True, kv_heads=kv_heads)
        return mx.array(out), mx.array(lse)

    def bring(self, error: StoreError) -> Rows:
        """See `Prefix.bring`."""
        if self.rows is None:
            self.failure = error
            self.rows = self._fetch()
        return self.rows


class AttendedCache:
    """Stands in for a layer's KVCache: holds the rows after the prefix, and knows where the others are.

    When the server fails, the rows of the prefix are brought here, and it becomes a KVCache like any other.
    """

    def __init__(self, prefix: Prefix, index: int, layer: int) -> None:
        """Begin after the prefix.

        Args:
            prefix: The prefix.
            index: Which of the model's caches this is.
            layer: Which of the layers that keep rows.
        """
        self._prefix = prefix
        self._index = index
        self._layer = layer
        self._held = KVCache()
        self._whole = False
        """The rows of the prefix are held, too."""

    @property
    def offset(self) -> int:
        """The position of the next token."""
        return int(self._held.offset) + (0 if self._whole else self._prefix.tokens)

    def update_and_fetch(self, keys: Any, values: Any) -> Any:
        """Take the rows of the next tokens; all rows that are held here.

        Raises:
            RuntimeError: mlx-lm would attend to these alone: its function is its own again.
        """
        self._take_over()
        if not (self._whole or is_replaced()):
            raise RuntimeError("the rows of the prefix are in the server: go on within PrefixAttention")
        return self._held.update_and_fetch(keys, values)

    def make_mask(self, tokens: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """The mask of the next tokens over what `update_and_fetch` returns.

        Raises:
            UnsupportedModel: The layer attends within a window.
        """
        if window_size is not None:
            raise UnsupportedModel(f"layer {self._index} keeps a KVCache and attends within a window")
        self._take_over()
        return create_attention_mask(tokens, self._held.offset, return_array, window_size)

    def attention(
        self, original: Attention, queries: Any, keys: Any, values: Any, scale: float, mask: Any, sinks: Any
    ) -> Any:
        """Attention over the rows of the prefix and those held here, under one softmax.

        Args:
            original: mlx-lm's function.
            queries: ``[1, heads, queries, head_dim]``.
            keys: What `update_and_fetch` has returned.
            values: Likewise.
            scale: Of the scores.
            mask: None, "causal", or bools over the rows held here.
            sinks: None.

        Raises:
            UnsupportedModel: Sinks, several sequences at once, or a mask of the model's own.
        """
        if sinks is not None:
            raise UnsupportedModel(f"layer {self._index} attends to sinks")
        if queries.shape[0] != 1:
            raise UnsupportedModel(f"{queries.shape[0]} sequences at once, attention is for one")
        if not (mask is None or (isinstance(mask, str) and mask == "causal") or _is_bools(mask)):
            raise UnsupportedModel(f"layer {self._index} adds a mask of its own to the scores")
        if not self._whole:
            try:
                return self._merged(queries, keys, values, scale, mask)
            except StoreError as error:
                self._prefix.bring(error)
            before = self._held.offset
            self._take_over()
            keys, values = self._held.keys_and_values()
            mask = _widened(mask, self._held.offset - before)
        return original(queries, keys, values, cache=self._held, scale=scale, mask=mask, sinks=None)

    def _merged(self, queries: Any, keys: Any, values: Any, scale: float, mask: Any) -> Any:
        q = queries[0].astype(mx.float32) * scale
        ours = _attend(q, keys[0].astype(mx.float32), values[0].astype(mx.float32), mask)
        # The server scales by one over the root of the head dim itself.
        theirs = self._prefix.attend(self._layer, q * math.sqrt(q.shape[-1]), keys.shape[1])
        return merge([theirs, ours], mx).astype(queries.dtype)[None]

    def _take_over(self) -> None:
        """Hold the rows of the prefix, too, as soon as they are here."""
        if self._whole or self._prefix.rows is None:
            return
        keys, values = self._prefix.rows[self._layer]
        tokens = self._prefix.tokens
        # New arrays: caches that share one would write into each other.
        held = KVCache.from_state((keys[..., :tokens, :], values[..., :tokens, :], tokens))
        if self._held.offset:
            held.update_and_fetch(*self._held.keys_and_values())
        self._held, self._whole = held, True

    # What generation loops ask of a cache

    @property
    def state(self) -> Any:
        """The arrays held here, to be evaluated."""
        return self._held.state

    def size(self) -> int:
        """Tokens."""
        return self.offset

    def empty(self) -> bool:
        """Whether there are no tokens."""
        return not self.offset

    @property
    def nbytes(self) -> int:
        """Bytes held here."""
        return 0 if self._held.keys is None else int(self._held.keys.nbytes + self._held.values.nbytes)

    def is_trimmable(self) -> bool:
        """Rows after the prefix can be removed."""
        return True

    def trim(self, count: int) -> int:
        """Remove rows at the end, of the prefix none; how many were."""
        room = int(self._held.offset) - (self._prefix.tokens if self._whole else 0)
        return int(self._held.trim(min(count, room)))

    def to_quantized(self, group_size: int = 64, bits: int = 4) -> Any:
        """Not possible.

        Raises:
            UnsupportedModel: Always.
        """
        raise UnsupportedModel(f"kv_bits={bits}: rows that the server attends to cannot be quantised here")

    @classmethod
    def merge(cls, caches: Sequence[Any]) -> Any:
        """Not possible.

        Raises:
            UnsupportedModel: Always.
        """
        raise UnsupportedModel(f"a batch of {len(caches)}: the server attends to one sequence at a time")

    def __deepcopy__(self, memo: dict[int, Any]) -> AttendedCache:
        twin = AttendedCache(self._prefix, self._index, self._layer)
        twin._held, twin._whole = copy.deepcopy(self._held, memo), self._whole
        return twin


def _attend(q: Any, keys: Any, values: Any, mask: Any) -> tuple[Any, Any]:
    """Outputs and log-sum-exps of scaled queries over rows; query heads share those of the keys in order."""
    heads, count, dim = q.shape
    kv_heads, rows, _ = keys.shape
    grouped = q.reshape(kv_heads, heads // kv_heads, count, dim)
    scores = grouped @ keys[:, None].swapaxes(-1, -2)
    if isinstance(mask, str):
        mask = mx.arange(rows - count, rows)[:, None] >= mx.arange(rows)[None]
    if mask is not None:
        scores = mx.where(mask.reshape(mask.shape[-2:]), scores, -mx.inf)
    out = mx.softmax(scores, axis=-1, precise=True) @ values[:, None]
    return out.reshape(heads, count, -1), mx.logsumexp(scores, axis=-1).reshape(heads, count)


def _is_bools(mask: Any) -> bool:
    return isinstance(mask, mx.array) and mask.dtype == mx.bool_ and mask.size == math.prod(mask.shape[-2:])


def _widened(mask: Any, rows: int) -> Any:
    """A mask over the rows after the prefix, for all of them: those of the prefix are seen by every query."""
    if mask is None or isinstance(mask, str):
        return mask
    return mx.concatenate([mx.ones((*mask.shape[:-1], rows), mx.bool_), mask], axis=-1)

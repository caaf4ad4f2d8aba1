"""Attention that the server computes over rows it holds: only queries and outputs cross the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pionkv.protocol.frame_bodies import query_fused_beginning, window_field
from pionkv.protocol.request import Word

from . import requests
from .attend_link import AttendLink, Floats
from .requests import Name

_SELECTORS = {"block_mean": 0, "block-mean": 0, "": 0, "quest": 1}
_NO_WINDOW = -1
_MOST = 0xFFFF
"""What a number of two bytes in a frame can say."""
_TOP_K = 1024
"""Sent where the caller gives none: the server attends to all rows."""


class AttendQueries:
    """Attention over rows that a server holds, by the name of their prefix; part of both clients.

    Tensors are float32, head by head: queries are ``(heads, queries, head_dim)``. Scores are scaled by one
    over the root of the head dim: fold any other scale into the queries. Query heads share the stored ones
    in order. Every method raises `ServerRefused` when the server has no such rows or computes no attention,
    and `Unavailable` or `BadReply` when it fails.

    Attributes:
        attend: Asks the server.
    """

    attend: AttendLink

    @property
    def attend_query_ms_total(self) -> float:
        """Milliseconds that queries took, the wait for the server included."""
        return self.attend.milliseconds

    @property
    def attend_query_calls(self) -> int:
        """Queries answered."""
        return self.attend.calls

    @property
    def cold_rehydrates_observed(self) -> int:
        """Times that rows had to be warmed before a query was answered."""
        return self.attend.warmed

    def attend_store_layer(self, namespace: Name, layer_id: int, K: NDArray[Any], V: NDArray[Any]) -> None:
        """Store keys and values of one layer for attention alone; those of a prefix need none of it.

        Args:
            namespace: What queries call them.
            layer_id: The layer.
            K: The keys, ``(heads, rows, head_dim)``.
            V: The values, of the same shape.

        Raises:
            ValueError: The shapes are not that.
        """
        keys, values = _floats("K", K, 3), _floats("V", V, 3)
        if keys.shape != values.shape:
            raise ValueError(f"V has the shape {values.shape}, K {keys.shape}")
        name = requests.as_bytes(namespace)
        self.attend.call(("ATTEND.PREFIX.STORE", name, layer_id, *keys.shape, _raw(keys), _raw(values)))

    def attend_query(
        self,
        namespace: Name,
        layer_id: int,
        Q: NDArray[Any],
        top_k: int = 0,
        with_lse: bool = False,
        fa_window: int | None = None,
        *,
        kv_heads: int | None = None,
    ) -> Any:
        """Attention of queries over all stored rows of a layer.

        Args:
            namespace: The prefix.
            layer_id: The layer, counted over those kept as rows.
            Q: The queries, ``(heads, queries, head_dim)``, or ``(heads, head_dim)`` for one of each head.
            top_k: Taken for compatibility.
            with_lse: Also return the log-sum-exp of each query's scaled scores: `merge` needs it.
            fa_window: Attend to the last so many stored rows only.
            kv_heads: Heads that are stored, where they are fewer.

        Returns:
            The outputs, of the shape of `Q`; with `with_lse` these and the log-sum-exp ``(heads, queries)``.

        Raises:
            ValueError: The shape is not that.
        """
        if Q.ndim not in (2, 3):
            raise ValueError(f"attend_query: Q must be 2-D or 3-D, got {Q.shape}")
        if with_lse and Q.ndim == 2:
            raise ValueError("with_lse needs Q as (heads, queries, head_dim)")
        heads, dim = Q.shape[0], Q.shape[-1]
        queries = Q.size // (heads * dim)
        name = requests.as_bytes(namespace)
        command: list[Word] = ["ATTEND.PREFIX.QUERY", name, layer_id, heads, dim]
        command += [top_k if top_k > 0 else _TOP_K, _raw(_floats("Q", Q, Q.ndim))]
        command += [] if fa_window is None else [int(fa_window)]
        command += ["LSE"] if with_lse and queries == 1 else []
        trailer = heads * queries if with_lse or queries > 1 else 0
        answer = self.attend.query(command, 4 * (Q.size + trailer), _warm(name, kv_heads or heads, dim))
        out = answer[: Q.size].reshape(Q.shape)
        return (out, answer[Q.size :].reshape(heads, queries)) if with_lse else out

    def attend_query_fused(
        self,
        namespace: Name,
        layer_id: int,
        Q: NDArray[Any],
        K_suf: NDArray[Any],
        V_suf: NDArray[Any],
        head_map: NDArray[Any],
        fa_window: int | None = None,
    ) -> Floats:
        """Attention of queries over all stored rows of a layer and those of a suffix, under one softmax.

        The suffix is causal in itself: its last rows are those of the queries. On the server's binary lane,
        where it has one; otherwise, and whenever that fails, on its main port.

        Args:
            namespace: The prefix.
            layer_id: The layer.
            Q: The queries, ``(heads, queries, head_dim)``.
            K_suf: The suffix's keys, ``(kv_heads, rows, head_dim)``.
            V_suf: Its values, of the same shape.
            head_map: For each query head the stored head that it looks at, ``(heads,)``.
            fa_window: Attend to the last so many stored rows only.

        Returns:
            The outputs, of the shape of `Q`.

        Raises:
            ValueError: The shapes are not that.
        """
        q = _floats("Q", Q, 3)
        heads, queries, dim = q.shape
        keys, values = _suffix(K_suf, V_suf, dim)
        kv_heads, rows, _ = keys.shape
        if heads % kv_heads:
            raise ValueError(f"{heads} query heads are no multiple of {kv_heads}")
        if head_map.shape != (heads,):
            raise ValueError(f"head_map must have the shape ({heads},), got {head_map.shape}")
        name, heads_of = requests.as_bytes(namespace), head_map.astype(np.uint8).tobytes()
        tensors: list[bytes | memoryview] = [_raw(q), _raw(keys), _raw(values), heads_of]
        command: list[Word] = ["ATTEND.PREFIX.QUERY_FUSED", name, layer_id, heads, dim, rows, kv_heads]
        command += [*tensors, *([] if fa_window is None else [int(fa_window)])]
        frame = None
        if max(len(name), layer_id, heads, dim, kv_heads) <= _MOST and (fa_window is None or fa_window >= 0):
            beginning = query_fused_beginning(name, layer_id, heads, dim, kv_heads, queries, rows)
            frame = [beginning, *tensors, window_field(fa_window)]
        return self.attend.query(command, q.nbytes, _warm(name, kv_heads, dim), frame).reshape(q.shape)

    def attend_query_sparse(
        self,
        namespace: Name,
        layer_id: int,
        Q: NDArray[Any],
        indices: NDArray[Any],
        counts: NDArray[Any],
        fa_window: int | None = None,
        *,
        kv_heads: int | None = None,
    ) -> Floats:
        """Attention of one query of each head over rows that are named, and over those in the window.

        Args:
            namespace: The prefix.
            layer_id: The layer.
            Q: The queries, ``(heads, head_dim)``.
            indices: The rows of each head, ``(heads, most)``.
            counts: How many of them count, ``(heads,)``.
            fa_window: Rows at the end that count in any case; None: none.
            kv_heads: Heads that are stored, where they are fewer.

        Returns:
            The outputs, of the shape of `Q`.

        Raises:
            ValueError: The shapes are not that.
        """
        q = _floats("Q", Q, 2)
        heads, dim = q.shape
        if indices.ndim != 2 or len(indices) != heads or counts.shape != (heads,):
            raise ValueError(f"indices must be ({heads}, most) and counts ({heads},)")
        name = requests.as_bytes(namespace)
        command: list[Word] = ["ATTEND.PREFIX.QUERY_SPARSE", name, layer_id, heads, dim, indices.shape[1]]
        command += [_raw(q), indices.astype("<i4").tobytes(), counts.astype("<u4").tobytes()]
        command += [] if fa_window is None else [int(fa_window)]
        return self.attend.query(command, q.nbytes, _warm(name, kv_heads or heads, dim)).reshape(q.shape)

    def attend_query_sparse_auto(
        self,
        namespace: Name,
        layer_id: int,
        Q: NDArray[Any],
        B: int,
        K_top: int,
        H_kv: int | None = None,
        head_map: NDArray[Any] | None = None,
        fa_window: int | None = None,
        selector: str = "block_mean",
    ) -> Floats:
        """Attention of one query of each head over the blocks of rows that rank highest for it.

        Args:
            namespace: The prefix.
            layer_id: The layer.
            Q: The queries, ``(heads, head_dim)``.
            B: Rows of a block.
            K_top: Blocks that count.
            H_kv: Heads that are stored; None: as many as query heads.
            head_map: For each query head the stored head that it looks at; None: shared in order.
            fa_window: Rows at the end that count in any case; None: the server's default.
            selector: "block_mean", or "quest" for Quest's upper bound.

        Returns:
            The outputs, of the shape of `Q`.

        Raises:
            ValueError: The shapes are not that, or there is no such selector.
        """
        blocks = (int(B), int(K_top))
        return self._over_blocks(
            namespace,
            layer_id,
            _floats("Q", Q, 2),
            blocks,
            None,
            H_kv,
            head_map,
            _choice(fa_window, selector),
        )

    def attend_query_sparse_auto_fused(
        self,
        namespace: Name,
        layer_id: int,
        Q: NDArray[Any],
        B: int,
        K_top: int,
        K_suf: NDArray[Any],
        V_suf: NDArray[Any],
        H_kv: int | None = None,
        head_map: NDArray[Any] | None = None,
        fa_window: int | None = None,
        selector: str = "block_mean",
    ) -> Floats:
        """The same with rows of a suffix, all of which count, under one softmax.

        Args:
            namespace: The prefix.
            layer_id: The layer.
            Q: The queries, ``(heads, head_dim)``.
            B: Rows of a block.
            K_top: Blocks that count.
            K_suf: The suffix's keys, ``(kv_heads, rows, head_dim)``.
            V_suf: Its values, of the same shape.
            H_kv: Heads that are stored; None: as many as query heads.
            head_map: For each query head the stored head that it looks at; None: shared in order.
            fa_window: Rows at the end that count in any case; None: the server's default.
            selector: "block_mean", or "quest" for Quest's upper bound.

        Returns:
            The outputs, of the shape of `Q`.

        Raises:
            ValueError: The shapes are not that, or there is no such selector.
        """
        q, blocks = _floats("Q", Q, 2), (int(B), int(K_top))
        suffix = _suffix(K_suf, V_suf, q.shape[1])
        return self._over_blocks(
            namespace, layer_id, q, blocks, suffix, H_kv, head_map, _choice(fa_window, selector)
        )

    def _over_blocks(
        self,
        namespace: Name,
        layer_id: int,
        q: Floats,
        blocks: tuple[int, int],
        suffix: tuple[Floats, Floats] | None,
        kv_heads: int | None,
        head_map: NDArray[Any] | None,
        choice: list[Word],
    ) -> Floats:
        name, (heads, dim) = requests.as_bytes(namespace), q.shape
        stored, mapped = _heads(heads, kv_heads, head_map)
        command: list[Word] = [name, layer_id, heads, dim, *blocks, stored]
        if suffix is None:
            command = ["ATTEND.PREFIX.QUERY_SPARSE_AUTO", *command, _raw(q)]
        else:
            keys, values = suffix
            if len(keys) != stored:
                raise ValueError(f"K_suf has {len(keys)} heads, H_kv is {stored}")
            command = ["ATTEND.PREFIX.QUERY_SPARSE_AUTO_FUSED", *command, keys.shape[1]]
            command += [_raw(q), _raw(keys), _raw(values)]
        command += [mapped, *choice]
        return self.attend.query(command, q.nbytes, _warm(name, stored, dim)).reshape(q.shape)

    def attend_drop(self, namespace: Name) -> None:
        """Remove what `attend_store_layer` has stored under a name; a prefix of that name stays."""
        self.attend.call(("ATTEND.PREFIX.DROP", requests.as_bytes(namespace)))


def merge(parts: Sequence[tuple[Any, Any]], xp: Any = np) -> Any:
    """Attention over the union of disjoint sets of rows, from that over each of them.

    Args:
        parts: Outputs ``(..., head_dim)`` and log-sum-exps ``(...)`` of each set.
        xp: The arrays' module, numpy or `mlx.core`.
    """
    (out, lse), *others = parts
    for other, other_lse in others:
        top = xp.maximum(lse, other_lse)
        ours, theirs = xp.exp(lse - top), xp.exp(other_lse - top)
        total = ours + theirs
        out = (ours / total)[..., None] * out + (theirs / total)[..., None] * other
        lse = top + xp.log(total)
    return out


def _floats(name: str, array: NDArray[Any], axes: int) -> Floats:
    if array.ndim != axes or not array.size and axes == 2:
        shape = "(heads, rows, head_dim)" if axes == 3 else "(heads, head_dim)"
        raise ValueError(f"{name} must be {shape}, got {array.shape}")
    return np.ascontiguousarray(array, np.dtype("<f4"))


def _raw(array: Floats) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


def _suffix(K_suf: NDArray[Any], V_suf: NDArray[Any], dim: int) -> tuple[Floats, Floats]:
    keys, values = _floats("K_suf", K_suf, 3), _floats("V_suf", V_suf, 3)
    if keys.shape != values.shape or keys.shape[2] != dim:
        raise ValueError(f"K_suf {keys.shape} and V_suf {values.shape} are not (kv_heads, rows, {dim})")
    return keys, values


def _heads(heads: int, kv_heads: int | None, head_map: NDArray[Any] | None) -> tuple[int, bytes]:
    """The stored heads, and the head map as it is sent: nothing where every head has its own."""
    stored = heads if kv_heads is None else kv_heads
    if heads % stored:
        raise ValueError(f"{heads} query heads are no multiple of {stored}")
    if head_map is None:
        each = np.repeat(np.arange(stored, dtype=np.uint8), heads // stored)
        return stored, b"" if stored == heads else each.tobytes()
    if head_map.shape != (heads,):
        raise ValueError(f"head_map must have the shape ({heads},), got {head_map.shape}")
    return stored, head_map.astype(np.uint8).tobytes()


def _choice(window: int | None, selector: str) -> list[Word]:
    """The window and the selector, as far as they must be said."""
    if selector not in _SELECTORS:
        raise ValueError(f"unknown selector {selector!r}; expected 'block_mean' or 'quest'")
    number = _SELECTORS[selector]
    shown = _NO_WINDOW if window is None else int(window)
    return [shown, number] if number else [] if window is None else [shown]


def _warm(namespace: bytes, heads: int, dim: int) -> tuple[Word, ...]:
    return ("KV.PREFIX.WARM", namespace, heads, dim)

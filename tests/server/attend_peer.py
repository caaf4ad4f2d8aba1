"""Attention as a client asks for it, and as the oracle answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pionkv.kernels.attention import contiguous_map, oracle

Floats = NDArray[np.float32]


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Layer:
    """Keys and values of one layer, `[H, N, D]`, as fp16 keeps them."""

    def __init__(self, seed: int, heads: int = 2, rows: int = 40, dim: int = 64) -> None:
        self.heads, self.rows, self.dim = heads, rows, dim
        self.k, self.v = (
            normal(2 * seed + side, heads, rows, dim).astype(np.float16).astype(np.float32)
            for side in range(2)
        )

    def store(self, wire: Any, sid: str, layer: int = 0, *more: str) -> Any:
        """ATTEND.PREFIX.STORE."""
        shape = self.heads, self.rows, self.dim
        blobs = self.k.tobytes(), self.v.tobytes()
        return wire.command("ATTEND.PREFIX.STORE", sid, layer, *shape, *blobs, *more)

    def store_prefix(self, wire: Any, namespace: str, layer: int = 0, format: str = "fp16") -> None:
        """The same rows as an ordinary prefix, token by token."""
        width = self.heads * self.dim
        assert wire.command("KV.PREFIX.REGISTER", namespace, width, format) == "OK"
        for side, array in (("_pk", self.k), ("_pv", self.v)):
            rows = array.swapaxes(0, 1).tobytes()
            assert wire.command("V.STOREBATCH", namespace + side, layer, 0, self.rows, rows) == "OK"

    def expected(self, q: Floats, **more: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Output and log-sum-exp of the oracle."""
        head_map = more.pop("head_map", None) or contiguous_map(len(q), self.heads)
        return oracle.attend(q, self.k, self.v, head_map, **more)


def query(wire: Any, sid: str, q: Floats, layer: int = 0, *more: object) -> Any:
    """ATTEND.PREFIX.QUERY; the reply as it comes."""
    heads, _, dim = q.shape
    return wire.command("ATTEND.PREFIX.QUERY", sid, layer, heads, dim, 1024, q.tobytes(), *more)


def fused(
    wire: Any, sid: str, q: Floats, suffix: tuple[Floats, Floats], head_map: bytes, *more: object
) -> Any:
    """ATTEND.PREFIX.QUERY_FUSED of layer 0; the reply as it comes."""
    heads, _, dim = q.shape
    kv_heads, rows, _ = suffix[0].shape
    numbers = heads, dim, rows, kv_heads
    blobs = q.tobytes(), suffix[0].tobytes(), suffix[1].tobytes(), head_map
    return wire.command("ATTEND.PREFIX.QUERY_FUSED", sid, 0, *numbers, *blobs, *more)


def output(answer: Any, q: Floats) -> Floats:
    """The output in a reply, of the shape of the queries; no more may be in it."""
    assert isinstance(answer, bytes | memoryview), answer
    return np.frombuffer(answer, np.float32).reshape(q.shape)


def output_and_lse(answer: Any, q: Floats) -> tuple[Floats, Floats]:
    """The output and the log-sum-exp after it."""
    assert isinstance(answer, bytes | memoryview), answer
    floats = np.frombuffer(answer, np.float32)
    return floats[: q.size].reshape(q.shape), floats[q.size :].reshape(q.shape[:2])


def assert_close(found: Floats, expected: NDArray[np.float64], atol: float = 1e-3) -> None:
    np.testing.assert_allclose(found, expected, atol=atol)

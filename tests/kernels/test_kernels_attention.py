"""Attention over stored rows: as the definition decodes them, and as mlx computes with packed ones."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from pionkv.kernels import FORMATS, Element, LayerSpec, pack, unpack

Rows = NDArray[np.float32]

HEAD, HISTORY, TAIL = 128, 288, 37
MLX_LAYOUTS = {"mlx4g32": (4, 32), "mlx4g64": (4, 64), "mlx8g32": (8, 32), "mlx8g64": (8, 64)}


def stored(name: str, x: Rows) -> tuple[NDArray[np.uint8], Rows]:
    """Packed rows of one head, and what the oracle decodes them to."""
    fmt = FORMATS[name]
    spec = LayerSpec(name, HEAD, rope=32 if fmt.family == "rope" else 0, head_dim=0 if fmt.group else HEAD)
    packed, decoded = np.zeros((len(x), spec.row_bytes), np.uint8), np.zeros_like(x)
    pack(spec, x, Element.F32, len(x), packed)
    unpack(spec, packed, len(x), Element.F32, decoded, backend="oracle")
    return packed, decoded


def inputs() -> tuple[Rows, Rows, Rows]:
    """A query, and keys and values of a history and a tail, rounded to fp16."""
    rng = np.random.default_rng(8)
    keys, values = (rng.standard_normal((HISTORY + TAIL, HEAD)).astype(np.float16) for _ in range(2))
    query = rng.standard_normal((1, HEAD)).astype(np.float16)
    return query.astype(np.float32), keys.astype(np.float32), values.astype(np.float32)


def attention(query: Rows, keys: Rows, values: Rows) -> Rows:
    """One softmax over all rows, in float64."""
    scores = query.astype(np.float64) @ keys.T.astype(np.float64) / np.sqrt(HEAD)
    weights = np.exp(scores - scores.max())
    return (weights / weights.sum() @ values).astype(np.float32)


def blocked_attention(query: Rows, blocks: list[tuple[Rows, Rows]]) -> Rows:
    """The same in float32, a block at a time: sums are rescaled when a larger score comes."""
    top, total, out = np.float32(-np.inf), np.float32(0), np.zeros((1, HEAD), np.float32)
    for keys, values in blocks:
        scores = query @ keys.T / np.float32(np.sqrt(HEAD))
        larger = np.maximum(top, scores.max())
        weights, kept = np.exp(scores - larger), np.exp(top - larger)
        total, out, top = total * kept + weights.sum(), out * kept + weights @ values, larger
    return out / total


@pytest.mark.parametrize("name", FORMATS)
def test_a_stored_history_and_a_tail_share_one_softmax(name: str) -> None:
    """R64: decoded history and fp16 tail, in blocks, against one softmax over all."""
    query, keys, values = inputs()
    old_keys, old_values = stored(name, keys[:HISTORY])[1], stored(name, values[:HISTORY])[1]
    cuts = [slice(start, start + 64) for start in range(0, HISTORY, 64)]
    blocks = [(old_keys[cut], old_values[cut]) for cut in cuts] + [(keys[HISTORY:], values[HISTORY:])]
    whole = attention(query, np.vstack([k for k, _ in blocks]), np.vstack([v for _, v in blocks]))
    assert np.allclose(blocked_attention(query, blocks), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MLX_LAYOUTS)
def test_mlx_computes_with_our_packed_rows(name: str) -> None:
    """R64: mx.quantized_matmul on attached rows and an fp16 tail, against attention over our decode."""
    bits, group = MLX_LAYOUTS[name]
    query, keys, values = inputs()
    parts, decoded = [], []
    for x in (keys, values):
        packed, old = stored(name, x[:HISTORY])
        size, params = HEAD * bits // 8, HEAD // group * 2
        planes = np.split(packed, [size, size + params], axis=1)
        kinds = (np.uint32, np.float16, np.float16)
        views = [np.ascontiguousarray(p).view(k) for p, k in zip(planes, kinds, strict=True)]
        parts.append([mx.array(views[0]), *(mx.array(v).astype(mx.float32) for v in views[1:])])
        decoded.append(np.vstack([old, x[HISTORY:]]))
    tail_keys, tail_values = mx.array(keys[HISTORY:]), mx.array(values[HISTORY:])
    with mx.stream(mx.cpu):
        old_scores = mx.quantized_matmul(
            mx.array(query), *parts[0], transpose=True, group_size=group, bits=bits
        )
        scores = mx.concatenate([old_scores, mx.array(query) @ tail_keys.T], axis=1) / HEAD**0.5
        weights = mx.softmax(scores, axis=1)
        old = mx.quantized_matmul(
            weights[:, :HISTORY], *parts[1], transpose=False, group_size=group, bits=bits
        )
        ours = np.array(old + weights[:, HISTORY:] @ tail_values)
    # mlx multiplies in float32 where decoded rows are rounded to fp16 twice.
    assert np.allclose(ours, attention(query, *decoded), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8", "fp8", "mlx8g32"])
def test_rows_stored_before_their_rotation_turn_into_those_stored_after(name: str) -> None:
    """R43, R63: the rotation of a decoded row, at its own position, is the rotated row as decoded."""
    _, keys, _ = inputs()

    def rotated(x: Rows) -> Rows:
        with mx.stream(mx.cpu):
            turned = mx.fast.rope(
                mx.array(x)[None, None], HEAD, traditional=False, base=10000.0, scale=1.0, offset=1000
            )
        return np.array(turned)[0, 0]

    before, after = rotated(stored(name, keys)[1]), stored(name, rotated(keys))[1]
    error = {"fp16": 1e-3, "bf16": 6e-3, "int8": 1e-2, "fp8": 6e-2, "mlx8g32": 1e-2}[name]
    scale = np.sqrt((after**2).mean())
    assert np.sqrt(((before - after) ** 2).mean()) <= error * scale
    moved = rotated(np.vstack([keys[1:], keys[:1]]))
    assert np.sqrt(((moved[:-1] - after[1:]) ** 2).mean()) > 0.1 * scale

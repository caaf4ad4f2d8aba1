"""The same work as our kernels, done with what mlx and numpy offer on a CPU.

Each peer is a pair, `pack(rows) -> parts` and `unpack(parts) -> rows`, on arrays of its own library.
They choose the same scales as ours; mlx calls are evaluated before they return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from pionkv.kernels import Element, LayerSpec, pack, unpack
from pionkv.kernels.codebooks import TURBO, TURBO_UNIT
from pionkv.kernels.oracle import fp8 as fp8_oracle

CPU = mx.cpu


@dataclass(frozen=True)
class Peer:
    """One library's way to code a format; its decoded rows are within `tolerance` (relative RMS) of ours."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    tolerance: float = 0.0


def mlx_peer(name: str) -> Peer | None:
    """mlx's way, if it has one for this format."""
    mx.set_default_device(CPU)
    if name.startswith("mlx") and not name.endswith("_rt"):
        return _mlx_affine(bits=int(name[3]), group=int(name[5:]))
    return {"fp16": _mlx_fp16, "int8": _mlx_int8, "fp8": _mlx_fp8, "turbo4": _mlx_turbo4}.get(
        name, lambda: None
    )()


def numpy_peer(name: str) -> Peer | None:
    """numpy's way, if one is written down here."""
    return {"fp16": _np_fp16, "int8": _np_int8, "fp8": _np_fp8, "mlx4g32": _np_affine4}.get(
        name, lambda: None
    )()


def oracle_peer(spec: LayerSpec, element: Element, rows: int) -> Peer:
    """The definition in plain numpy: the same bytes as ours."""
    dtype = np.float32 if element is Element.F32 else np.float16

    def pack_rows(x: Any) -> Any:
        out = np.empty((rows, spec.row_bytes), np.uint8)
        pack(spec, x, element, rows, out, backend="oracle")
        return out

    def unpack_rows(packed: Any) -> Any:
        out = np.empty((rows, spec.dim), dtype)
        unpack(spec, packed, rows, element, out, backend="oracle")
        return out

    return Peer(pack_rows, unpack_rows)


def _evaluated(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        result = work(x)
        mx.eval(result)
        return result

    return run


def _mlx_affine(bits: int, group: int) -> Peer:
    def pack(x: mx.array) -> Any:
        return mx.quantize(x, group_size=group, bits=bits)

    def unpack(parts: Any) -> mx.array:
        return mx.dequantize(*parts, group_size=group, bits=bits)

    return Peer(_evaluated(pack), _evaluated(unpack))


def _mlx_fp16() -> Peer:
    return Peer(_evaluated(lambda x: x.astype(mx.float16)), _evaluated(lambda x: x.astype(mx.float32)))


def _mlx_int8() -> Peer:
    def pack(x: mx.array) -> Any:
        x = x.astype(mx.float32)
        low = x.min(axis=1, keepdims=True)
        scale = (x.max(axis=1, keepdims=True) - low) / 254
        return (mx.round((x - low) / scale) - 127).astype(mx.int8), scale, low

    def unpack(parts: Any) -> mx.array:
        codes, scale, low = parts
        return ((codes.astype(mx.float32) + 127) * scale + low).astype(mx.float16)

    return Peer(_evaluated(pack), _evaluated(unpack), 1e-3)


def _mlx_fp8() -> Peer:
    def pack(x: mx.array) -> Any:
        blocks = x.astype(mx.float32).reshape(x.shape[0], -1, 32)
        scale = (mx.abs(blocks).max(axis=2, keepdims=True) / 240).astype(mx.float16)
        return mx.to_fp8(blocks * (1 / scale.astype(mx.float32))), scale

    def unpack(parts: Any) -> mx.array:
        codes, scale = parts
        values = mx.from_fp8(codes, mx.float32) * scale.astype(mx.float32)
        return values.astype(mx.float16).reshape(codes.shape[0], -1)

    return Peer(_evaluated(pack), _evaluated(unpack), 1e-3)


def _mlx_turbo4() -> Peer:
    levels = mx.array(np.array(TURBO[4], np.float32) / TURBO_UNIT)
    midpoints = (levels[1:] + levels[:-1]) / 2

    def pack(x: mx.array) -> Any:
        blocks = mx.hadamard_transform(x.astype(mx.float32).reshape(-1, 32), scale=1.0)
        high, low = blocks.max(axis=1, keepdims=True), blocks.min(axis=1, keepdims=True)
        ratio = blocks / mx.where(high >= -low, high, low)
        codes = mx.zeros(ratio.shape, mx.uint8)
        for i in range(15):
            codes = codes + (ratio > midpoints[i]).astype(mx.uint8)
        chosen = levels[codes]
        scale = (blocks * chosen).sum(axis=1, keepdims=True) / (chosen * chosen).sum(axis=1, keepdims=True)
        return codes[:, ::2] | (codes[:, 1::2] << 4), scale.astype(mx.float16), mx.array(x.shape)

    def unpack(parts: Any) -> mx.array:
        packed, scale, shape = parts
        codes = mx.stack([packed & 15, packed >> 4], axis=2).reshape(-1, 32)
        values = mx.hadamard_transform(levels[codes] * scale.astype(mx.float32), scale=1 / 32)
        return values.astype(mx.float16).reshape(*shape.tolist())

    return Peer(_evaluated(pack), _evaluated(unpack), 1e-2)


def _np_fp16() -> Peer:
    return Peer(lambda x: x.astype(np.float16), lambda x: x.astype(np.float32))


def _np_int8() -> Peer:
    def pack(x: Any) -> Any:
        x = x.astype(np.float32)
        low = x.min(axis=1, keepdims=True)
        scale = (x.max(axis=1, keepdims=True) - low) / np.float32(254)
        return (np.rint((x - low) / scale) - np.float32(127)).astype(np.int8), scale, low

    def unpack(parts: Any) -> Any:
        codes, scale, low = parts
        return ((codes.astype(np.float32) + np.float32(127)) * scale + low).astype(np.float16)

    return Peer(pack, unpack, 1e-3)


def _np_fp8() -> Peer:
    table = fp8_oracle.decode(np.arange(256, dtype=np.uint8), fp8_oracle.E4M3)

    def pack(x: Any) -> Any:
        blocks = x.astype(np.float32).reshape(len(x), -1, 32)
        scale = (np.abs(blocks).max(axis=2, keepdims=True) / np.float32(240)).astype(np.float16)
        return fp8_oracle.encode(blocks * (np.float32(1) / scale.astype(np.float32)), fp8_oracle.E4M3), scale

    def unpack(parts: Any) -> Any:
        codes, scale = parts
        return (table[codes] * scale.astype(np.float32)).astype(np.float16).reshape(len(codes), -1)

    return Peer(pack, unpack, 1e-3)


def _np_affine4() -> Peer:
    def pack(x: Any) -> Any:
        groups = x.astype(np.float32).reshape(len(x), -1, 32)
        low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
        scale = np.maximum((high - low) / np.float32(15), np.float32(1e-7))
        end = np.where(np.abs(low) > np.abs(high), low, high)
        scale = np.where(np.abs(low) > np.abs(high), scale, -scale)
        scale = end / np.rint(end / scale)
        codes = np.clip(np.rint((groups - end) / scale), 0, 15).astype(np.uint8).reshape(len(x), -1)
        return codes[:, ::2] | codes[:, 1::2] << 4, scale.astype(np.float16), end.astype(np.float16)

    def unpack(parts: Any) -> Any:
        packed, scale, bias = parts
        codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1, 32)
        product = (codes.astype(np.float32) * scale.astype(np.float32)).astype(np.float16)
        total = (product.astype(np.float32) + bias.astype(np.float32)).astype(np.float16)
        return total.reshape(len(packed), -1)

    return Peer(pack, unpack)

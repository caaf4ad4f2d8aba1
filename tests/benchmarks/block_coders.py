"""Ways to code a block of 32 in the bytes of turbo4, turbo3 and turbo2, as functions from rows to rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from pionkv.kernels import Element, LayerSpec, pack, unpack
from pionkv.kernels.codebooks import SIGNS, TURBO, TURBO_UNIT
from pionkv.kernels.oracle.hadamard import hadamard

Array = NDArray[np.float32]
Coder = Callable[[Array], Array]

_FLIPS = np.array([-1 if SIGNS[0] >> i & 1 else 1 for i in range(32)], np.float32)


def coders(bits: int) -> dict[str, Coder]:
    """By name; the format itself is `turbo`."""
    plain = absmax2 if bits == 2 else _absmax(bits)
    lloyd = _lloyd(bits)
    return {
        "turbo": _format(f"turbo{bits}"),
        "absmax": plain,
        "rotated absmax": lambda x: _back(plain(_turn(x))),
        "Lloyd-Max, not rotated": lloyd,
        "Lloyd-Max, signs and rotation": lambda x: _back(lloyd(_turn(x * _signs(x)))) * _signs(x),
    }


def absmax2(x: Array) -> Array:
    """The original server's turbo2: levels -3, -1, 1, 3 times a third of the largest magnitude."""
    blocks = x.reshape(-1, 32)
    scale = _fp16(np.abs(blocks).max(axis=1, keepdims=True) / 3)
    codes = np.clip(np.rint((blocks / _nonzero(scale) + 3) / 2), 0, 3)
    return ((2 * codes - 3) * scale).reshape(x.shape).astype(np.float32)


def _absmax(bits: int) -> Coder:
    """The original server's turbo4 and turbo3: whole steps of the largest magnitude over 7 or 3."""
    steps = 2 ** (bits - 1) - 1

    def code(x: Array) -> Array:
        blocks = x.reshape(-1, 32)
        scale = _fp16(np.abs(blocks).max(axis=1, keepdims=True) / steps)
        codes = np.clip(np.rint(blocks / _nonzero(scale)), -steps - 1, steps)
        return (codes * scale).reshape(x.shape).astype(np.float32)

    return code


def _lloyd(bits: int) -> Coder:
    """The levels of turbo with the same least-squares scale, on the elements as they are."""
    levels = np.array(TURBO[bits], np.float32) / TURBO_UNIT
    midpoints = (levels[1:] + levels[:-1]) / 2

    def code(x: Array) -> Array:
        blocks = x.reshape(-1, 32)
        end = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], 1)
        chosen = levels[np.searchsorted(midpoints, blocks / _nonzero(end))]
        norm = (chosen * chosen).sum(axis=1, keepdims=True)
        scale = _fp16((blocks * chosen).sum(axis=1, keepdims=True) / _nonzero(norm))
        return (chosen * scale).reshape(x.shape).astype(np.float32)

    return code


def _format(name: str) -> Coder:
    def code(x: Array) -> Array:
        spec = LayerSpec(name, x.shape[1])
        packed, out = np.empty(len(x) * spec.row_bytes, np.uint8), np.empty_like(x)
        pack(spec, x, Element.F32, len(x), packed)
        unpack(spec, packed, len(x), Element.F32, out)
        return out

    return code


def _turn(x: Array) -> Array:
    return (hadamard(x.reshape(-1, 32)) / np.float32(np.sqrt(32))).reshape(x.shape)


_back = _turn


def _signs(x: Array) -> Array:
    return np.resize(_FLIPS, x.shape[1])


def _fp16(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float32)


def _nonzero(x: Array) -> Array:
    return np.where(x == 0, np.float32(1), x)

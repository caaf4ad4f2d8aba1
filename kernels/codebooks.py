"""Reconstruction levels of the formats that look codes up, and where they come from.

TURBO: Lloyd-Max levels (S. P. Lloyd, "Least squares quantization in PCM", 1982; J. Max, 1960) for 32
independent Gaussian values divided by the one of largest magnitude, sign included, each block weighted by
that magnitude squared, which is what its error counts. The levels 0 and 1 are held fixed, so that zeros and
the largest value are exact, and all are rounded to 1/256: then a sum of 32 of them times an fp16 scale is
exact in float32, whatever the order.

RVQ: Lloyd-Max levels of a Gaussian variable, and Lloyd-Max levels of what the first stage leaves of it.
VeloxQuant, whose two-stage codec this follows, takes a Laplacian for the second stage; the residual's own
levels give the same cosine at 1 bit and a better one at 2 (0.991 for 0.987).

tests/kernels derives both again by quadrature.
"""

from __future__ import annotations

from typing import Final

TURBO_UNIT: Final = 256
"""TURBO's levels are counted in 1/256."""

TURBO_RATIO_UNIT: Final = 1 << 14
"""What is compared with midpoints between TURBO's levels is counted in 1/16384, which fits 16 bits."""

TURBO: Final = {
    4: (-224, -178, -140, -108, -79, -52, -26, 0, 24, 49, 74, 102, 131, 165, 205, 256),
    3: (-189, -113, -54, 0, 48, 100, 164, 256),
    2: (-121, 0, 100, 256),
}

RVQ_UNIT: Final = 256
"""RVQ's levels are counted in 1/256."""

RVQ: Final = {
    1: ((-204, 204), (-124, 124)),
    2: ((-387, -116, 116, 387), (-116, -38, 38, 116)),
}
"""Per bits of a stage: the levels of both stages."""

SIGNS: Final = (
    0x243F6A88,
    0x85A308D3,
    0x13198A2E,
    0x03707344,
    0xA4093822,
    0x299F31D0,
    0x082EFA98,
    0xEC4E6C89,
)
"""RVQ flips the sign of element i of a head where bit `i % 32` of word `i // 32 % 8` is set.

The words are the first 256 bits of the fraction of pi. A pattern that repeated every 32 elements would leave
half of the rotated elements of a constant head at zero.
"""

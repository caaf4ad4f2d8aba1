"""Reconstruction levels of the formats that look codes up, and where they come from.

TURBO: Lloyd-Max levels (S. P. Lloyd, "Least squares quantization in PCM", 1982; J. Max, 1960) for 32
independent Gaussian values divided by the one of largest magnitude, sign included, each block weighted by
that magnitude squared, which is what its error counts. The levels 0 and 1 are held fixed, so that zeros and
the largest value are exact, and all are rounded to 1/256: then a sum of 32 of them times an fp16 scale is
exact in float32, whatever the order. tests/kernels derives them again by quadrature.
"""

from __future__ import annotations

from typing import Final

TURBO_UNIT: Final = 256
"""TURBO's levels are counted in 1/256."""

TURBO: Final = {
    4: (-224, -178, -140, -108, -79, -52, -26, 0, 24, 49, 74, 102, 131, 165, 205, 256),
    3: (-189, -113, -54, 0, 48, 100, 164, 256),
    2: (-121, 0, 100, 256),
}

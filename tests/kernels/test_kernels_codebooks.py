"""Where the levels come from: Lloyd's iteration on densities, by quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from pionkv.kernels.codebooks import RVQ, RVQ_UNIT, SIGNS, TURBO, TURBO_RATIO_UNIT, TURBO_UNIT

Points = NDArray[np.float64]


def lloyd(x: Points, weight: Points, levels: Points, fixed: tuple[float, ...] = ()) -> Points:
    """Levels that are the means of their cells; the levels nearest to `fixed` are kept there."""
    order = np.argsort(x)
    x, weight = x[order], weight[order]
    for _ in range(3000):
        cell = np.searchsorted((levels[1:] + levels[:-1]) / 2, x)
        means = np.bincount(cell, x * weight, len(levels)) / np.bincount(cell, weight, len(levels))
        for value in fixed:
            means[np.abs(means - value).argmin()] = value
        if np.abs(means - levels).max() < 1e-10:
            return means
        levels = means
    raise AssertionError("no fixed point")


def block_ratios(count: int = 32) -> tuple[Points, Points]:
    """Values of a Gaussian block over its largest in magnitude, and their share of the error that counts."""
    largest = np.linspace(0.3, 6.5, 1200)
    inside = np.vectorize(math.erf)(largest / math.sqrt(2))
    gauss = np.exp(-(largest**2) / 2) / math.sqrt(2 * math.pi)
    density = count * inside ** (count - 1) * 2 * gauss * largest**2
    ratio = (np.arange(4001) + 0.5) / 4001 * 2 - 1
    others = np.exp(-(np.outer(ratio, largest) ** 2) / 2) / math.sqrt(2 * math.pi) * largest / inside
    weight = (others * density).sum(axis=1) * 2 / 4001 * (count - 1)
    return np.append(ratio, 1.0), np.append(weight, density.sum())


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_turbo_levels(bits: int) -> None:
    ratio, weight = block_ratios()
    start = np.linspace(-0.85, 1, 2**bits)
    start[np.abs(start).argmin()] = 0
    levels = lloyd(ratio, weight, start, fixed=(0.0, 1.0))
    assert tuple(np.rint(levels * TURBO_UNIT).astype(int)) == TURBO[bits]


@pytest.mark.parametrize("bits", [1, 2])
def test_rvq_levels(bits: int) -> None:
    x = np.linspace(-9, 9, 400001)
    weight = np.exp(-x * x / 2)
    start = np.linspace(-1.5, 1.5, 2**bits)
    first = lloyd(x, weight, start)
    rest = x - first[np.searchsorted((first[1:] + first[:-1]) / 2, x)]
    second = lloyd(rest, weight, start / 3)
    stages = [tuple(np.rint(levels * RVQ_UNIT).astype(int)) for levels in (first, second)]
    assert tuple(stages) == RVQ[bits]


def test_midpoints_are_whole_in_the_unit_they_are_compared_in() -> None:
    assert TURBO_RATIO_UNIT % (2 * TURBO_UNIT) == 0
    for levels in TURBO.values():
        assert list(levels) == sorted(levels)
        assert levels[-1] == TURBO_UNIT
        assert 0 in levels
        assert 32 * max(map(abs, levels)) < 1 << 15


def test_signs_are_the_first_bits_of_pi() -> None:
    # Machin's formula in integers: pi = 16 atan(1/5) - 4 atan(1/239), with 32 guard bits.
    one = 1 << (256 + 32)

    def arctangent(inverse: int) -> int:
        total, term, n = 0, one // inverse, 1
        while term:
            total += term // n if n % 4 == 1 else -(term // n)
            term //= inverse * inverse
            n += 2
        return total

    fraction = ((16 * arctangent(5) - 4 * arctangent(239)) >> 32) - (3 << 256)
    assert [fraction >> (224 - 32 * i) & 0xFFFFFFFF for i in range(8)] == list(SIGNS)

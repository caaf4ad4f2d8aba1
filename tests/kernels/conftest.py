"""Specs of every format, and rows that hold every case the edge policy names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pionkv.kernels import FORMATS, LayerSpec

# The inputs and plain coders that the benchmarks compare with.
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

HEAD_DIM = 64


def spec_of(name: str, dim: int) -> LayerSpec:
    """A spec with what the format needs beside a dim."""
    rope = 64 if FORMATS[name].family == "rope" else 0
    return LayerSpec(name, dim, rope=rope, head_dim=0 if FORMATS[name].group else HEAD_DIM)


@pytest.fixture
def make_spec() -> Callable[[str, int], LayerSpec]:
    return spec_of


@pytest.fixture(params=list(FORMATS))
def spec(request: pytest.FixtureRequest) -> LayerSpec:
    return spec_of(request.param, 192)


@pytest.fixture
def hard_rows() -> NDArray[np.float32]:
    """24 rows of 192: Gaussian ones, and one or more of every edge case that pack accepts in every format."""
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((24, 192)) * 3).astype(np.float32)
    x[1] = 0
    x[2] = -0.0
    x[3, :64] = 5
    x[4] *= 1e-6
    x[5] *= 1e-9
    x[6] = 1e-40
    x[7, ::2] = -0.0
    x[8, :5], x[8, 6] = 60000, -60000
    x[9] = 65280  # fits bfloat16; 65504 would round beyond fp16
    x[10, ::2], x[10, 1::2] = 65280, -65280
    x[11] *= 2.0**-20
    x[12] = -np.abs(x[12])
    x[13] = np.abs(x[13])
    x[14, 1:] = 0
    x[15] = np.arange(192) - 7
    x[16] = 1000 + x[16] / 1000
    x[17, 32:64] = 1e-38
    x[18] *= 2.0**-82
    x[19] *= 2.0**-52
    x[20] = 1 + np.arange(192) / 191
    return x

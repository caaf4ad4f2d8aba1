"""The quotient that pack kernels take from a product equals the division wherever a code depends on it."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from gpu_shim import SHIM
from pionkv.kernels import gpu_source

PROGRAM = """
static float next_to(float value, int steps) {
  return bits_to_float(float_to_bits(value) + steps);
}

// Scales of one binade stand for all; only within a few steps of a tie could a code differ.
extern "C" long wrong_codes(unsigned stride, unsigned first) {
  long wrong = 0;
  for (unsigned bits = 0x3f800000u + first; bits < 0x40000000u; bits += stride) {
    const float scale = bits_to_float(bits), inverse = 1.0f / scale;
    for (unsigned code = 0; code < 256; ++code) {
      const float tie = (code + 0.5f) * scale;
      for (int steps = -4; steps <= 4; ++steps) {
        const float value = next_to(tie, steps);
        wrong += nearest(corrected_quotient(value, scale, inverse)) != nearest(value / scale);
      }
    }
  }
  return wrong;
}

extern "C" long wrong_quotients(float divisor) {
  long wrong = 0;
  for (unsigned bits = 0x3f800000u; bits < 0x40800000u; ++bits) {
    const float value = bits_to_float(bits);
    wrong += corrected_quotient(value, divisor, 1.0f / divisor) != value / divisor;
  }
  return wrong;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    parts = Path(gpu_source.__file__).parent / "gpu"
    text = "".join((parts / name).read_text() for name in ("metal.h", "numbers.h", "rows.h"))
    source = tmp_path_factory.mktemp("quotient") / "quotient.cpp"
    source.write_text(f'#include "metal_shim.h"\n{text}\n{PROGRAM}')
    library = source.with_suffix(".so")
    flags = [
        "-std=c++17",
        "-O2",
        "-mfma",
        "-fPIC",
        "-shared",
        "-ffp-contract=off",
        "-fno-strict-aliasing",
        "-w",
    ]
    subprocess.run(["g++", *flags, f"-I{SHIM}", str(source), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.wrong_codes.restype = loaded.wrong_quotients.restype = ctypes.c_long
    loaded.wrong_quotients.argtypes = [ctypes.c_float]
    return loaded


@pytest.mark.parametrize("first", [0, 1, 500])
def test_codes_are_those_of_the_division(program: ctypes.CDLL, first: int) -> None:
    assert program.wrong_codes(1009, first) == 0


@pytest.mark.parametrize("divisor", [15, 254, 255, 240, 224])
def test_quotients_by_constants_are_those_of_the_division(program: ctypes.CDLL, divisor: float) -> None:
    assert program.wrong_quotients(divisor) == 0

"""The oracle's own conversions against definitions written another way."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from numpy.typing import NDArray
from pionkv.kernels import Element
from pionkv.kernels.oracle import fp8
from pionkv.kernels.oracle.hadamard import hadamard
from pionkv.kernels.oracle.numeric import bits_of, flush, fp16_to_fp32, fp32_to_fp16, narrow, row_sum, widen


def value_of(code: int, exponent_bits: int, mantissa_bits: int) -> float:
    """A small float from its fields."""
    bias = 2 ** (exponent_bits - 1) - 1
    sign = -1 if code >> (exponent_bits + mantissa_bits) & 1 else 1
    exponent = code >> mantissa_bits & (2**exponent_bits - 1)
    fraction = (code & (2**mantissa_bits - 1)) / 2**mantissa_bits
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias)
    return sign * (1 + fraction) * 2.0 ** (exponent - bias)


@pytest.mark.parametrize("kind", [fp8.E4M3, fp8.E5M2])
def test_fp8_values(kind: tuple[int, int]) -> None:
    last = 0x7E if kind == fp8.E4M3 else 0x7B
    codes = np.array([c for c in range(256) if c & 0x7F <= last], np.uint8)
    expected = np.array([value_of(int(c), *kind) for c in codes], np.float32)
    assert np.array_equal(fp8.decode(codes, kind), expected)
    assert np.signbit(fp8.decode(np.array([0x80], np.uint8), kind))[0]


def test_fp8_codes_that_are_no_numbers() -> None:
    assert np.isnan(fp8.decode(np.array([0x7F, 0xFF], np.uint8), fp8.E4M3)).all()
    assert np.isnan(fp8.decode(np.array([0x7D, 0x7E, 0x7F, 0xFF], np.uint8), fp8.E5M2)).all()
    assert np.array_equal(fp8.decode(np.array([0x7C, 0xFC], np.uint8), fp8.E5M2), [np.inf, -np.inf])


@pytest.mark.parametrize("kind", [fp8.E4M3, fp8.E5M2])
def test_fp8_codes_are_the_nearest_and_even_at_ties(kind: tuple[int, int]) -> None:
    last = 0x7E if kind == fp8.E4M3 else 0x7B
    levels = np.array([value_of(c, *kind) for c in range(last + 1)])
    ties = (levels[1:] + levels[:-1]) / 2
    x = np.concatenate([levels, ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), [levels[-1] * 1.5]])
    x = x.astype(np.float32)
    distance = np.abs(x[:, None].astype(np.float64) - levels)
    nearest = distance == distance.min(axis=1, keepdims=True)
    even = np.arange(last + 1) % 2 == 0
    expected = np.where(nearest.sum(axis=1) > 1, (nearest & even).argmax(axis=1), nearest.argmax(axis=1))
    assert np.array_equal(fp8.encode(x, kind), expected)
    assert np.array_equal(fp8.encode(-x, kind), expected | 0x80)


def test_halves_widen_exactly() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    wide = fp16_to_fp32(words.view(np.float16))
    for word in (*range(0, 1 << 16, 97), 0x0001, 0x03FF, 0x7BFF, 0x7C00, 0xFC00):
        (expected,) = struct.unpack("<e", struct.pack("<H", word))
        assert wide[word] == expected or (np.isnan(wide[word]) and np.isnan(expected))


def test_a_nan_stays_one_and_becomes_quiet() -> None:
    signaling = np.array([0x7F812345, 0xFF812345], np.uint32).view(np.float32)
    assert [int(w) for w in fp32_to_fp16(signaling).view(np.uint16)] == [0x7E09, 0xFE09]
    assert [int(w) for w in narrow(signaling, Element.BF16).view(np.uint16)] == [0x7FC1, 0xFFC1]
    half = np.array([0x7C01, 0xFC01], np.uint16).view(np.float16)
    assert [hex(w) for w in bits_of(fp16_to_fp32(half))] == ["0x7fc02000", "0xffc02000"]


def test_narrowing_rounds_to_even_and_saturates() -> None:
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519, 65520, -1e9, 2**-25, 3 * 2**-25, np.inf], np.float32)
    expected = np.array([1, 1 + 2**-9, 65504, 65504, -65504, 0, 2**-23, np.inf], np.float16)
    assert np.array_equal(narrow(x, Element.F16).view(np.float16), expected)
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -3.4e38, -np.inf], np.float32)
    expected_words = np.array([0x3F80, 0x3F82, 0x7F7F, 0xFF7F, 0xFF80], np.uint16)
    assert np.array_equal(narrow(x, Element.BF16).view(np.uint16), expected_words)


@pytest.mark.parametrize("element", list(Element))
def test_widening_undoes_narrowing(element: Element) -> None:
    x = np.random.default_rng(0).integers(-200, 200, 64).astype(np.float32) / 4
    assert np.array_equal(widen(narrow(x, element), element), x)


def test_flush_leaves_normal_numbers_alone() -> None:
    x = np.array([0.0, -0.0, 1e-40, -1e-40, 2.0**-126, -(2.0**-126), 5], np.float32)
    flushed = flush(x)
    assert np.array_equal(flushed, np.array([0, 0, 0, 0, 2.0**-126, -(2.0**-126), 5], np.float32))
    assert not np.signbit(flushed[:4]).any()


def test_row_sum_keeps_its_order() -> None:
    x = np.random.default_rng(1).standard_normal((3, 96)).astype(np.float32)

    def octet(e: NDArray[np.float32]) -> np.float32:
        return ((e[0] + e[4]) + (e[2] + e[6])) + ((e[1] + e[5]) + (e[3] + e[7]))

    for row, total in zip(x, row_sum(x), strict=True):
        octets = [octet(row[i : i + 8]) for i in range(0, 96, 8)]
        blocks = [(o[0] + o[1]) + (o[2] + o[3]) for o in (octets[i : i + 4] for i in (0, 4, 8))]
        assert total == (blocks[0] + blocks[1]) + blocks[2]


@pytest.mark.parametrize("size", [1, 2, 32, 64])
def test_hadamard_is_the_matrix_of_signs(size: int) -> None:
    signs = np.array([[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)], np.float32)
    x = np.random.default_rng(2).integers(-100, 100, (5, size)).astype(np.float32)
    assert np.array_equal(hadamard(x), x @ signs)
    assert np.array_equal(hadamard(hadamard(x)), size * x)

"""Packing codes of 1, 2, 3, 4 and 8 bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pionkv.kernels import KernelError, ShortBuffer
from pionkv.kernels.bits import WIDTHS, pack_codes, packed_bytes, unpack_codes


@given(data=st.data(), width=st.sampled_from(WIDTHS), count=st.integers(1, 70))
def test_any_length_comes_back(data: st.DataObject, width: int, count: int) -> None:
    """R66."""
    values = data.draw(st.lists(st.integers(0, 2**width - 1), min_size=count, max_size=count))
    codes = np.array(values, np.uint8)
    packed = pack_codes(codes, width)
    assert packed.shape == (packed_bytes(count, width),)
    assert np.array_equal(unpack_codes(packed, width, count), codes)
    # The same codes as one number, the first in the lowest bits.
    number = sum(value << i * width for i, value in enumerate(values))
    assert packed.tobytes() == number.to_bytes(len(packed), "little")


def test_the_last_axis_is_packed() -> None:
    codes = np.arange(48, dtype=np.uint8).reshape(2, 3, 8) % 8
    packed = pack_codes(codes, 3)
    assert packed.shape == (2, 3, 3)
    assert np.array_equal(packed[1, 2], pack_codes(codes[1, 2], 3))
    assert np.array_equal(unpack_codes(packed, 3, 8), codes)


def test_no_codes() -> None:
    empty = np.zeros(0, np.uint8)
    assert pack_codes(empty, 3).size == 0
    assert unpack_codes(empty, 3, 0).size == 0


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_code_that_does_not_fit_is_refused(width: int) -> None:
    """R66."""
    codes = np.array([0, 2**width - 1, 2**width], np.uint8)
    with pytest.raises(KernelError, match=f"code {2**width} does not fit {width} bits"):
        pack_codes(codes, width)


def test_too_few_bytes_are_refused() -> None:
    """R66."""
    with pytest.raises(ShortBuffer, match="hold 2 bytes, 3 are needed"):
        unpack_codes(np.zeros(2, np.uint8), 3, 8)


@pytest.mark.parametrize("width", [0, 5, 6, 7, 9])
def test_other_widths_are_refused(width: int) -> None:
    with pytest.raises(KernelError, match=f"codes of {width} bits"):
        packed_bytes(8, width)

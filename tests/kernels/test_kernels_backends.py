"""Every backend gives the oracle's bytes, for every format, element type and layout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pionkv.kernels import FORMATS, Element, Heads, LayerSpec, Refused, pack, unpack
from pionkv.kernels.oracle.numeric import narrow

Rows = NDArray[np.float32]
BACKENDS = ("oracle", "cpu")


def packed_by(backend: str, spec: LayerSpec, source: NDArray[np.uint8], element: Element, rows: int) -> bytes:
    out = bytearray(rows * spec.row_bytes)
    pack(spec, source, element, rows, out, backend=backend)
    return bytes(out)


def unpacked_by(backend: str, spec: LayerSpec, packed: bytes, element: Element, rows: int) -> bytes:
    out = bytearray(rows * spec.dim * element.itemsize)
    unpack(spec, packed, rows, element, out, backend=backend)
    return bytes(out)


@pytest.mark.parametrize("element", list(Element))
def test_cpu_equals_oracle(spec: LayerSpec, hard_rows: Rows, element: Element) -> None:
    """R67."""
    source = narrow(hard_rows, element)
    oracle, cpu = (packed_by(name, spec, source, element, len(hard_rows)) for name in BACKENDS)
    assert oracle == cpu
    for wanted in Element:
        one, other = (unpacked_by(name, spec, oracle, wanted, len(hard_rows)) for name in BACKENDS)
        assert one == other


@pytest.mark.parametrize("name", list(FORMATS))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_cpu_equals_oracle_on_any_bits(name: str, data: st.DataObject) -> None:
    head_dim = 0 if FORMATS[name].group else 32
    spec = LayerSpec(name, 64, rope=32 if FORMATS[name].family == "rope" else 0, head_dim=head_dim)
    element = data.draw(st.sampled_from(Element))
    source = np.frombuffer(data.draw(st.binary(min_size=512, max_size=512)), np.uint8)
    rows = 512 // 64 // element.itemsize
    results: list[bytes | tuple[type, int, int]] = []
    for backend in BACKENDS:
        try:
            packed = packed_by(backend, spec, source, element, rows)
            results.append(packed + unpacked_by(backend, spec, packed, Element.F32, rows))
        except Refused as refused:
            results.append((type(refused), refused.row, refused.element))
    assert results[0] == results[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_head_major_rows_are_the_transposed_rows(spec: LayerSpec, hard_rows: Rows, backend: str) -> None:
    rows, dim = hard_rows.shape
    heads, allocated, width = 3, rows + 5, dim // 3
    x = hard_rows.astype(np.float16)
    cache = np.full((heads, allocated, width), np.nan, np.float16)
    cache[:, :rows] = x.reshape(rows, heads, width).transpose(1, 0, 2)
    layout = Heads(heads, allocated * width, width)
    plain, strided = (np.zeros(rows * spec.row_bytes, np.uint8) for _ in range(2))
    pack(spec, x, Element.F16, rows, plain, backend=backend)
    pack(spec, cache, Element.F16, rows, strided, layout=layout, backend=backend)
    assert np.array_equal(plain, strided)

    decoded = np.zeros((rows, dim), np.float16)
    back = np.full_like(cache, 123)
    unpack(spec, plain, rows, Element.F16, decoded, backend=backend)
    unpack(spec, plain, rows, Element.F16, back, layout=layout, backend=backend)
    assert np.array_equal(back[:, :rows], decoded.reshape(rows, heads, width).transpose(1, 0, 2))
    assert (back[:, rows:] == 123).all()


def test_unaligned_read_only_buffers(spec: LayerSpec, hard_rows: Rows) -> None:
    rows = len(hard_rows)
    source = narrow(hard_rows, Element.F32)
    out, shifted = bytearray(rows * spec.row_bytes), bytearray(rows * spec.row_bytes + 3)
    pack(spec, source, Element.F32, rows, out)
    pack(spec, memoryview(b"x" + source.tobytes())[1:], Element.F32, rows, memoryview(shifted)[3:])
    assert out == shifted[3:]


def test_rows_are_coded_on_their_own(spec: LayerSpec, hard_rows: Rows) -> None:
    whole = packed_by("cpu", spec, narrow(hard_rows, Element.F32), Element.F32, len(hard_rows))
    single = [packed_by("cpu", spec, narrow(row[None], Element.F32), Element.F32, 1) for row in hard_rows]
    assert whole == b"".join(single)


def test_any_multiple_of_the_group_is_a_dim(make_spec: Callable[[str, int], LayerSpec]) -> None:
    rng = np.random.default_rng(3)
    for name in FORMATS:
        for dim in (128, 320, 1024):
            spec = make_spec(name, dim)
            source = narrow(rng.standard_normal((2, dim)).astype(np.float32), Element.F16)
            assert packed_by("oracle", spec, source, Element.F16, 2) == packed_by(
                "cpu", spec, source, Element.F16, 2
            )

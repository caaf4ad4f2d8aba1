"""Every backend gives the oracle's bytes, for every format, element type and layout."""

from __future__ import annotations

import numpy as np
import pytest
from pionkv.kernels import FORMATS, Element, Heads, LayerSpec, pack, unpack
from pionkv.kernels.oracle.numeric import narrow

ROWS, DIM = 24, 192


def rows_of_every_kind() -> np.ndarray:
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((ROWS, DIM)) * 3).astype(np.float32)
    x[1] = 0
    x[2] = -0.0
    x[3, :32] = 5
    x[4] *= 1e-6
    x[5] *= 1e-9
    x[6] = 1e-40
    x[7, ::2] = -0.0
    x[8, :5], x[8, 6] = 60000, -60000
    x[9] = 65504
    x[10, ::2], x[10, 1::2] = 65504, -65504
    x[11] *= 2.0**-20
    x[12] = -np.abs(x[12])
    x[13] = np.abs(x[13])
    x[14, 1:] = 0
    x[15] = np.arange(DIM) - 7
    return x


@pytest.fixture(params=list(FORMATS))
def spec(request: pytest.FixtureRequest) -> LayerSpec:
    return LayerSpec(request.param, DIM)


@pytest.mark.parametrize("element", list(Element))
def test_cpu_equals_oracle(spec: LayerSpec, element: Element) -> None:
    x = rows_of_every_kind()
    if element is Element.BF16:
        x = np.clip(x, -65280, 65280)  # the largest bfloat16 below 65504
    source = narrow(x, element)
    packed = {name: np.zeros(ROWS * spec.row_bytes, np.uint8) for name in ("oracle", "cpu")}
    for name, out in packed.items():
        pack(spec, source, element, ROWS, out, backend=name)
    assert np.array_equal(packed["oracle"], packed["cpu"])
    for wanted in Element:
        decoded = {name: np.zeros(ROWS * DIM * wanted.itemsize, np.uint8) for name in packed}
        for name, out in decoded.items():
            unpack(spec, packed["oracle"], ROWS, wanted, out, backend=name)
        assert np.array_equal(decoded["oracle"], decoded["cpu"])


@pytest.mark.parametrize("backend", ["oracle", "cpu"])
def test_head_major_rows_are_the_transposed_rows(spec: LayerSpec, backend: str) -> None:
    heads, allocated, width = 3, ROWS + 5, DIM // 3
    x = rows_of_every_kind().astype(np.float16)
    cache = np.full((heads, allocated, width), np.nan, np.float16)
    cache[:, :ROWS] = x.reshape(ROWS, heads, width).transpose(1, 0, 2)
    layout = Heads(heads, allocated * width, width)
    plain, strided = (np.zeros(ROWS * spec.row_bytes, np.uint8) for _ in range(2))
    pack(spec, x, Element.F16, ROWS, plain, backend=backend)
    pack(spec, cache, Element.F16, ROWS, strided, layout=layout, backend=backend)
    assert np.array_equal(plain, strided)

    rows = np.zeros((ROWS, DIM), np.float16)
    back = np.full_like(cache, 123)
    unpack(spec, plain, ROWS, Element.F16, rows, backend=backend)
    unpack(spec, plain, ROWS, Element.F16, back, layout=layout, backend=backend)
    assert np.array_equal(back[:, :ROWS], rows.reshape(ROWS, heads, width).transpose(1, 0, 2))
    assert (back[:, ROWS:] == 123).all()


def test_unaligned_read_only_buffers(spec: LayerSpec) -> None:
    source = narrow(rows_of_every_kind(), Element.F32)
    out, shifted = bytearray(ROWS * spec.row_bytes), bytearray(ROWS * spec.row_bytes + 3)
    pack(spec, source, Element.F32, ROWS, out)
    pack(spec, memoryview(b"x" + source.tobytes())[1:], Element.F32, ROWS, memoryview(shifted)[3:])
    assert out == shifted[3:]

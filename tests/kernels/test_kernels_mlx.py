"""The mlx layouts against mlx itself, on its CPU backend."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from pionkv.kernels import Element, LayerSpec, pack, unpack
from pionkv.kernels.oracle import fp8

Rows = NDArray[np.float32]
FORMATS = {"mlx4g32": (4, 32), "mlx4g64": (4, 64), "mlx8g32": (8, 32), "mlx8g64": (8, 64)}


@pytest.fixture(params=list(FORMATS))
def mlx_spec(request: pytest.FixtureRequest) -> LayerSpec:
    return LayerSpec(request.param, 192)


def quantize(x: mx.array, spec: LayerSpec) -> tuple[mx.array, mx.array, mx.array]:
    bits, group = FORMATS[spec.format]
    codes, scales, biases = mx.quantize(x, group_size=group, bits=bits, stream=mx.cpu)
    return codes, scales, biases


def as_rows(codes: mx.array, scales: mx.array, biases: mx.array) -> NDArray[np.uint8]:
    planes = (np.array(codes), *(np.array(p.astype(mx.float16)) for p in (scales, biases)))
    return np.hstack([np.ascontiguousarray(plane).view(np.uint8) for plane in planes])


def from_rows(packed: NDArray[np.uint8], spec: LayerSpec) -> mx.array:
    bits, group = FORMATS[spec.format]
    size, params = spec.dim * bits // 8, 2 * (spec.dim // group)
    planes = [np.ascontiguousarray(p) for p in np.split(packed, [size, size + params], axis=1)]
    codes, scales, biases = (
        p.view(t) for p, t in zip(planes, (np.uint32, np.float16, np.float16), strict=True)
    )
    return mx.dequantize(
        mx.array(codes), mx.array(scales), mx.array(biases), group_size=group, bits=bits, stream=mx.cpu
    )


def ours(spec: LayerSpec, raw: NDArray[np.generic], element: Element, rows: int) -> NDArray[np.uint8]:
    out = np.zeros((rows, spec.row_bytes), np.uint8)
    pack(spec, raw, element, rows, out)
    return out


def test_fp16_rows_are_coded_as_mx_quantize_codes_them(mlx_spec: LayerSpec, hard_rows: Rows) -> None:
    x = hard_rows.astype(np.float16)
    expected = as_rows(*quantize(mx.array(x), mlx_spec))
    assert np.array_equal(ours(mlx_spec, x, Element.F16, len(x)), expected)


def test_many_gaussian_rows_are_coded_as_mx_quantize_codes_them(mlx_spec: LayerSpec) -> None:
    rng = np.random.default_rng(11)
    scale = np.exp2(rng.integers(-12, 8, (2000, 1)))
    x = ((rng.standard_normal((2000, 192)) + rng.standard_normal((2000, 1))) * scale).astype(np.float16)
    expected = as_rows(*quantize(mx.array(x), mlx_spec))
    assert np.array_equal(ours(mlx_spec, x, Element.F16, len(x)), expected)


def test_other_element_types_have_mlx_codes_and_fp16_parameters(mlx_spec: LayerSpec, hard_rows: Rows) -> None:
    expected = as_rows(*quantize(mx.array(hard_rows), mlx_spec))
    assert np.array_equal(ours(mlx_spec, hard_rows, Element.F32, len(hard_rows)), expected)
    bf16 = mx.array(hard_rows).astype(mx.bfloat16)
    codes = np.array(quantize(bf16, mlx_spec)[0]).view(np.uint8)
    words = np.array(bf16.view(mx.uint16))
    assert np.array_equal(ours(mlx_spec, words, Element.BF16, len(words))[:, : codes.shape[1]], codes)


@pytest.mark.parametrize("name", [*FORMATS, "mlx4g32_rt"])
def test_mx_dequantize_of_our_bytes_is_our_decode(name: str, hard_rows: Rows) -> None:
    """R48."""
    spec = LayerSpec(name, 192)
    layout = LayerSpec(name.removesuffix("_rt"), 192)
    packed = ours(spec, hard_rows, Element.F32, len(hard_rows))
    theirs = np.array(from_rows(packed, layout))
    decoded = np.zeros_like(theirs)
    unpack(spec, packed, len(packed), Element.F16, decoded)
    finite = np.isfinite(theirs)
    assert np.array_equal(decoded[finite].view(np.uint16), theirs[finite].view(np.uint16))
    # Rows 8 and 10 hold ±60000: their products leave fp16 in mlx, and only there.
    assert set(np.where(~finite)[0]) <= {8, 10}
    assert np.isfinite(decoded).all()


def test_a_range_beyond_fp16_decodes_to_finite_values_where_mlx_overflows() -> None:
    """R50."""
    x = np.tile(np.array([65504, -65504], np.float16), 96)[None]
    spec = LayerSpec("mlx4g32", 192)
    packed = ours(spec, x, Element.F16, 1)
    decoded = np.zeros_like(x)
    unpack(spec, packed, 1, Element.F16, decoded)
    assert np.isinf(np.array(from_rows(packed, spec))).any()
    # mlx makes the end of larger magnitude exact and gives the other one what 15 steps reach.
    step = 65504 / 8
    assert np.array_equal(decoded[0, :2], np.array([65504, 65504 - 15 * step], np.float16))
    assert (decoded[0, ::2] == decoded[0, 0]).all()
    assert (decoded[0, 1::2] == decoded[0, 1]).all()


def test_both_signs_of_scale_occur(mlx_spec: LayerSpec) -> None:
    """R49."""
    x = np.random.default_rng(5).standard_normal((64, 192)).astype(np.float16)
    params = 2 * (192 // FORMATS[mlx_spec.format][1])
    packed = ours(mlx_spec, x, Element.F16, 64)
    scales = np.ascontiguousarray(packed[:, -2 * params : -params]).view(np.float16)
    assert 0.3 < (scales < 0).mean() < 0.7


@pytest.mark.parametrize("convert", [lambda x: x, np.negative], ids=["positive", "negative"])
def test_e4m3_codes_are_those_of_mx_to_fp8(convert: Callable[[Rows], Rows]) -> None:
    ends = np.array([0, 2.0**-10, 2.0**-9, 3 * 2.0**-10, 2.0**-6, 447, 448], np.float32)
    x = convert(np.concatenate([ends, np.linspace(0, 448, 60001, dtype=np.float32)]))
    expected = np.array(mx.to_fp8(mx.array(x), stream=mx.cpu))
    assert np.array_equal(fp8.encode(x, fp8.E4M3), expected)


def test_e4m3_values_are_those_of_mx_from_fp8() -> None:
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    expected = np.array(mx.from_fp8(mx.array(codes), mx.float32, stream=mx.cpu))
    assert np.array_equal(fp8.decode(codes, fp8.E4M3), expected)

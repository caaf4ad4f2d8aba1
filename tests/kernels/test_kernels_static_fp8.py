"""fp8 rows whose scales lie elsewhere: equal on both backends, saturating, bound to their set of scales."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray
from pionkv.kernels import Element, FormatError, Heads, NonFinite, ShortBuffer, static_fp8
from pionkv.kernels.oracle.numeric import narrow, widen
from pionkv.kernels.scales import UNCALIBRATED, ScaleManifest
from pionkv.kernels.static_fp8 import ScaleMismatch, StaticScales

LARGEST = {"fp8": 448.0, "fp8_e5m2": 57344.0}
TENSOR = ScaleManifest("fp8", "tensor", "float32", "multiply", "dataset", "calibration-7")
UNMEASURED = dataclasses.replace(TENSOR, method="none", artifact=UNCALIBRATED)


def scales_of(name: str, *values: float) -> StaticScales:
    shape = "head" if len(values) > 1 else "tensor"
    return StaticScales(dataclasses.replace(TENSOR, format=name, shape=shape), values)


def packed_by(
    backend: str, scales: StaticScales, source: NDArray[np.uint8], element: Element, dim: int
) -> bytes:
    rows = source.size // (dim * element.itemsize)
    out = bytearray(rows * dim)
    static_fp8.pack(scales, dim, source.ravel(), element, rows, out, backend=backend)
    return bytes(out)


def unpacked_by(
    backend: str, scales: StaticScales, packed: bytes, element: Element, dim: int
) -> NDArray[np.uint8]:
    out = np.zeros(len(packed) * element.itemsize, np.uint8)
    rows = len(packed) // dim
    static_fp8.unpack(scales, scales.manifest, dim, packed, rows, element, out, backend=backend)
    return out


@pytest.mark.parametrize("values", [(0.037,), (1e-3, 0.5, 7.0), (2.0**-64, 2.0**64)], ids=len)
@pytest.mark.parametrize("element", Element, ids=lambda e: e.name)
@pytest.mark.parametrize("name", LARGEST)
def test_cpu_equals_oracle(
    hard_rows: NDArray[np.float32], name: str, element: Element, values: tuple[float, ...]
) -> None:
    """R52, R67."""
    scales, source = scales_of(name, *values), narrow(hard_rows, element)
    oracle, cpu = (packed_by(backend, scales, source, element, 192) for backend in ("oracle", "cpu"))
    assert oracle == cpu
    every_code = bytes(range(256)) * 3
    for wanted in Element:
        one, other = (unpacked_by(b, scales, oracle + every_code, wanted, 192) for b in ("oracle", "cpu"))
        assert np.array_equal(one, other)


@pytest.mark.parametrize("backend", ["oracle", "cpu"])
@pytest.mark.parametrize("name", LARGEST)
def test_each_head_has_its_scale_and_values_beyond_it_saturate(name: str, backend: str) -> None:
    """R52, R54."""
    scales, largest = scales_of(name, 0.5, 4.0), LARGEST[name]
    x = np.zeros((1, 64), np.float32)
    x[0, :4] = [0.5, -0.5, 1e30, -1e30]
    x[0, 32:36] = [4.0, -8.0, largest * 4, largest * 5]
    back = unpacked_by(
        backend, scales, packed_by(backend, scales, x.view(np.uint8), Element.F32, 64), Element.F32, 64
    )
    values = widen(back, Element.F32)
    assert values[:4].tolist() == [0.5, -0.5, largest / 2, -largest / 2]
    assert values[32:36].tolist() == [4.0, -8.0, largest * 4, largest * 4]


def test_head_major_rows() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 2, 64)).astype(np.float16)
    cache = np.zeros((2, 9, 64), np.float16)
    cache[:, :5] = x.transpose(1, 0, 2)
    scales, out = scales_of("fp8", 0.01, 0.02), bytearray(5 * 128)
    static_fp8.pack(scales, 128, cache, Element.F16, 5, out, layout=Heads(2, 9 * 64, 64))
    assert bytes(out) == packed_by("oracle", scales, x.view(np.uint8), Element.F16, 128)


@pytest.mark.parametrize("backend", ["oracle", "cpu"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(value: float, backend: str) -> None:
    x = np.ones((3, 64), np.float32)
    x[1, 40] = value
    with pytest.raises(NonFinite) as refused:
        packed_by(backend, scales_of("fp8", 1.5), x.view(np.uint8), Element.F32, 64)
    assert (refused.value.row, refused.value.element) == (1, 40)


@pytest.mark.parametrize(
    ("field", "value"),
    [("artifact", "calibration-8"), ("format", "fp8_e5m2"), ("skipped_layers", (3,)), ("backend", "vllm")],
)
def test_rows_made_under_other_scales_are_not_decoded(field: str, value: object) -> None:
    """R61."""
    scales = scales_of("fp8", 0.25)
    made_under = dataclasses.replace(scales.manifest, **{field: value})
    out = bytearray(b"x" * 256)
    with pytest.raises(ScaleMismatch, match=f"rows with {field} "):
        static_fp8.unpack(scales, made_under, 64, bytes(64), 1, Element.F32, out)
    assert out == b"x" * 256


def test_scales_that_nobody_measured_are_one_and_say_so() -> None:
    """R52."""
    StaticScales(UNMEASURED, (1.0,)).validate(64)
    with pytest.raises(FormatError, match="scale 2 is said to be uncalibrated 1.0"):
        StaticScales(UNMEASURED, (2.0,)).validate(64)


@pytest.mark.parametrize(
    ("values", "shape", "dim", "problem"),
    [
        ((1.0, 1.0), "tensor", 64, "2 scales of each tensor do not fit dim 64"),
        ((1.0, 2.0, 3.0), "head", 64, "3 scales of each head do not fit dim 64"),
        ((), "head", 64, "0 scales"),
        ((1.0,), "block", 64, "lie in the rows"),
        ((1.0,), "tensor", 48, "dim 48 is not a multiple of 32"),
        ((0.0,), "tensor", 64, "scale 0 is not in"),
        ((float("nan"),), "tensor", 64, "scale nan is not in"),
        ((-1.0,), "layer", 64, "scale -1 is not in"),
    ],
)
def test_sets_that_do_not_fit(values: tuple[float, ...], shape: str, dim: int, problem: str) -> None:
    manifest = dataclasses.replace(TENSOR, shape=shape)
    with pytest.raises(FormatError, match=problem):
        StaticScales(manifest, values).validate(dim)


def test_short_buffers_and_no_rows() -> None:
    scales = scales_of("fp8", 1.5)
    with pytest.raises(ShortBuffer, match="out holds 63 bytes, 64"):
        static_fp8.pack(scales, 64, bytes(256), Element.F32, 1, bytearray(63))
    static_fp8.pack(scales, 64, b"", Element.F32, 0, bytearray())

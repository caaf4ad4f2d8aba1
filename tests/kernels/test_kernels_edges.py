"""The edge policy, format by format: what is refused and where, and what the extremes become."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from pionkv.kernels import (
    FORMATS,
    Element,
    FormatError,
    Heads,
    LayerSpec,
    NonFinite,
    Overflow,
    ShortBuffer,
    pack,
    unpack,
)
from pionkv.kernels.oracle.numeric import narrow, widen

Rows = NDArray[np.float32]
BACKENDS = ("oracle", "cpu")
QUANTIZED = [name for name, fmt in FORMATS.items() if fmt.quantized]


def stored(spec: LayerSpec, x: Rows, backend: str = "cpu", element: Element = Element.F32) -> bytes:
    out = bytearray(len(x) * spec.row_bytes)
    pack(spec, narrow(x, element), element, len(x), out, backend=backend)
    return bytes(out)


def restored(spec: LayerSpec, x: Rows, element: Element = Element.F32) -> Rows:
    out = np.zeros(x.size * element.itemsize, np.uint8)
    unpack(spec, stored(spec, x), len(x), element, out)
    return widen(out, element).reshape(x.shape)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", QUANTIZED)
def test_non_finite_values_are_refused_where_they_are(
    name: str, value: float, backend: str, make_spec: Callable[[str, int], LayerSpec]
) -> None:
    """R45, R46."""
    x = np.ones((5, 192), np.float32)
    x[3, 170], x[4, 0] = value, np.nan
    for element in Element:
        with pytest.raises(NonFinite, match="non-finite value at row 3, element 170") as refused:
            stored(make_spec(name, 192), x, backend, element)
        assert (refused.value.row, refused.value.element) == (3, 170)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", list(FORMATS))
def test_the_limit_is_accepted_and_the_next_float_refused(
    name: str, backend: str, make_spec: Callable[[str, int], LayerSpec]
) -> None:
    """R45, R47."""
    spec = make_spec(name, 192)
    limit = np.float32(spec.details.limit)
    x = np.zeros((3, 192), np.float32)
    x[1] = limit
    x[2, ::2], x[2, 1::2] = limit, -limit
    decoded = np.zeros_like(x)
    unpack(spec, stored(spec, x, backend), 3, Element.F32, decoded, backend=backend)
    assert np.isfinite(decoded).all()
    if name == "fp32":
        return  # every finite value fits
    beyond = np.nextafter(limit, np.float32(np.inf))
    x[1, 100] = -beyond
    with pytest.raises(Overflow, match="at row 1, element 100 is beyond the format's") as refused:
        stored(spec, x, backend)
    error = refused.value
    assert (error.row, error.element, error.value, error.limit) == (1, 100, -beyond, spec.details.limit)


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_a_head_major_value_is_refused_is_said_in_rows(backend: str) -> None:
    heads = np.ones((3, 10, 64), np.float32)
    heads[2, 4, 5] = np.inf
    spec, out = LayerSpec("int8", 192), bytearray(10 * 200)
    with pytest.raises(NonFinite) as refused:
        pack(spec, heads, Element.F32, 10, out, layout=Heads(3, 640, 64), backend=backend)
    assert (refused.value.row, refused.value.element) == (4, 2 * 64 + 5)


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_conversions_carry_non_finite_values(name: str) -> None:
    x = np.array([[np.inf, -np.inf, np.nan, 1.5]], np.float32)
    assert np.array_equal(restored(LayerSpec(name, 4), x), x, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "element"), [("fp16", Element.F16), ("bf16", Element.BF16)])
def test_any_16_bits_survive_their_own_format(name: str, element: Element, backend: str) -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    spec, out = LayerSpec(name, 512), np.zeros(1 << 16, np.uint16)
    pack(spec, words, element, 128, out, backend=backend)
    quiet = 0x0200 if element is Element.F16 else 0x0040
    exponent = 0x7C00 if element is Element.F16 else 0x7F80
    is_nan = (words & 0x7FFF) > exponent
    # A signaling NaN is the one pattern that a conversion may change: it becomes quiet.
    assert np.array_equal(out, np.where(is_nan, words | quiet, words))


def test_bfloat16_of_3e38_is_refused_where_it_does_not_fit() -> None:
    x = np.full((1, 192), 3e38, np.float32)
    for name in ("fp32", "bf16"):
        assert np.allclose(restored(LayerSpec(name, 192), x), x, rtol=2**-8)
    for name in ("fp16", "int8", "fp8", "turbo4", "mlx4g32"):
        with pytest.raises(Overflow):
            stored(LayerSpec(name, 192), x, element=Element.BF16)


def test_zero_rows_are_exactly_zero(spec: LayerSpec) -> None:
    """R45."""
    for zero in (0.0, -0.0):
        x = np.full((2, spec.dim), zero, np.float32)
        assert (restored(spec, x) == 0).all()


def test_no_rows_at_all(spec: LayerSpec) -> None:
    out = bytearray(b"keep")
    for backend in BACKENDS:
        pack(spec, b"", Element.F32, 0, out, backend=backend)
        unpack(spec, b"", 0, Element.F32, out, backend=backend)
    assert out == b"keep"


# How far a constant row of 5.0 may be off, as a share of 5; where nothing is said it is exact.
CONSTANT = {"fp8": 2.0**-11, "fp8_e5m2": 2.0**-11, "bf16_rope_fp8_body": 2.0**-11}


def test_constant_rows(spec: LayerSpec) -> None:
    x = np.full((1, spec.dim), 5, np.float32)
    error = restored(spec, x) - x
    if spec.details.family == "rvq":
        # A rotated constant is as random as any other head: only the error of the whole is bounded.
        assert np.sqrt((error**2).mean()) <= 5 * (0.45 if spec.format == "rvq1" else 0.2)
    else:
        assert np.abs(error).max() <= 5 * CONSTANT.get(spec.format, 0)


@pytest.mark.parametrize("exponent", [-149, -130, -126, -101, -80, -40, -26, -24, -15])
def test_tiny_rows_stay_tiny_and_finite(spec: LayerSpec, exponent: int) -> None:
    """R47."""
    x = np.random.default_rng(0).uniform(-1, 1, (4, spec.dim)).astype(np.float32)
    x = np.ldexp(x, exponent).astype(np.float32)
    decoded = restored(spec, x)
    assert np.isfinite(decoded).all()
    # Nothing may come back larger than the coarsest step near zero, that of an fp16 scale.
    assert np.abs(decoded).max() <= max(2.0 * 2.0**exponent, 2.0**-14)


@pytest.mark.parametrize("name", ["turbo4", "turbo3", "turbo2", "rvq2", "int8"])
@pytest.mark.parametrize("exponent", [-40, -20, 0, 20, 50])
def test_formats_with_a_float32_or_bfloat16_scale_do_not_depend_on_magnitude(
    name: str, exponent: int, make_spec: Callable[[str, int], LayerSpec]
) -> None:
    """R53."""
    spec = make_spec(name, 192)
    x = np.random.default_rng(1).standard_normal((4, 192)).astype(np.float32)
    scaled = np.ldexp(x, exponent).astype(np.float32)
    assert np.array_equal(restored(spec, scaled), np.ldexp(restored(spec, x), exponent))


@pytest.mark.parametrize("backend", ["oracle", "cpu"])
def test_int8_rows_up_to_its_limit_decode_to_finite_values(backend: str) -> None:
    """R45, R51."""
    # Half of float32's largest would be too much: 254 steps, each rounded up, may leave its range.
    limit = np.float32(FORMATS["int8"].limit)
    spec, x = LayerSpec("int8", 5), np.array([[1, -1, 1, 0.3, 0], [1, 1, 1, 1, 1]], np.float32) * limit
    out, back = np.zeros((2, spec.row_bytes), np.uint8), np.zeros_like(x)
    pack(spec, x, Element.F32, 2, out, backend=backend)
    unpack(spec, out, 2, Element.F32, back, backend=backend)
    assert np.isfinite(back).all()
    assert np.abs(back - x).max() <= limit / 250
    with pytest.raises(Overflow):
        pack(spec, x * np.float32(1.0001), Element.F32, 2, out, backend=backend)


def test_decoded_values_saturate_in_a_narrower_element() -> None:
    x = np.full((1, 32), 1e6, np.float32)
    x[0, ::2] = -1e6
    for name in ("fp32", "int8", "fp8", "turbo4"):
        decoded = restored(LayerSpec(name, 32), x, Element.F16)
        assert np.array_equal(decoded, np.sign(x) * 65504)
    top = np.full((1, 4), 3.4e38, np.float32)
    assert (restored(LayerSpec("fp32", 4), top, Element.BF16) == np.float32(3.3895314e38)).all()


def test_a_block_of_zeros_beside_one_that_is_not(spec: LayerSpec) -> None:
    if spec.group >= spec.dim or spec.details.family in {"int8", "plain"}:
        assert spec.details.family in {"int8", "plain"}
        return
    group = spec.group
    x = np.zeros((1, spec.dim), np.float32)
    x[0, -group:] = np.linspace(-1, 1, group)
    decoded = restored(spec, x)
    assert (decoded[0, :-group] == 0).all()
    assert decoded[0, -group:].any()


def test_qserve_offset_is_not_clamped() -> None:
    """R59."""
    x = np.linspace(1, 2, 64, dtype=np.float32)[None]
    spec = LayerSpec("qserve4", 64, head_dim=64)
    params = np.frombuffer(stored(spec, x)[32:], np.float16)
    assert params[1] == -15
    assert np.abs(restored(spec, x) - x).max() <= 0.5 / 15 + 1e-3


def test_qserve_ranges_too_narrow_for_their_offset_become_constant() -> None:
    x = (1000 + np.linspace(0, 1e-3, 64, dtype=np.float32))[None]
    spec = LayerSpec("qserve4", 64, head_dim=64)
    params = np.frombuffer(stored(spec, x)[32:], np.float16)
    assert tuple(params) == (1000, -1)
    assert (restored(spec, x) == 1000).all()


def test_int8_ends_are_exact_and_steps_are_even() -> None:
    """R45, R51."""
    x = np.linspace(-3, 5, 255, dtype=np.float32)[None]
    spec = LayerSpec("int8", 255)
    codes = np.frombuffer(stored(spec, x)[8:], np.int8)
    assert np.array_equal(codes, np.arange(-127, 128))
    assert np.abs(restored(spec, x) - x).max() <= 1e-6
    tie = np.array([[0, 254, 0.5, 1.5, 2.5]], np.float32)  # scale 1: halves go to the even code
    codes = np.frombuffer(stored(LayerSpec("int8", 5), tie)[8:], np.int8)
    assert tuple(codes.astype(int) + 127) == (0, 254, 0, 2, 2)


def test_short_buffers_are_refused_by_name(spec: LayerSpec) -> None:
    """R66."""
    x, out = bytearray(2 * spec.dim * 4), bytearray(2 * spec.row_bytes)
    with pytest.raises(ShortBuffer, match=f"source holds {len(x) - 1} bytes, {len(x)} are needed"):
        pack(spec, memoryview(x)[:-1], Element.F32, 2, out)
    with pytest.raises(ShortBuffer, match=f"out holds {len(out) - 1} bytes, {len(out)} are needed"):
        pack(spec, x, Element.F32, 2, memoryview(out)[:-1])
    with pytest.raises(ShortBuffer, match="packed holds"):
        unpack(spec, memoryview(out)[:-1], 2, Element.F32, x)
    with pytest.raises(ShortBuffer, match="out holds"):
        unpack(spec, out, 2, Element.F32, memoryview(x)[:-1])


def test_only_the_rows_are_written(spec: LayerSpec) -> None:
    x = np.random.default_rng(2).standard_normal((2, spec.dim)).astype(np.float32)
    out = np.full(2 * spec.row_bytes + 64, 0xA5, np.uint8)
    back = np.full(2 * spec.dim * 4 + 64, 0xA5, np.uint8)
    for backend in BACKENDS:
        pack(spec, x, Element.F32, 2, out, backend=backend)
        unpack(spec, out, 2, Element.F32, back, backend=backend)
        assert (out[-64:] == 0xA5).all()
        assert (back[-64:] == 0xA5).all()


def test_invalid_specs_are_refused_before_any_work() -> None:
    with pytest.raises(FormatError, match="dim 100 is not a multiple of 32"):
        pack(LayerSpec("fp8", 100), bytes(400), Element.F32, 1, bytearray(1000))
    with pytest.raises(FormatError, match="dim 100 is not a multiple of 32"):
        unpack(LayerSpec("fp8", 100), bytes(400), 1, Element.F32, bytearray(1000))
    with pytest.raises(FormatError, match="overlap"):
        pack(LayerSpec("fp8", 64), bytes(256), Element.F32, 1, bytearray(1000), layout=Heads(1, 0, 32))

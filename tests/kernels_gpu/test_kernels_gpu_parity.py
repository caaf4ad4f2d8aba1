"""The GPU kernels' text, compiled for a CPU, gives the oracle's bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gpu_cases import Layout, edge_rows, laid_out, refusals, shapes, words_of
from gpu_shim import Shim, Variant, shim_pack, shim_unpack
from numpy.typing import NDArray
from pionkv.kernels import FORMATS, Element, Heads, LayerSpec, Refused, pack, unpack
from pionkv.kernels.gpu_source import Dialect, Direction, plan

each_dialect = pytest.mark.parametrize("dialect", Dialect, ids=lambda d: d.value)
each_format = pytest.mark.parametrize("name", FORMATS)
each_element = pytest.mark.parametrize("element", Element, ids=lambda e: e.name.lower())


def oracle_pack(spec: LayerSpec, words: NDArray[np.generic], element: Element) -> NDArray[np.uint8]:
    out = np.empty(len(words) * spec.row_bytes, np.uint8)
    pack(spec, np.ascontiguousarray(words), element, len(words), out, backend="oracle")
    return out


def oracle_unpack(
    spec: LayerSpec, packed: NDArray[np.uint8], element: Element, heads: int, rows: int
) -> NDArray[np.uint8]:
    out = np.empty(rows * spec.dim * element.itemsize, np.uint8)
    width = spec.dim // heads
    layout = Heads(heads, rows * width, width)
    unpack(spec, packed, rows, element, out, layout=layout, backend="oracle")
    return out


def assert_same(ours: NDArray[np.uint8], oracle: NDArray[np.uint8], where: str) -> None:
    different = np.flatnonzero(ours != oracle)
    if different.size:
        at = int(different[0])
        pytest.fail(
            f"{where}: {different.size} bytes differ, first {at}: {ours[at]:#x} is not {oracle[at]:#x}"
        )


@pytest.mark.parametrize("flush", [False, True], ids=["ieee", "flushing"])
@each_dialect
@each_element
@each_format
def test_pack_and_unpack_equal_the_oracle(
    shim_of: Callable[[Dialect], Shim], name: str, element: Element, dialect: Dialect, flush: bool
) -> None:
    """R67."""
    for spec, layout in shapes(name):
        words = words_of(edge_rows(spec.dim, element, spec.details.limit, seed=1), element)
        expected = oracle_pack(spec, words, element)
        where = f"{spec} {layout}"
        packed, refused = shim_pack(shim_of(dialect), spec, laid_out(words, layout), element, flush=flush)
        assert refused == -1, where
        assert_same(packed, expected, f"pack {where}")
        unpacked = shim_unpack(
            shim_of(dialect), spec, expected, element, layout.heads, len(words), flush=flush
        )
        assert_same(
            unpacked, oracle_unpack(spec, expected, element, layout.heads, len(words)), f"unpack {where}"
        )


@each_dialect
@each_element
@each_format
def test_the_first_refused_value_is_named(
    shim_of: Callable[[Dialect], Shim], name: str, element: Element, dialect: Dialect
) -> None:
    spec, _ = list(shapes(name))[2]
    dim = spec.dim
    rng = np.random.default_rng(2)
    for value in refusals(element, spec.details.limit, quantized=spec.verbatim_element is None):
        for first in (0, dim - 1, 5 * dim + dim // 3, 37 * dim - 1):
            values = rng.standard_normal(37 * dim).astype(np.float32)
            values[first] = value
            values[first + 1 :: 911] = value
            words = words_of(values.reshape(37, dim), element)
            _, refused = shim_pack(shim_of(dialect), spec, laid_out(words, Layout()), element)
            assert refused == first, value
            with pytest.raises(Refused) as raised:
                oracle_pack(spec, words, element)
            assert divmod(first, dim) == (raised.value.row, raised.value.element)


@each_dialect
@pytest.mark.parametrize("stored", [Element.F16, Element.BF16, Element.F32], ids=lambda e: e.name.lower())
@each_element
def test_verbatim_formats_carry_every_bit_pattern(
    shim_of: Callable[[Dialect], Shim], element: Element, stored: Element, dialect: Dialect
) -> None:
    spec = LayerSpec({Element.F16: "fp16", Element.BF16: "bf16", Element.F32: "fp32"}[stored], 1024)
    if element is Element.F32:
        rng = np.random.default_rng(3)
        words = rng.integers(0, 2**32, (64, 1024), np.uint64).astype(np.uint32)
    else:
        words = np.arange(2**16, dtype=np.uint16).reshape(64, 1024)
    as_float = words.view(np.float32) if element is Element.F32 else words
    try:
        expected = oracle_pack(spec, as_float, element)
        first = -1
    except Refused as refusal:
        first = refusal.row * 1024 + refusal.element
    packed, refused = shim_pack(shim_of(dialect), spec, laid_out(as_float, Layout()), element)
    assert refused == first
    if first == -1:
        assert_same(packed, expected, "pack")
    stored_words = np.arange(2**16, dtype=np.uint16) if stored is not Element.F32 else words
    stored_bytes = stored_words.view(np.uint8)
    rows = stored_bytes.size // spec.row_bytes
    ours = shim_unpack(shim_of(dialect), spec, stored_bytes[: rows * spec.row_bytes], element, 2, rows)
    assert_same(ours, oracle_unpack(spec, stored_bytes[: rows * spec.row_bytes], element, 2, rows), "unpack")


@each_dialect
@pytest.mark.parametrize(
    ("name", "tuning"),
    [
        ("mlx4g32", {"STEPS": 1}),
        ("mlx4g32", {"STEPS": 4}),
        ("int8", {"KEEP": 1}),
        ("int8", {"KEEP": 3}),
        ("fp8", {"TEAMS": 4}),
        ("turbo3", {"TEAMS": 16}),
    ],
)
def test_constants_for_speed_change_no_byte(
    tmp_path: Path, name: str, tuning: dict[str, int], dialect: Dialect
) -> None:
    spec, element = LayerSpec(name, 1056), Element.F16
    kernel = plan(dialect, spec, Direction.PACK, element, 1, tuning).kernel
    shim = Shim(dialect, [Variant(kernel, Direction.PACK, element)], tmp_path)
    words = words_of(edge_rows(spec.dim, element, spec.details.limit, seed=5), element)
    packed, refused = shim_pack(shim, spec, laid_out(words, Layout()), element, tuning=tuning)
    assert refused == -1
    assert_same(packed, oracle_pack(spec, words, element), f"{name} {tuning}")

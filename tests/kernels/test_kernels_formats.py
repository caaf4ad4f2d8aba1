"""The registry: names, tags, bytes per row, and what a spec refuses."""

from __future__ import annotations

import dataclasses

import pytest
from pionkv.kernels import (
    FORMATS,
    Element,
    FormatError,
    Heads,
    LayerSpec,
    UnknownFormat,
    format_by_name,
    format_by_tag,
    smallest_spec,
)

# Tags are on disk: this table may grow, its lines may not change.
TAGS = {
    "int8": 0,
    "turbo4": 1,
    "fp16": 2,
    "turbo3": 3,
    "turbo2": 4,
    "fp8": 5,
    "bf16_rope_fp8_body": 6,
    "mlx4g32": 7,
    "fp32": 16,
    "bf16": 17,
    "mlx4g64": 18,
    "mlx8g32": 19,
    "mlx8g64": 20,
    "mlx4g32_rt": 21,
    "fp8_e5m2": 22,
    "qserve4": 23,
    "rvq1": 24,
    "rvq2": 25,
}

ROW_BYTES = {  # at dim 128, 1024
    "fp32": (512, 4096),
    "fp16": (256, 2048),
    "bf16": (256, 2048),
    "int8": (136, 1032),
    "fp8": (140, 1092),
    "fp8_e5m2": (140, 1092),
    "turbo4": (76, 580),
    "turbo3": (60, 452),
    "turbo2": (44, 324),
    "mlx4g32": (80, 640),
    "mlx4g32_rt": (80, 640),
    "mlx4g64": (72, 576),
    "mlx8g32": (144, 1152),
    "mlx8g64": (136, 1088),
}


def test_tags_are_stable_and_lead_back() -> None:
    assert {name: fmt.tag for name, fmt in FORMATS.items()} == TAGS
    for name, tag in TAGS.items():
        assert format_by_tag(tag).name == name


@pytest.mark.parametrize(("name", "sizes"), ROW_BYTES.items())
def test_row_bytes(name: str, sizes: tuple[int, int]) -> None:
    assert (LayerSpec(name, 128).row_bytes, LayerSpec(name, 1024).row_bytes) == sizes


def test_row_bytes_of_formats_that_need_more_than_a_dim() -> None:
    assert LayerSpec("bf16_rope_fp8_body", 576, rope=64).row_bytes == 64 * 2 + 16 * 34
    assert LayerSpec("qserve4", 1024, head_dim=128).row_bytes == 544
    assert LayerSpec("rvq1", 128, head_dim=128).row_bytes == 34
    assert LayerSpec("rvq2", 128, head_dim=128).row_bytes == 66


def test_names_in_any_case() -> None:
    assert format_by_name("FP16") is FORMATS["fp16"]
    assert LayerSpec("Turbo4", 64) == LayerSpec("turbo4", 64)


def test_unknown_names_and_tags() -> None:
    with pytest.raises(UnknownFormat, match=r"unknown format 'fp7' \(want fp32\|fp16\|"):
        format_by_name("FP7")
    with pytest.raises(UnknownFormat, match="tag 99"):
        format_by_tag(99)
    with pytest.raises(UnknownFormat):
        LayerSpec("fp7", 64).validate()


def test_verbatim_formats_name_their_element() -> None:
    verbatim = {name: LayerSpec(name, 64).verbatim_element for name in FORMATS}
    named = {name: element for name, element in verbatim.items() if element is not None}
    assert named == {"fp32": Element.F32, "fp16": Element.F16, "bf16": Element.BF16}
    assert [element.itemsize for element in Element] == [4, 2, 2]


@pytest.mark.parametrize("name", list(FORMATS))
def test_smallest_specs_are_valid(name: str) -> None:
    smallest_spec(name).validate()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (LayerSpec("fp16", 0), "fp16: dim 0 is not in 1..8192"),
        (LayerSpec("int8", 8193), "int8: dim 8193 is not in 1..8192"),
        (LayerSpec("fp8", 100), "fp8: dim 100 is not a multiple of 32"),
        (LayerSpec("turbo2", 33), "turbo2: dim 33 is not a multiple of 32"),
        (LayerSpec("mlx4g64", 96), "mlx4g64: dim 96 is not a multiple of 64"),
        (LayerSpec("fp16", 64, rope=32), "fp16: rope=32 is for bf16_rope_fp8_body only"),
        (LayerSpec("fp16", 64, head_dim=32), "fp16: head_dim=32 is for formats grouped by head only"),
        (LayerSpec("bf16_rope_fp8_body", 64), "rope 0 is not between 0 and dim 64"),
        (LayerSpec("bf16_rope_fp8_body", 64, rope=64), "rope 64 is not between 0 and dim 64"),
        (LayerSpec("bf16_rope_fp8_body", 64, rope=40), "dim 64 - rope 40 is not a multiple of 32"),
        (LayerSpec("bf16_rope_fp8_body", 64, rope=32, head_dim=32), "grouped by head only"),
        (LayerSpec("qserve4", 64), "qserve4: dim 64 is not a multiple of head_dim 0"),
        (LayerSpec("qserve4", 64, head_dim=48), "qserve4: dim 64 is not a multiple of head_dim 48"),
        (LayerSpec("qserve4", 33, head_dim=11), "qserve4: head_dim 11 is odd"),
        (LayerSpec("rvq1", 96, head_dim=96), "rvq1: head_dim 96 is not a power of two of at least 32"),
        (LayerSpec("rvq2", 64, head_dim=16), "rvq2: head_dim 16 is not a power of two of at least 32"),
    ],
)
def test_specs_that_do_not_fit(spec: LayerSpec, text: str) -> None:
    with pytest.raises(FormatError) as refused:
        spec.validate()
    assert text in str(refused.value)


def test_specs_are_values() -> None:
    spec = LayerSpec("fp16", 64)
    assert {spec: 1}[LayerSpec("fp16", 64)] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.dim = 32  # type: ignore[misc]


def test_extent_of_head_major_rows() -> None:
    assert Heads(1, 0, 192).extent(10, 192) == 1920
    assert Heads(3, 256 * 64, 64).extent(10, 192) == 2 * 256 * 64 + 9 * 64 + 64
    assert Heads(3, 256 * 64, 64).extent(0, 192) == 0


@pytest.mark.parametrize(
    ("heads", "text"),
    [
        (Heads(0, 0, 64), "dim 64 is not a multiple of 0 heads"),
        (Heads(5, 0, 64), "dim 64 is not a multiple of 5 heads"),
        (Heads(1, 0, 63), "strides 0, 63 overlap for a head of 64"),
        (Heads(1, -1, 64), "strides -1, 64 overlap for a head of 64"),
    ],
)
def test_layouts_that_do_not_fit(heads: Heads, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        heads.extent(2, 64)

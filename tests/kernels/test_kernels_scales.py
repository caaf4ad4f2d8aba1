"""The record of fp8 scales."""

from __future__ import annotations

import dataclasses

import pytest
from pionkv.kernels import FormatError
from pionkv.kernels.scales import UNCALIBRATED, ScaleManifest, own_scales

HEADS = ScaleManifest(
    "fp8", "head", "float32", "multiply", "dataset", "calibration-7", (0, 31), True, "vllm", "0.25"
)


def test_it_survives_plain_values() -> None:
    """R60."""
    for manifest in (HEADS, own_scales("fp8"), own_scales("fp8_e5m2")):
        assert ScaleManifest.from_dict(manifest.as_dict()) == manifest


@pytest.mark.parametrize(
    ("field", "value"),
    [("format", "fp8_e5m2"), ("shape", "layer"), ("artifact", "calibration-8"), ("skipped_layers", (0,))],
)
def test_the_first_difference_is_named(field: str, value: object) -> None:
    """R61."""
    other = dataclasses.replace(HEADS, **{field: value})
    assert HEADS.differs(other) == (field, getattr(HEADS, field), value)
    assert HEADS.differs(HEADS) is None


def test_scales_of_one_are_called_uncalibrated() -> None:
    """R52."""
    dataclasses.replace(HEADS, method="none", artifact=UNCALIBRATED).validate()
    for method, artifact in (
        ("none", "calibration-7"),
        ("dataset", UNCALIBRATED),
        ("dataset", ""),
        ("dynamic", "x"),
    ):
        with pytest.raises(FormatError, match="artifact"):
            dataclasses.replace(HEADS, method=method, artifact=artifact).validate()


def test_records_that_do_not_fit() -> None:
    with pytest.raises(FormatError, match="is not fp8"):
        own_scales("int8")
    with pytest.raises(FormatError, match="fields differ: shape"):
        ScaleManifest.from_dict({k: v for k, v in HEADS.as_dict().items() if k != "shape"})
    with pytest.raises(FormatError, match="skipped_layers"):
        ScaleManifest.from_dict({**HEADS.as_dict(), "skipped_layers": 3})

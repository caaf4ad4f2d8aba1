"""The text of the GPU kernels: what mlx makes of it, and how many texts there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gpu_cases import shapes
from gpu_shim import Shim, Variant, metal_text
from pionkv.kernels import FORMATS, Element, FormatError, LayerSpec
from pionkv.kernels.gpu import MlxRunner
from pionkv.kernels.gpu_source import MAX_OCTETS, Dialect, Direction, Kernel, plan, supports

DTYPES = {Element.F32: mx.float32, Element.F16: mx.float16, Element.BF16: mx.bfloat16}


def mlx_text(planned_inputs: list[mx.array], launch: Callable[..., Any], path: Path, capfd: Any) -> str:
    """What mlx generates for Metal. Without a Mac it does so while a function is exported."""
    mx.export_function(str(path), launch, *planned_inputs)
    printed = capfd.readouterr().out
    match = re.search(r"```\n(.*)\n```", printed, re.DOTALL)
    assert match, printed
    return match.group(1)


@pytest.mark.parametrize("direction", Direction, ids=lambda d: d.value)
@pytest.mark.parametrize("element", Element, ids=lambda e: e.name.lower())
@pytest.mark.parametrize("name", FORMATS)
def test_the_tested_text_is_what_mlx_gives_to_metal(
    name: str,
    element: Element,
    direction: Direction,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    build = mx.fast.metal_kernel
    monkeypatch.setattr(
        mx.fast, "metal_kernel", lambda **given: lambda **call: build(**given)(**call, verbose=True)
    )
    spec, _ = next(iter(shapes(name)))
    planned = plan(Dialect.METAL, spec, direction, element, 9)
    if direction is Direction.PACK:
        inputs = [mx.zeros((1, 1, 9, spec.dim), DTYPES[element])]
        outputs = [(9, spec.row_bytes), (planned.slots,)], [mx.uint8, mx.uint32]
    else:
        inputs = [mx.zeros((9, spec.row_bytes), mx.uint8), mx.zeros((8,), mx.uint32)]
        outputs = [(1, 1, 9, spec.dim)], [DTYPES[element]]

    def launch(*arrays: mx.array) -> list[mx.array]:
        return MlxRunner(Dialect.METAL).launch(planned, arrays, *outputs)

    generated = mlx_text(inputs, launch, tmp_path / "exported", capfd)
    function = re.search(r"\[\[kernel\]\] void (\w+)\(", generated)
    assert function
    variant = Variant(planned.kernel, direction, element)
    assert generated.strip() == (planned.kernel.header + metal_text(variant, function.group(1))).strip()


@pytest.mark.parametrize("dialect", Dialect, ids=lambda d: d.value)
def test_one_kernel_serves_every_number_of_rows(dialect: Dialect) -> None:
    for direction in Direction:
        kernels = {
            plan(dialect, LayerSpec("mlx4g32", 1024), direction, Element.F16, rows).kernel
            for rows in range(1, 56)
        }
        assert len(kernels) == 1


def test_a_name_stands_for_one_text() -> None:
    texts: dict[str, tuple[str, str]] = {}
    for name in FORMATS:
        for spec, _ in shapes(name):
            for element in Element:
                for direction in Direction:
                    kernel = plan(Dialect.CUDA, spec, direction, element, 1).kernel
                    assert texts.setdefault(kernel.name, (kernel.header, kernel.body)) == (
                        kernel.header,
                        kernel.body,
                    )


def test_too_many_rows_for_one_launch_are_refused() -> None:
    rows = MAX_OCTETS // 128
    plan(Dialect.CUDA, LayerSpec("int8", 1024), Direction.PACK, Element.F16, rows)
    with pytest.raises(FormatError, match="too many for one GPU launch"):
        plan(Dialect.CUDA, LayerSpec("int8", 1024), Direction.PACK, Element.F16, rows + 1)


def test_heads_too_long_to_turn_have_no_kernel() -> None:
    assert supports(LayerSpec("rvq1", 1024, head_dim=256))
    assert not supports(LayerSpec("rvq1", 1024, head_dim=512))
    with pytest.raises(FormatError, match="no GPU kernel"):
        plan(Dialect.METAL, LayerSpec("rvq1", 1024, head_dim=512), Direction.PACK, Element.F16, 1)


@pytest.mark.parametrize("dialect", Dialect, ids=lambda d: d.value)
def test_the_shim_notices_lanes_that_part(dialect: Dialect, tmp_path: Path) -> None:
    planned = plan(dialect, LayerSpec("fp16", 8), Direction.PACK, Element.F16, 1)
    opening = planned.kernel.body.split("// Elements come")[0]
    body = opening + "if (lane == 3) refused[0] = from_lane_xor(lane, 1u);"
    parted = replace(planned, kernel=replace(planned.kernel, name="parted", body=body))
    shim = Shim(dialect, [Variant(parted.kernel, Direction.PACK, Element.F16)], tmp_path)
    buffers: list[np.ndarray[Any, Any]] = [np.zeros(16, np.uint64) for _ in range(5)]
    with pytest.raises(AssertionError, match="meet equally often"):
        shim.run(parted, buffers, flush=False)
    assert isinstance(parted.kernel, Kernel)

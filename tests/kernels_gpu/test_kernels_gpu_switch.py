"""The switch between a GPU and the CPU, with the shim in the place of a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
import pytest
from gpu_shim import Shim
from pionkv.kernels import Element, FormatError, LayerSpec, NonFinite, Overflow, unpack
from pionkv.kernels.gpu import GpuKernels, GpuUnavailable, Mode
from pionkv.kernels.gpu_source import Dialect, Plan
from pionkv.kernels.report import backend_report

SPECS = [LayerSpec(name, 1024) for name in ("fp16", "int8", "fp8", "mlx4g32")]


class ShimRunner:
    """Launches as mlx would: any strides in, row-major arrays out."""

    def __init__(self, shim: Shim) -> None:
        self.shim = shim
        self.dialect = shim.dialect
        self.launches = 0

    def launch(
        self,
        planned: Plan,
        inputs: Sequence[mx.array],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        self.launches += 1
        mx.eval(*inputs)
        buffers = []
        for array in inputs:
            words = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
            view = np.array(words, copy=False)
            buffers.append(view)
            if view.ndim == 4:
                buffers.append(np.array(view.shape, np.int32))
                buffers.append(np.array([s // view.itemsize for s in view.strides], np.int64))
        buffers = [np.pad(b, (0, 6)) if b.ndim == 1 and b.size == 4 else b for b in buffers]
        outs = []
        for shape, dtype in zip(shapes, dtypes, strict=True):
            word = np.uint16 if dtype == mx.bfloat16 else np.dtype(str(dtype).split(".")[-1])
            outs.append(np.zeros(shape, word))
        self.shim.run(planned, buffers + outs, flush=False)
        arrays = [mx.array(out) for out in outs]
        return [a.view(d) if d == mx.bfloat16 else a for a, d in zip(arrays, dtypes, strict=True)]


class BrokenRunner:
    """A GPU whose kernels do not compile."""

    dialect = Dialect.METAL

    def launch(self, *_: object) -> list[mx.array]:
        raise RuntimeError("program does not compile")


@pytest.fixture(params=Dialect, ids=lambda d: d.value)
def gpu(request: pytest.FixtureRequest, shim_of: Callable[[Dialect], Shim]) -> GpuKernels:
    return GpuKernels(Mode.REQUIRE, ShimRunner(shim_of(request.param)))


def cache_slice(dtype: mx.Dtype, rows: int = 37, heads: int = 8, width: int = 128) -> mx.array:
    """Keys in use of a cache that has grown beyond them."""
    values = np.random.default_rng(4).standard_normal((1, heads, 64, width)).astype(np.float32)
    return mx.array(values).astype(dtype)[:, :, :rows, :]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.format)
def test_gpu_and_cpu_give_the_same_arrays(gpu: GpuKernels, spec: LayerSpec, dtype: mx.Dtype) -> None:
    cpu = GpuKernels(Mode.OFF)
    source = cache_slice(dtype)
    packed = gpu.pack(spec, source)
    assert packed.shape == (37, spec.row_bytes)
    assert mx.array_equal(packed, cpu.pack(spec, source))
    for heads in (None, 8):
        ours, theirs = gpu.unpack(spec, packed, dtype, heads), cpu.unpack(spec, packed, dtype, heads)
        assert ours.dtype == dtype
        assert ours.shape == ((37, 1024) if heads is None else (1, 8, 37, 128))
        assert mx.array_equal(ours, theirs)
    flat = source.transpose(0, 2, 1, 3).reshape(37, 1024)
    assert mx.array_equal(gpu.pack(spec, flat), packed)


def test_layers_packed_together_equal_layers_packed_alone(gpu: GpuKernels) -> None:
    layers = [(spec, cache_slice(mx.float16, rows)) for rows in (1, 4, 32) for spec in SPECS]
    together = gpu.pack_all(layers)
    assert gpu.dialect
    assert gpu.dialect.value in backend_report().serving
    for (spec, source), packed in zip(layers, together, strict=True):
        assert mx.array_equal(packed, gpu.pack(spec, source))


def test_arrays_smaller_than_metal_passes_by_address(gpu: GpuKernels) -> None:
    spec = LayerSpec("fp16", 1)
    source = mx.array([[1.0], [2.0], [3.0]], mx.float16)
    packed = gpu.pack(spec, source)
    assert np.array(packed).view(np.float16).ravel().tolist() == [1.0, 2.0, 3.0]
    assert gpu.unpack(spec, packed, mx.float32).tolist() == [[1.0], [2.0], [3.0]]


@pytest.mark.parametrize("mode", [Mode.REQUIRE, Mode.OFF])
def test_zero_rows(gpu: GpuKernels, mode: Mode) -> None:
    kernels = gpu if mode is Mode.REQUIRE else GpuKernels(mode)
    packed = kernels.pack(SPECS[0], mx.zeros((0, 1024), mx.float16))
    assert packed.shape == (0, 2048)
    assert kernels.unpack(SPECS[0], packed, mx.float16, 8).shape == (1, 8, 0, 128)


def test_refused_values_carry_their_place(gpu: GpuKernels) -> None:
    values = np.zeros((1, 8, 37, 128), np.float32)
    values[0, 3, 20, 5] = np.nan
    with pytest.raises(NonFinite, match="row 20, element 389") as refused:
        gpu.pack(LayerSpec("int8", 1024), mx.array(values))
    assert (refused.value.row, refused.value.element) == (20, 389)
    values[0, 3, 20, 5] = 1e6
    with pytest.raises(Overflow) as overflow:
        gpu.pack_all([(SPECS[1], mx.zeros((9, 1024))), (LayerSpec("mlx4g32", 1024), mx.array(values))])
    assert (overflow.value.row, overflow.value.element, overflow.value.value) == (20, 389, 1e6)


def test_arrays_that_do_not_fit_are_refused(gpu: GpuKernels) -> None:
    with pytest.raises(FormatError, match="does not hold rows of 1024"):
        gpu.pack(SPECS[0], mx.zeros((3, 1000), mx.float16))
    with pytest.raises(FormatError, match="cannot be stored"):
        gpu.pack(SPECS[0], mx.zeros((3, 1024), mx.int32))
    with pytest.raises(FormatError, match="does not hold rows of 2048 bytes"):
        gpu.unpack(SPECS[0], mx.zeros((3, 2047), mx.uint8), mx.float16)
    with pytest.raises(FormatError, match="not a multiple of 7 heads"):
        gpu.unpack(SPECS[0], mx.zeros((3, 2048), mx.uint8), mx.float16, 7)


def test_auto_without_a_gpu_uses_the_cpu_counts_and_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    before = backend_report()
    with caplog.at_level(logging.WARNING, "pionkv.kernels.gpu"):
        kernels = GpuKernels()
        assert kernels.dialect is None
        packed = kernels.pack(SPECS[3], cache_slice(mx.float16))
        kernels.unpack(SPECS[3], packed, mx.float16)
    after = backend_report()
    assert after.fallbacks - before.fallbacks == 2
    assert after.latched - before.latched == 1
    assert after.reason == "mlx has no GPU here"
    assert "gpu" in after.tried
    assert "gpu" not in after.serving
    assert "cpu" in after.serving
    assert len(caplog.records) == 1


def test_a_failure_turns_an_instance_to_the_cpu_for_good(caplog: pytest.LogCaptureFixture) -> None:
    before = backend_report()
    kernels = GpuKernels(Mode.AUTO, BrokenRunner())
    assert kernels.dialect is Dialect.METAL
    with caplog.at_level(logging.WARNING, "pionkv.kernels.gpu"):
        first = kernels.pack(SPECS[1], cache_slice(mx.float16))
        second = kernels.pack(SPECS[1], cache_slice(mx.float16))
    assert kernels.dialect is None
    assert "metal" in backend_report().tried
    assert "metal" not in backend_report().serving
    assert mx.array_equal(first, second)
    assert backend_report().fallbacks - before.fallbacks == 2
    assert backend_report().reason == "program does not compile"
    assert len(caplog.records) == 1


def test_require_raises_where_auto_would_fall_back() -> None:
    with pytest.raises(GpuUnavailable, match="no GPU here"):
        GpuKernels(Mode.REQUIRE)
    with pytest.raises(GpuUnavailable, match="does not compile"):
        GpuKernels(Mode.REQUIRE, BrokenRunner()).pack(SPECS[1], cache_slice(mx.float16))


def test_off_is_not_a_fallback() -> None:
    before = backend_report()
    kernels = GpuKernels(Mode.OFF)
    packed = kernels.pack(SPECS[0], cache_slice(mx.float16))
    assert backend_report() == before
    out = np.empty((37, 1024), np.float16)
    unpack(SPECS[0], np.array(packed), 37, Element.F16, out)
    assert np.array_equal(out, np.array(cache_slice(mx.float16).transpose(0, 2, 1, 3)).reshape(37, 1024))

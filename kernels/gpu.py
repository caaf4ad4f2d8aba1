"""Packing and unpacking of mlx arrays where they are: on a GPU through Metal or CUDA, else on the CPU.

Keys and values are taken as an mlx cache holds them, head-major and strided, in float32, float16 or bfloat16;
no transposed copy is made. The bytes are those of the oracle.
"""

from __future__ import annotations

import enum
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from . import codec
from .errors import FormatError, KernelError, NonFinite, Overflow, Refused
from .formats import Element
from .gpu_source import NONE, Dialect, Direction, Plan, plan
from .layout import Heads
from .report import TALLY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    import mlx.core as mx

    from .formats import LayerSpec

_log = logging.getLogger(__name__)

# Metal passes arrays of fewer elements than this in another address space than the kernels are written for.
_FEWEST: Final = 8


class Mode(enum.Enum):
    """What to do about a GPU."""

    AUTO = "auto"
    """Use one if it works; otherwise the CPU, which is counted and logged once."""
    REQUIRE = "require"
    """Use one or raise `GpuUnavailable`."""
    OFF = "off"
    """Use the CPU."""


class GpuUnavailable(KernelError):
    """A GPU is required and there is none, or its kernels failed."""


class Runner(Protocol):
    """Runs the launches of one dialect."""

    dialect: Dialect

    def launch(
        self,
        planned: Plan,
        inputs: Sequence[mx.array],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        """Launch a kernel on arrays of any strides; its outputs, not yet evaluated."""


class MlxRunner:
    """Runs launches through `mx.fast`; kernels are compiled when they are first used."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._compiled: dict[str, Callable[..., Any]] = {}

    def launch(
        self,
        planned: Plan,
        inputs: Sequence[mx.array],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        """Launch a kernel on arrays of any strides; its outputs, not yet evaluated."""
        import mlx.core as mx

        kernel = planned.kernel
        run = self._compiled.get(kernel.name)
        if run is None:
            build = mx.fast.metal_kernel if self.dialect is Dialect.METAL else mx.fast.cuda_kernel
            run = build(
                name=kernel.name,
                input_names=kernel.inputs,
                output_names=kernel.outputs,
                source=kernel.body,
                header=kernel.header,
                ensure_row_contiguous=False,
            )
            self._compiled[kernel.name] = run
        outputs: list[mx.array] = run(
            inputs=list(inputs),
            grid=(planned.threads, 1, 1),
            threadgroup=(planned.group, 1, 1),
            output_shapes=list(shapes),
            output_dtypes=list(dtypes),
            stream=mx.gpu,
        )
        return outputs


def find_runner() -> Runner | None:
    """The runner for this machine's GPU, or None."""
    try:
        import mlx.core as mx
    except ImportError:
        return None
    if mx.metal.is_available():
        return MlxRunner(Dialect.METAL)
    return MlxRunner(Dialect.CUDA) if mx.cuda.is_available() else None


@dataclass(frozen=True, slots=True)
class _Pending:
    """A pack that was launched: its rows, and what it refused."""

    spec: LayerSpec
    source: mx.array
    packed: mx.array
    refused: mx.array


class GpuKernels:
    """pack and unpack for mlx arrays, with a switch.

    In `Mode.AUTO` the first failure of the GPU turns this instance to the CPU for good.

    Args:
        mode: Whether to use a GPU.
        runner: What runs the launches; this machine's GPU if None.

    Raises:
        GpuUnavailable: A GPU is required and there is none.
    """

    def __init__(self, mode: Mode = Mode.AUTO, runner: Runner | None = None) -> None:
        self.mode = mode
        self._runner: Runner | None = None
        self._seen: set[str] = set()
        if mode is Mode.OFF:
            return
        self._runner = runner or find_runner()
        TALLY.tried(self._backend)
        if self._runner is None:
            self._give_up("mlx has no GPU here")

    @property
    def dialect(self) -> Dialect | None:
        """The language of the kernels in use; None on the CPU."""
        return self._runner.dialect if self._runner else None

    @property
    def _backend(self) -> str:
        return self._runner.dialect.value if self._runner else "gpu"

    def pack(self, spec: LayerSpec, source: mx.array) -> mx.array:
        """Code rows; see `pack_all`."""
        return self.pack_all([(spec, source)])[0]

    def pack_all(self, layers: Sequence[tuple[LayerSpec, mx.array]]) -> list[mx.array]:
        """Code the rows of several layers with one wait for the GPU.

        Args:
            layers: For each layer its spec and its elements: `(rows, dim)` or `(1, heads, rows, width)`, in
                any strides, of float32, float16 or bfloat16.

        Returns:
            For each layer uint8 `(rows, row_bytes)`.

        Raises:
            NonFinite: A NaN or infinity met a quantising format.
            Overflow: A finite value is beyond the format's limit.
            FormatError: A spec or an array is not valid.
            GpuUnavailable: A GPU is required and failed.
        """
        checked = [(spec, _head_major(spec, source)) for spec, source in layers]
        if self._runner is not None:
            try:
                pending = [self._start_pack(self._runner, spec, source) for spec, source in checked]
                packed = self._finish_packs(pending)
                TALLY.serves(self._backend)
                return packed
            except RuntimeError as failure:
                self._give_up(str(failure))
        self._count_fallbacks(len(checked))
        return [_cpu_pack(spec, source) for spec, source in checked]

    def unpack(
        self, spec: LayerSpec, packed: mx.array, dtype: mx.Dtype, heads: int | None = None
    ) -> mx.array:
        """Decode stored rows. A finite value that `dtype` cannot hold becomes its largest finite value.

        Args:
            spec: Format and dim of the layer.
            packed: uint8 `(rows, row_bytes)`; its first byte lies at a multiple of 4 in its buffer.
            dtype: float32, float16 or bfloat16.
            heads: Number of heads for a head-major result.

        Returns:
            `(rows, dim)`, or `(1, heads, rows, dim / heads)` where heads are given.

        Raises:
            FormatError: The spec or the array is not valid.
            GpuUnavailable: A GPU is required and failed.
        """
        spec.validate()
        rows = _packed_rows(spec, packed)
        if spec.dim % (heads or 1):
            raise FormatError(f"dim {spec.dim} is not a multiple of {heads} heads")
        shape = (rows, spec.dim) if heads is None else (1, heads, rows, spec.dim // heads)
        if self._runner is not None:
            try:
                return self._unpack(self._runner, spec, packed, dtype, heads or 1).reshape(shape)
            except RuntimeError as failure:
                self._give_up(str(failure))
        self._count_fallbacks(1)
        return _cpu_unpack(spec, packed, dtype, heads or 1).reshape(shape)

    def _start_pack(self, runner: Runner, spec: LayerSpec, source: mx.array) -> _Pending:
        import mlx.core as mx

        rows = source.shape[2]
        padded = _pad(source, axis=2) if source.size < _FEWEST else source
        planned = plan(runner.dialect, spec, Direction.PACK, _element(source.dtype), padded.shape[2])
        shapes = ((padded.shape[2], spec.row_bytes), (planned.slots,))
        packed, refused = runner.launch(planned, [padded], shapes, [mx.uint8, mx.uint32])
        TALLY.launched()
        return _Pending(spec, source, packed[:rows], refused)

    def _finish_packs(self, pending: list[_Pending]) -> list[mx.array]:
        import mlx.core as mx

        lowest = [p.refused.min() for p in pending]
        mx.eval([p.packed for p in pending], lowest)
        for one, least in zip(pending, lowest, strict=True):
            index = int(least.item())
            if index != NONE:
                raise _refused_value(one.spec, one.source, index)
        return [p.packed for p in pending]

    def _unpack(
        self, runner: Runner, spec: LayerSpec, packed: mx.array, dtype: mx.Dtype, heads: int
    ) -> mx.array:
        import mlx.core as mx

        rows, width = packed.shape[0], spec.dim // heads
        stored = mx.contiguous(_pad(packed, axis=0) if packed.size < _FEWEST else packed)
        padded = stored.shape[0]
        planned = plan(runner.dialect, spec, Direction.UNPACK, _element(dtype), padded)
        shape = mx.array([padded, heads, width, 0, 0, 0, 0, 0], mx.uint32)
        (out,) = runner.launch(planned, [stored, shape], [(1, heads, padded, width)], [dtype])
        TALLY.launched()
        if planned.kernel.name not in self._seen:
            # A kernel that does not compile says so when it is first evaluated, which must happen in here.
            mx.eval(out)
            self._seen.add(planned.kernel.name)
            TALLY.serves(self._backend)
        return out[:, :, :rows]

    def _give_up(self, reason: str) -> None:
        if self.mode is Mode.REQUIRE:
            raise GpuUnavailable(f"a GPU is required: {reason}")
        TALLY.gave_up(self._backend, reason)
        self._runner = None
        _log.warning("packing and unpacking on the CPU: %s", reason)

    def _count_fallbacks(self, operations: int) -> None:
        if self.mode is Mode.AUTO:
            TALLY.fell_back(operations)


def _element(dtype: mx.Dtype) -> Element:
    import mlx.core as mx

    elements = {mx.float32: Element.F32, mx.float16: Element.F16, mx.bfloat16: Element.BF16}
    if dtype not in elements:
        raise FormatError(f"elements of {dtype} cannot be stored (want float32, float16 or bfloat16)")
    return elements[dtype]


def _head_major(spec: LayerSpec, source: mx.array) -> mx.array:
    """The array as `(1, heads, rows, width)`, without a copy."""
    spec.validate()
    _element(source.dtype)
    if source.ndim == 2:
        source = source[None, None]
    if source.ndim != 4 or source.shape[0] != 1 or source.shape[1] * source.shape[3] != spec.dim:
        raise FormatError(f"an array {source.shape} does not hold rows of {spec.dim}")
    return source


def _packed_rows(spec: LayerSpec, packed: mx.array) -> int:
    import mlx.core as mx

    if packed.ndim != 2 or packed.dtype != mx.uint8 or packed.shape[1] != spec.row_bytes:
        raise FormatError(f"{packed.dtype} {packed.shape} does not hold rows of {spec.row_bytes} bytes")
    return int(packed.shape[0])


def _pad(array: mx.array, axis: int) -> mx.array:
    import mlx.core as mx

    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, _FEWEST)
    return mx.pad(array, widths)


def _refused_value(spec: LayerSpec, source: mx.array, index: int) -> Refused:
    row, position = divmod(index, spec.dim)
    head, inner = divmod(position, source.shape[3])
    value = float(source[0, head, row, inner].item())
    if math.isfinite(value):
        return Overflow(row, position, value, spec.details.limit)
    return NonFinite(row, position, value)


def _raw(array: mx.array) -> np.ndarray[Any, Any]:
    """The bytes of an array, row-major."""
    import mlx.core as mx

    flat = mx.contiguous(array).reshape(-1)
    word = mx.uint32 if flat.dtype == mx.float32 else mx.uint16
    return np.array(flat if flat.dtype == mx.uint8 else flat.view(word), copy=False)


def _cpu_pack(spec: LayerSpec, source: mx.array) -> mx.array:
    import mlx.core as mx

    _, heads, rows, width = source.shape
    out = np.empty((rows, spec.row_bytes), np.uint8)
    codec.pack(
        spec, _raw(source), _element(source.dtype), rows, out, layout=Heads(heads, rows * width, width)
    )
    return mx.array(out)


def _cpu_unpack(spec: LayerSpec, packed: mx.array, dtype: mx.Dtype, heads: int) -> mx.array:
    import mlx.core as mx

    rows, width, element = packed.shape[0], spec.dim // heads, _element(dtype)
    out = np.empty((1, heads, rows, width), np.uint32 if element is Element.F32 else np.uint16)
    codec.unpack(spec, _raw(packed), rows, element, out, layout=Heads(heads, rows * width, width))
    return mx.array(out).view(dtype)

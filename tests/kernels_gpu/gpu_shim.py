"""Runs the GPU kernels' own text on a CPU, compiled as C++ through a shim of the dialect's types."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pionkv.kernels import Element, LayerSpec
from pionkv.kernels.gpu_source import NONE, Dialect, Direction, Kernel, Plan, plan

SHIM = Path(__file__).parent / "shim"
_PARTS = 4

COMPILER = ["g++", "-std=c++17", "-O0", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing", "-w"]

_METAL_TYPES = {Element.F32: "float", Element.F16: "float16_t", Element.BF16: "bfloat16_t"}
_CUDA_TYPES = {Element.F32: "float", Element.F16: "__half", Element.BF16: "__nv_bfloat16"}

# In the order in which mlx lists them.
_METAL_ATTRIBUTES = {
    "simdgroup_index_in_threadgroup": ("uint", "lanes::here().in_group / 32"),
    "thread_index_in_simdgroup": ("uint", "lanes::here().lane"),
    "thread_position_in_grid": ("uint3", "uint3{lanes::here().index, 0, 0}"),
    "threads_per_grid": ("uint3", "uint3{lanes::here().threads, 1, 1}"),
}


@dataclass(frozen=True)
class Variant:
    """A kernel and the element type that is in its signature."""

    kernel: Kernel
    direction: Direction
    element: Element


def metal_text(variant: Variant, name: str) -> str:
    """The function that mlx writes for Metal after the header; a test compares it with mlx's own."""
    kernel, element = variant.kernel, _METAL_TYPES[variant.element]
    if variant.direction is Direction.PACK:
        parameters = [
            f"const device {element}* src [[buffer(0)]]",
            "const constant int* src_shape [[buffer(1)]]",
            "const constant int64_t* src_strides [[buffer(2)]]",
            "device uint8_t* out [[buffer(3)]]",
            "device uint32_t* refused [[buffer(4)]]",
        ]
    else:
        parameters = [
            "const device uint8_t* packed [[buffer(0)]]",
            "const device uint32_t* shape [[buffer(1)]]",
            f"device {element}* out [[buffer(2)]]",
        ]
    parameters += [f"{kind} {name} [[{name}]]" for name, (kind, _) in _METAL_ATTRIBUTES.items()]
    listed = ",\n".join(f"  {p}" for p in parameters)
    return f"[[kernel]] void {name}(\n{listed}) {{\n{kernel.body}\n}}\n"


def cuda_text(variant: Variant, name: str) -> str:
    """The function that mlx writes for nvrtc after the header, in a namespace of its own."""
    kernel, element = variant.kernel, _CUDA_TYPES[variant.element]
    if variant.direction is Direction.PACK:
        parameters = [
            f"const {element}* src",
            "const __grid_constant__ Shape src_shape",
            "const __grid_constant__ Strides src_strides",
            "uint8_t* out",
            "uint32_t* refused",
        ]
    else:
        parameters = ["const uint8_t* packed", "const uint32_t* shape", f"{element}* out"]
    listed = ",\n".join(f"    {p}" for p in parameters)
    return f"__global__ void {name}(\n{listed}) {{\n{kernel.body}\n}}\n"


def _caller(dialect: Dialect, variant: Variant, name: str) -> str:
    """A C function that runs the kernel over a grid; buffers come as an array of pointers."""
    metal = dialect is Dialect.METAL
    element = (_METAL_TYPES if metal else _CUDA_TYPES)[variant.element]
    lists = ["(int*)", "(int64_t*)"] if metal else ["*(Shape*)", "*(Strides*)"]
    casts = ["(uint8_t*)", "(uint32_t*)", f"({element}*)"]
    if variant.direction is Direction.PACK:
        casts = [f"({element}*)", *lists, "(uint8_t*)", "(uint32_t*)"]
    arguments = [f"{cast}buffers[{i}]" for i, cast in enumerate(casts)]
    arguments += [value for _, value in _METAL_ATTRIBUTES.values()] if metal else []
    call = f"{_space(variant)}::{name}({', '.join(arguments)});"
    return (
        f'extern "C" int run_{name}(void* const* buffers, uint32_t threads, uint32_t group, int flush) {{\n'
        f"  lanes::flush_subnormals(flush);\n"
        f"  const bool level = lanes::launch(threads, group, [=] {{ {call} }});\n"
        f"  lanes::flush_subnormals(false);\n"
        f"  return level;\n}}\n"
    )


def _space(variant: Variant) -> str:
    """Kernels with the same header share a namespace, and what the compiler makes of the header."""
    return f"header_{zlib.crc32(variant.kernel.header.encode()):08x}"


class Shim:
    """The kernels of one dialect, compiled."""

    def __init__(self, dialect: Dialect, variants: Iterable[Variant], directory: Path) -> None:
        self.dialect = dialect
        chosen = sorted({v.kernel.name: v for v in variants}.values(), key=_space)
        size = -(-len(chosen) // _PARTS)
        shares = [chosen[part * size : (part + 1) * size] for part in range(_PARTS)]
        with ThreadPoolExecutor(2) as pool:
            built = pool.map(self._compile, shares, itertools.count(), itertools.repeat(directory))
            libraries = [ctypes.CDLL(str(path)) for path in built]
        self._functions = {
            variant.kernel.name: getattr(library, f"run_{variant.kernel.name}")
            for library, share in zip(libraries, shares, strict=True)
            for variant in share
        }

    def _compile(self, share: list[Variant], part: int, directory: Path) -> Path:
        text = metal_text if self.dialect is Dialect.METAL else cuda_text
        pieces = [f'#include "{self.dialect.value}_shim.h"\n']
        for space, alike in itertools.groupby(share, _space):
            variants = list(alike)
            pieces.append(f"namespace {space} {{\n{variants[0].kernel.header}\n")
            pieces += [text(variant, variant.kernel.name) for variant in variants]
            pieces.append("}\n")
            pieces += [_caller(self.dialect, variant, variant.kernel.name) for variant in variants]
        source = directory / f"{self.dialect.value}{part}.cpp"
        source.write_text("".join(pieces))
        library = source.with_suffix(".so")
        include = [f"-I{SHIM}", *([f"-I{SHIM / 'cuda'}"] if self.dialect is Dialect.CUDA else [])]
        command = [*COMPILER, *include, str(source), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return library

    def run(self, planned: Plan, buffers: list[NDArray[np.generic]], *, flush: bool) -> None:
        """Run a launch on these buffers, in the kernel's order.

        Raises:
            AssertionError: The lanes of a SIMD group took different ways.
        """
        pointers = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))
        level = self._functions[planned.kernel.name](pointers, planned.threads, planned.group, int(flush))
        assert level, "lanes of one SIMD group did not meet equally often"


GUARD = 64
POISON = 0xA5


def _guarded(size: int) -> NDArray[np.uint8]:
    return np.full(GUARD + size + GUARD, POISON, np.uint8)


def _inside(guarded: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    assert (guarded[:GUARD] == POISON).all(), "wrote before its output"
    assert (guarded[GUARD + size :] == POISON).all(), "wrote past its output"
    return guarded[GUARD : GUARD + size]


def shim_pack(
    shim: Shim,
    spec: LayerSpec,
    source: NDArray[np.generic],
    element: Element,
    *,
    flush: bool = False,
    tuning: dict[str, int] | None = None,
) -> tuple[NDArray[np.uint8], int]:
    """Pack a strided `(1, heads, rows, width)` array.

    Returns:
        The packed bytes, and the flat index of the first refused value or -1.
    """
    rows = source.shape[2]
    planned = plan(shim.dialect, spec, Direction.PACK, element, rows, tuning)
    size = rows * spec.row_bytes
    out, refused = _guarded(size), _guarded(planned.slots * 4)
    shape = np.zeros(10, np.int32)
    shape[:4] = source.shape
    strides = np.zeros(10, np.int64)
    strides[:4] = [s // source.itemsize for s in source.strides]
    shim.run(planned, [source, shape, strides, out[GUARD:], refused[GUARD:]], flush=flush)
    first = int(_inside(refused, planned.slots * 4).view(np.uint32).min())
    return _inside(out, size), -1 if first == NONE else first


def shim_unpack(
    shim: Shim,
    spec: LayerSpec,
    packed: NDArray[np.uint8],
    element: Element,
    heads: int,
    rows: int,
    *,
    flush: bool = False,
) -> NDArray[np.uint8]:
    """Unpack to the bytes of a `(1, heads, rows, width)` array."""
    planned = plan(shim.dialect, spec, Direction.UNPACK, element, rows)
    size = rows * spec.dim * element.itemsize
    out = _guarded(size)
    shape = np.array([rows, heads, spec.dim // heads, 0, 0, 0, 0, 0], np.uint32)
    shim.run(planned, [packed, shape, out[GUARD:]], flush=flush)
    return _inside(out, size)

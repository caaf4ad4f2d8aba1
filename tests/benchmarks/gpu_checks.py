"""The GPU kernels against the oracle, bit for bit, on a real GPU.

Each format and element type is checked by a process of its own: a fault of the GPU ends that process, not the
run, and the kernels of several are compiled at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels_gpu"))

from gpu_cases import Layout, edge_rows, laid_out, refusals, shapes, words_of  # noqa: E402
from pionkv.kernels import Element, Heads, LayerSpec, Refused, pack, unpack  # noqa: E402
from pionkv.kernels.gpu import GpuKernels, Mode  # noqa: E402

Case = tuple[str, Callable[[], str]]

PROCESSES = 12
SECONDS = 170


def check_all(names: list[str]) -> list[dict[str, Any]]:
    """One record for each format and element type: how many comparisons were made, and what differed."""
    tasks = [(name, element) for name in names for element in Element]
    records = []
    with ThreadPoolExecutor(PROCESSES) as pool:
        for record in pool.map(lambda task: _in_a_process(*task), tasks):
            state = "equal" if not record["failures"] else f"DIFFERS: {record['failures'][0]}"
            print(
                f"  {record['format']} {record['element']}: {record['compared']} compared, {state}",
                flush=True,
            )
            records.append(record)
    return records


def _in_a_process(name: str, element: Element) -> dict[str, Any]:
    command = [sys.executable, __file__, name, element.name]
    record = {"format": name, "element": element.name, "compared": 0, "failures": ["no answer"]}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {**record, "failures": [f"not done in {SECONDS} s"]}
    if done.returncode:
        return {**record, "failures": [f"exit {done.returncode}: {done.stderr[-1500:]}"]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(name: str, element: Element) -> dict[str, Any]:
    """Every shape of `gpu_cases`, then refused values."""
    kernels = GpuKernels(Mode.REQUIRE)
    compared, failures = 0, []
    for title, difference_of in (*_round_trips(kernels, name, element), *_refusals(kernels, name, element)):
        compared += 1
        try:
            difference = difference_of()
        except Exception:  # the other cases are still worth a look
            difference = traceback.format_exc(limit=3)[-600:]
        if difference:
            failures.append(f"{title}: {difference}")
    return {"format": name, "element": element.name, "compared": compared, "failures": failures}


def _round_trips(kernels: GpuKernels, name: str, element: Element) -> Iterator[Case]:
    for spec, layout in shapes(name):
        words = words_of(edge_rows(spec.dim, element, spec.details.limit, seed=1), element)
        for way, difference in (("pack", _pack_difference), ("unpack", _unpack_difference)):
            yield f"{way} {spec} {layout}", partial(difference, kernels, spec, words, element, layout)


def _refusals(kernels: GpuKernels, name: str, element: Element) -> Iterator[Case]:
    spec, _ = list(shapes(name))[2]
    for value in refusals(element, spec.details.limit, quantized=spec.verbatim_element is None):
        for first in (0, spec.dim - 1, 36 * spec.dim + spec.dim // 3):
            values = np.random.default_rng(2).standard_normal(37 * spec.dim).astype(np.float32)
            values[first] = value
            values[first + 1 :: 911] = value
            words = words_of(values.reshape(37, spec.dim), element)
            difference = partial(_refusal_difference, kernels, spec, words, element, first)
            yield f"refusal of {value} at {first} {spec}", difference


def on_gpu(words: NDArray[Any], element: Element, layout: Layout) -> Any:
    """The rows as a strided view `(1, heads, rows, width)` of an mlx array."""
    import mlx.core as mx

    view = laid_out(words, layout)
    buffer = mx.array(view.base)
    if element is not Element.F32:
        buffer = buffer.view(mx.float16 if element is Element.F16 else mx.bfloat16)
    return buffer[:, :, : len(words), :: layout.step]


def oracle_packed(spec: LayerSpec, words: NDArray[Any], element: Element) -> NDArray[np.uint8]:
    """Packed rows by the oracle."""
    out = np.empty((len(words), spec.row_bytes), np.uint8)
    pack(spec, np.ascontiguousarray(words), element, len(words), out, backend="oracle")
    return out


def _pack_difference(
    kernels: GpuKernels, spec: LayerSpec, words: NDArray[Any], element: Element, layout: Layout
) -> str:
    ours = np.array(kernels.pack(spec, on_gpu(words, element, layout)))
    return _difference(ours, oracle_packed(spec, words, element))


def _unpack_difference(
    kernels: GpuKernels, spec: LayerSpec, words: NDArray[Any], element: Element, layout: Layout
) -> str:
    import mlx.core as mx

    packed, rows, width = oracle_packed(spec, words, element), len(words), spec.dim // layout.heads
    dtype = {Element.F32: mx.float32, Element.F16: mx.float16, Element.BF16: mx.bfloat16}[element]
    decoded = kernels.unpack(spec, mx.array(packed), dtype, layout.heads)
    ours = np.array(decoded.view(mx.uint32 if element is Element.F32 else mx.uint16))
    oracle = np.empty(rows * spec.dim * element.itemsize, np.uint8)
    heads = Heads(layout.heads, rows * width, width)
    unpack(spec, packed, rows, element, oracle, layout=heads, backend="oracle")
    return _difference(ours.reshape(-1).view(np.uint8), oracle)


def _refusal_difference(
    kernels: GpuKernels, spec: LayerSpec, words: NDArray[Any], element: Element, first: int
) -> str:
    try:
        kernels.pack(spec, on_gpu(words, element, Layout()))
    except Refused as refused:
        found = refused.row * spec.dim + refused.element
        return "" if found == first else f"named element {found}"
    return "not refused"


def _difference(ours: NDArray[np.uint8], oracle: NDArray[np.uint8]) -> str:
    ours, oracle = ours.reshape(-1), oracle.reshape(-1)
    if ours.size != oracle.size:
        return f"{ours.size} bytes for {oracle.size}"
    different = np.flatnonzero(ours != oracle)
    if not different.size:
        return ""
    at = int(different[0])
    return f"{different.size} of {ours.size} bytes, first {at}: {ours[at]:#x} for {oracle[at]:#x}"


if __name__ == "__main__":
    print(json.dumps(check(sys.argv[1], Element[sys.argv[2]])))

"""Packing and unpacking on a GPU, checked bit for bit and then timed beside a copy and mlx's own quantizer.

Rates are GB/s of bytes read plus bytes written. Sources are fp16, head-major, of several hundred megabytes;
each call takes another of three. Arms take turns. Without a GPU nothing is measured and nothing written.

    python tests/benchmarks/bench_kernels_gpu.py [--out DIR] [--rounds 7] [--rows 262144] [--no-checks]
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gpu_checks import check_all
from harness import RESULTS, Row, interleaved, rate_row, write_results
from pionkv.kernels import FORMATS, Element, LayerSpec, pack
from pionkv.kernels.gpu import GpuKernels, Mode, Runner, find_runner
from pionkv.kernels.gpu_source import Dialect, Direction, plan

HEADS, WIDTH, SOURCES, CALLS = 8, 128, 3, 24
DIM = HEADS * WIDTH
UNIT = "GB/s read + written"
COPY_SHARE = {"mlx4g32": 0.5, "fp8": 0.5, "int8": 0.5}
AFFINE = {"mlx4g32": (32, 4), "mlx4g64": (64, 4), "mlx8g32": (32, 8), "mlx8g64": (64, 8)}
TUNINGS: dict[str, list[dict[str, int]]] = {
    "pack mlx4g32": [{}, {"STEPS": 1}, {"STEPS": 2}, {"TEAMS": 2}, {"TEAMS": 8}],
    "pack mlx4g64": [{}, {"STEPS": 4}, {"TEAMS": 8}],
    "pack int8": [{}, {"KEEP": 1}, {"KEEP": 2}, {"TEAMS": 2}, {"TEAMS": 8}],
    "pack fp8": [{}, {"STEPS": 2}, {"TEAMS": 2}, {"TEAMS": 8}],
    "unpack mlx4g32": [{}, {"STEPS": 1}, {"STEPS": 2}, {"TEAMS": 8}],
    "unpack fp8": [{}, {"STEPS": 2}, {"TEAMS": 8}],
    "unpack int8": [{}, {"STEPS": 2}, {"TEAMS": 8}],
}
COPY_BODY = """
const uint4* from = (const uint4*)src;
uint4* to = (uint4*)out;
const size_t total = (size_t)size[0] * 1048576;
const size_t threads = (size_t)gridDim.x * blockDim.x;
for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < total; at += threads) to[at] = from[at];
"""

Arms = dict[str, Callable[[], object]]


class Bench:
    """Sources on the GPU, and launches on them that are not waited for one by one."""

    def __init__(self, runner: Runner, rows: int) -> None:
        self.runner, self.rows = runner, rows
        # Whole blocks of 16 MiB, which the plain copy counts in.
        self.sources = [
            (mx.random.normal((1, HEADS, rows, WIDTH), key=mx.random.key(i)) * 2).astype(mx.float16)
            for i in range(SOURCES)
        ]
        self.shape = mx.array([rows, HEADS, WIDTH, 0, 0, 0, 0, 0], mx.uint32)
        mx.eval(self.sources, self.shape)
        self.source_bytes = rows * DIM * 2

    def pack(self, spec: LayerSpec, source: mx.array, tuning: Mapping[str, int] | None = None) -> mx.array:
        """One launch."""
        planned = plan(self.runner.dialect, spec, Direction.PACK, Element.F16, self.rows, tuning)
        shapes = [(self.rows, spec.row_bytes), (planned.slots,)]
        return self.runner.launch(planned, [source], shapes, [mx.uint8, mx.uint32])[0]

    def unpack(self, spec: LayerSpec, packed: mx.array, tuning: Mapping[str, int] | None = None) -> mx.array:
        """One launch."""
        planned = plan(self.runner.dialect, spec, Direction.UNPACK, Element.F16, self.rows, tuning)
        return self.runner.launch(
            planned, [packed, self.shape], [(1, HEADS, self.rows, WIDTH)], [mx.float16]
        )[0]

    def arm(self, work: Callable[[Any], Any], inputs: list[Any]) -> Callable[[], object]:
        """CALLS calls on inputs that differ, evaluated together."""

        def run() -> None:
            mx.eval([work(inputs[i % len(inputs)]) for i in range(CALLS)])
            mx.synchronize()

        return run

    def copies(self) -> Arms:
        """Copies of a source: mlx's elementwise one and, on CUDA, 16 bytes a thread."""
        words = [source.view(mx.uint32) for source in self.sources]
        mx.eval(words)
        arms = {"copy by mlx": self.arm(lambda w: w | 0, words)}
        if self.runner.dialect is Dialect.CUDA:
            copy = mx.fast.cuda_kernel("pionkv_copy_1", ["src", "size"], ["out"], COPY_BODY)
            size = mx.array([self.source_bytes // 2**24], mx.uint32)
            threads = 132 * 2048
            arms["copy of 16 bytes a thread"] = self.arm(
                lambda w: copy(
                    inputs=[w, size],
                    grid=(threads, 1, 1),
                    threadgroup=(256, 1, 1),
                    output_shapes=[w.shape],
                    output_dtypes=[w.dtype],
                    stream=mx.gpu,
                )[0],
                words,
            )
        return arms


def spec_of(name: str) -> LayerSpec:
    """A layer of eight heads of 128."""
    family = FORMATS[name].family
    head_dim = WIDTH if family in ("qserve", "rvq") else 0
    return LayerSpec(name, DIM, 64 if family == "rope" else 0, head_dim)


def assert_equal_to_the_oracle(bench: Bench, spec: LayerSpec, packed: mx.array) -> None:
    """The last rows of a large launch, before its time is looked at."""
    count = 64
    tail = bench.sources[0][0, :, -count:].transpose(1, 0, 2).reshape(count, DIM)
    expected = np.empty((count, spec.row_bytes), np.uint8)
    pack(spec, np.ascontiguousarray(np.array(tail)), Element.F16, count, expected, backend="oracle")
    assert np.array_equal(np.array(packed[-count:]), expected), f"{spec.format}: the last rows differ"


def format_arms(bench: Bench, name: str) -> tuple[Arms, int]:
    """Ours and mlx's own for one format, and the bytes that a call moves."""
    spec = spec_of(name)
    packed = [bench.pack(spec, source) for source in bench.sources]
    mx.eval(packed)
    assert_equal_to_the_oracle(bench, spec, packed[0])
    arms = {
        f"pack {name}": bench.arm(lambda s: bench.pack(spec, s), bench.sources),
        f"unpack {name}": bench.arm(lambda p: bench.unpack(spec, p), packed),
    }
    if name in AFFINE:
        group, bits = AFFINE[name]
        flat = [s.reshape(-1, DIM) for s in bench.sources]
        quantized = [mx.quantize(f, group, bits) for f in flat]
        mx.eval(quantized)
        arms["mx.quantize"] = bench.arm(lambda f: mx.quantize(f, group, bits), flat)
        arms["mx.dequantize"] = bench.arm(lambda q: mx.dequantize(*q, group, bits), quantized)
    if name == "fp8":
        coded = [mx.to_fp8(s) for s in bench.sources]
        mx.eval(coded)
        arms["mx.to_fp8"] = bench.arm(mx.to_fp8, bench.sources)
        arms["mx.from_fp8"] = bench.arm(lambda c: mx.from_fp8(c, mx.float16), coded)
    return arms, bench.source_bytes + bench.rows * spec.row_bytes


def rows_of(bench: Bench, name: str, rounds: int) -> list[Row]:
    """Rates beside the faster copy, and beside mlx's own where it has one."""
    arms, moved = format_arms(bench, name)
    copies = bench.copies()
    seconds = interleaved({**copies, **arms}, rounds, warm_up=2)
    scale = 2 * bench.source_bytes / moved
    fastest = min(copies, key=lambda c: float(np.median(seconds[c])))
    # Seconds a copy would take for the bytes that this format moves.
    copy_seconds = [s / scale for s in seconds[fastest]]
    amount, share = CALLS * moved / 1e9, COPY_SHARE.get(name)
    rows = [
        rate_row(f"{way} {name}", UNIT, amount, seconds[f"{way} {name}"], (fastest, copy_seconds), share)
        for way in ("pack", "unpack")
    ]
    peers = {"mx.quantize": ("pack", 10.0 if name == "mlx4g32" else None), "mx.dequantize": ("unpack", None)}
    peers |= {"mx.to_fp8": ("pack", None), "mx.from_fp8": ("unpack", None)}
    for peer, (way, target) in peers.items():
        if peer in arms:
            ours = seconds[f"{way} {name}"]
            rows.append(rate_row(f"{way} {name}", UNIT, amount, ours, (peer, seconds[peer]), target))
    return rows


def tuning_rows(bench: Bench, rounds: int) -> list[Row]:
    """The constants that change speed only, one arm each."""
    rows = []
    for work, tunings in TUNINGS.items():
        way, name = work.split()
        spec = spec_of(name)
        if way == "pack":
            inputs, run = bench.sources, bench.pack
        else:
            inputs, run = [bench.pack(spec, s) for s in bench.sources], bench.unpack
            mx.eval(inputs)
        arms = {
            f"{work} {tuning or 'as chosen'}": bench.arm(
                lambda x, t=tuning, r=run, s=spec: r(s, x, t), inputs
            )
            for tuning in tunings
        }
        amount = CALLS * (bench.source_bytes + bench.rows * spec.row_bytes) / 1e9
        for arm, taken in interleaved(arms, rounds, warm_up=2).items():
            rows.append(rate_row(arm, UNIT, amount, taken))
    return rows


def waiting_rows(bench: Bench, rounds: int) -> list[Row]:
    """pack as a caller has it: with the wait for what was refused."""
    kernels = GpuKernels(Mode.REQUIRE, bench.runner)
    rows = []
    for name in COPY_SHARE:
        spec = spec_of(name)
        arms = {name: lambda s=spec: kernels.pack_all([(s, source) for source in bench.sources])}
        amount = SOURCES * (bench.source_bytes + bench.rows * spec.row_bytes) / 1e9
        taken = interleaved(arms, rounds, warm_up=2)[name]
        rows.append(rate_row(f"pack_all of {SOURCES} layers, checked, {name}", UNIT, amount, taken))
    return rows


def gpu_name() -> str:
    """The GPU in its vendor's words."""
    if mx.metal.is_available():
        return str(mx.device_info().get("device_name", "Metal"))
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()


def guarded(title: str, work: Callable[[], list[Row]], problems: list[str]) -> list[Row]:
    """Rows of one part; what goes wrong in it is told, and the others still run."""
    begin = time.perf_counter()
    try:
        rows = work()
    except (AssertionError, RuntimeError, ValueError) as problem:
        problems.append(f"{title}: {problem}"[:2000])
        print(f"  {title}: FAILED: {problem}"[:2000], flush=True)
        return []
    for row in rows:
        beside = f"{row.ratio} of {row.peer.name}" if row.peer else ""
        print(f"  {row.work}: {row.ours.median} GB/s {beside}", flush=True)
    print(f"  ({time.perf_counter() - begin:.1f} s)", flush=True)
    return rows


def main() -> int:
    """Check, time, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=262144)
    parser.add_argument("--no-checks", action="store_true")
    options = parser.parse_args()
    runner = find_runner()
    if runner is None:
        print("mlx has no GPU here: nothing was measured")
        return 0
    print(f"checks on {gpu_name()} ({runner.dialect.value})", flush=True)
    begin = time.perf_counter()
    checks = [] if options.no_checks else check_all(list(FORMATS))
    print(f"checked in {time.perf_counter() - begin:.0f} s", flush=True)
    bench, problems = Bench(runner, options.rows), list[str]()
    hot_first = sorted(FORMATS, key=lambda name: name not in COPY_SHARE)
    rows: list[Row] = []
    for name in hot_first:
        rows += guarded(name, lambda n=name: rows_of(bench, n, options.rounds), problems)
    rows += guarded("waiting", lambda: waiting_rows(bench, options.rounds), problems)
    rows += guarded("tuning", lambda: tuning_rows(bench, options.rounds), problems)
    write_results(
        "kernels_gpu",
        rows,
        directory=options.out,
        gpu=gpu_name(),
        mlx=mx.__version__,
        checks=checks,
        problems=problems,
    )
    wrong = sum(bool(record["failures"]) for record in checks)
    print(f"{len(checks) - wrong} of {len(checks)} checks equal the oracle; {len(problems)} parts failed")
    return int(bool(wrong or problems))


if __name__ == "__main__":
    raise SystemExit(main())

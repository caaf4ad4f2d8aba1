"""Packing and unpacking on the CPU, one thread, beside mlx, numpy and a plain copy in the same run.

Rates are GB/s of fp16 rows, also where the source is float32. Arms take turns; what the arms give is compared
before any time is looked at. Then two threads against one, and how long an event loop waits meanwhile.

    python tests/benchmarks/bench_kernels_cpu.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import mlx.core as mx
import numpy as np
from codec_peers import Peer, mlx_peer, numpy_peer, oracle_peer
from harness import Row, Spread, interleaved, rate_row, write_results
from kv_families import relative_error
from pionkv.kernels import FORMATS, Element, LayerSpec, pack, unpack, warm_up

ROWS, DIM, POOL = 512, 1024, 4
# Of the pool, where threads are compared: one pool is shorter than the interpreter's switch interval.
REPEATS = 16
GIGABYTES = ROWS * DIM * 2 * POOL / 1e9
UNIT = "GB/s of fp16"
Arms = dict[str, Callable[[], object]]

# Per format: target of pack, of unpack, and which peers count ("best" of mlx and numpy, or mlx).
TARGETS = {
    "fp16": (3.0, 3.0, "best"),
    "int8": (2.5, 2.0, "best"),
    "fp8": (1.3, 2.0, "best"),
    "mlx4g32": (5.0, 15.0, "mlx"),
    "turbo4": (5.0, 5.0, "mlx"),
}
MLX_LAYOUTS = ("mlx4g32", "mlx4g64", "mlx8g32", "mlx8g64")


def spec_of(name: str) -> LayerSpec:
    """A layer of eight heads of 128."""
    fmt = FORMATS[name]
    return LayerSpec(name, DIM, rope=64 if fmt.family == "rope" else 0, head_dim=0 if fmt.group else 128)


class Work:
    """One format: a pool of different rows, our arms and the peers' arms."""

    def __init__(self, name: str) -> None:
        self.name, self.spec = name, spec_of(name)
        self.element = Element.F32 if name == "fp16" else Element.F16
        dtype = np.float32 if name == "fp16" else np.float16
        rng = np.random.default_rng(0)
        self.sources = [rng.standard_normal((ROWS, DIM)).astype(dtype) for _ in range(POOL)]
        self.packed = [np.zeros((ROWS, self.spec.row_bytes), np.uint8) for _ in range(POOL)]
        self.restored = [np.zeros((ROWS, DIM), dtype) for _ in range(POOL)]
        # mx.quantize beside every format, and numpy at least as the oracle uses it.
        offered = {
            "mlx": mlx_peer(name),
            "numpy": numpy_peer(name),
            "mx.quantize 4 bits": None if name in MLX_LAYOUTS else mlx_peer("mlx4g32"),
            "oracle": oracle_peer(self.spec, self.element, ROWS),
        }
        self.peers = {library: peer for library, peer in offered.items() if peer}
        arrays = [mx.array(x) for x in self.sources]
        self.inputs = {library: arrays if library.startswith("m") else self.sources for library in self.peers}
        self.parts = {library: [p.pack(x) for x in self.inputs[library]] for library, p in self.peers.items()}

    def pack(self) -> None:
        for source, out in zip(self.sources, self.packed, strict=True):
            pack(self.spec, source, self.element, ROWS, out)

    def unpack(self) -> None:
        for packed, out in zip(self.packed, self.restored, strict=True):
            unpack(self.spec, packed, ROWS, self.element, out)

    def check(self) -> None:
        """Our rows against the peers', and against the rows themselves."""
        self.pack()
        self.unpack()
        for library, peer in self.peers.items():
            if library == "mx.quantize 4 bits":
                continue
            theirs = np.array(peer.unpack(self.parts[library][0])).astype(np.float32)
            ours = self.restored[0].astype(np.float32)
            assert relative_error(theirs, ours) <= peer.tolerance, (self.name, library)

    def arms(self, direction: str) -> Arms:
        ours = self.pack if direction == "pack" else self.unpack
        arms: Arms = {"ours": ours, "copy": self.copy}
        for library, peer in self.peers.items():
            arms[library] = self._peer_arm(library, peer, direction)
        return arms

    def copy(self) -> None:
        """The fp16 bytes, copied."""
        for source, out in zip(self.sources, self.restored, strict=True):
            np.copyto(out, source)

    def _peer_arm(self, library: str, peer: Peer, direction: str) -> Callable[[], object]:
        work, inputs = (
            (peer.pack, self.inputs[library]) if direction == "pack" else (peer.unpack, self.parts[library])
        )
        return lambda: [work(x) for x in inputs]


def measure(name: str, rounds: int) -> list[Row]:
    """Both directions of one format."""
    work = Work(name)
    work.check()
    rows = []
    for i, direction in enumerate(("pack", "unpack")):
        seconds = interleaved(work.arms(direction), rounds)
        target = TARGETS[name][i] if name in TARGETS else None
        choice = TARGETS[name][2] if name in TARGETS else "best"
        libraries = [lib for lib in ("mlx", "numpy") if lib in seconds and choice in ("best", lib)]
        peer = min(libraries, key=lambda lib: Spread.of(seconds[lib]).median, default="copy")
        others = {
            lib: Spread.of(seconds[lib]).inverted(GIGABYTES).median
            for lib in seconds
            if lib not in ("ours", peer)
        }
        work_name = f"{name} {direction} {'from' if i == 0 else 'to'} {work.element.name.lower()}"
        against, best = (peer, seconds[peer]), _best(seconds, "ours", peer)
        rows.append(
            rate_row(work_name, UNIT, GIGABYTES, seconds["ours"], against, target, best=best, others=others)
        )
    return rows


def threads(name: str, rounds: int) -> list[Row]:
    """Two threads with half the rows each, against one with all."""
    work, rows = Work(name), []
    work.check()
    amount = GIGABYTES * REPEATS

    def run(direction: str, span: slice) -> None:
        count = span.stop - span.start
        for _ in range(REPEATS):
            for source, packed, out in zip(work.sources, work.packed, work.restored, strict=True):
                if direction == "pack":
                    pack(work.spec, source[span], work.element, count, packed[span])
                else:
                    unpack(work.spec, packed[span], count, work.element, out[span])

    halves = (slice(0, ROWS // 2), slice(ROWS // 2, ROWS))
    with ThreadPoolExecutor(2) as pool:
        for direction in ("pack", "unpack"):
            arms: Arms = {
                "two": partial(_all, pool, run, direction, halves),
                "one": partial(run, direction, slice(0, ROWS)),
            }
            seconds = interleaved(arms, rounds)
            title = f"{name} {direction}, two threads"
            peer = ("one thread", seconds["one"])
            rows.append(
                rate_row(title, UNIT, amount, seconds["two"], peer, 1.4, best=_best(seconds, "two", "one"))
            )
    return rows


def _all(
    pool: ThreadPoolExecutor, run: Callable[[str, slice], None], direction: str, spans: Sequence[slice]
) -> None:
    list(pool.map(partial(run, direction), spans))


def _best(seconds: dict[str, list[float]], ours: str, peer: str) -> float:
    """Ratio of the fastest rounds, which a busy machine spoils least."""
    return float(f"{min(seconds[peer]) / min(seconds[ours]):.4g}")


async def lags(work: Callable[[], None] | None, seconds: float = 1.0) -> list[float]:
    """How late a loop wakes from sleeps of a millisecond, in ms, while a thread works without pause."""
    stop = False

    def repeat() -> None:
        while work is not None and not stop:
            work()

    running = asyncio.get_running_loop().run_in_executor(None, repeat)
    late, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        begin = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append((time.perf_counter() - begin - 0.001) * 1e3)
    stop = True
    await running
    return late


def loop_lag() -> list[Row]:
    """The loop's lag beside a packing thread, and what it would be if packing ran on the loop."""
    work = Work("turbo4")
    rows = []
    for name, body in (("idle", None), ("while a thread packs turbo4", work.pack)):
        late = sorted(asyncio.run(lags(body)))
        median, p99 = late[len(late) // 2], late[int(len(late) * 0.99)]
        rows.append(
            Row(
                f"event loop, {name}",
                "ms late",
                Spread(round(median, 3), round(late[0], 3), round(late[-1], 3)),
                extra={"p99": round(p99, 3)},
            )
        )
    begin = time.perf_counter()
    work.pack()
    took = round((time.perf_counter() - begin) * 1e3, 3)
    rows.append(Row("event loop, if it packed itself", "ms late", Spread(took, took, took)))
    return rows


def main() -> None:
    """Measure every format and write docs/results/kernels_cpu.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    warm_up()
    rows: list[Row] = []
    for name in FORMATS:
        rows += measure(name, rounds)
    for name in TARGETS:
        rows += threads(name, rounds)
    rows += loop_lag()
    write_results("kernels_cpu", rows, shape={"rows": ROWS, "dim": DIM, "pool": POOL, "rounds": rounds})


if __name__ == "__main__":
    main()

"""Attention at the server beside rows fetched and attended by the client.

Every client of the one arm sends queries of one layer and gets outputs; every client of the other fetches the
keys and values of that layer and computes the same attention itself. Outputs are compared before any time is
looked at. Bytes on the wire are those of the commands and replies. The break-even says how many queries on a
layer cost as much as fetching it once and asking nobody any more.

    python tests/benchmarks/bench_attend.py                       small, for a CPU
    python tests/benchmarks/bench_attend.py --rows 256 1024 4096 16384 32768 --clients 1 2 4 8 16 32 \
        --name attend_gpu                                         all of it, for a GPU
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from pionkv.kernels.blas import preload_blas  # noqa: E402

BLAS = preload_blas()

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from harness import RESULTS, Row, interleaved, rate_row, write_results  # noqa: E402
from pionkv.kernels import Element, LayerSpec, pack  # noqa: E402
from pionkv.kernels.attention import PackedLayer, Query, contiguous_map, oracle  # noqa: E402
from pionkv.kernels.attention.mlx_engine import MlxEngine  # noqa: E402
from pionkv.kernels.attention.mlx_rows import quantized_products_work  # noqa: E402
from pionkv.protocol.request import encode_command  # noqa: E402
from pionkv.storage import Run  # noqa: E402
from server_process import ServerProcess  # noqa: E402

LEAST_COSINE = 0.9999
ASKED = 4
"""Queries that a client sends in a round."""
BATCH_ROWS = 4096
"""Rows of one V.STOREBATCH."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--query-heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--format", default="fp16", help="stored format of the rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="attend", help="of the results file")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results file")
    return parser.parse_args()


class Wire:
    """A connection that counts its bytes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb")
        self.bytes = 0

    def command(self, *words: Any) -> bytes:
        """A command that is answered by a bulk string or one line; an error ends the benchmark."""
        for piece in encode_command(words):
            self.bytes += len(piece)
            self.socket.sendall(piece)
        line = self.reader.readline()
        self.bytes += len(line)
        if line[:1] == b"-":
            raise SystemExit(f"{words[0]}: {line.decode()}")
        if line[:1] != b"$":
            return line
        body = self.reader.read(int(line[1:]) + 2)
        self.bytes += len(body)
        return body[:-2]


class Layer:
    """One layer of a prefix in a server, and queries on it."""

    def __init__(self, port: int, options: argparse.Namespace, rows: int) -> None:
        self.options, self.rows = options, rows
        heads, dim = options.kv_heads, options.head_dim
        rng = np.random.default_rng(rows)
        self.name = f"rows{rows}"
        self.sides = [rng.standard_normal((rows, heads * dim), np.float32).astype(np.float16) for _ in "kv"]
        self.q = rng.standard_normal((options.query_heads, 1, dim), np.float32)
        wire = Wire(port)
        wire.command("KV.PREFIX.REGISTER", self.name, heads * dim, options.format)
        for suffix, side in zip(("_pk", "_pv"), self.sides, strict=True):
            for start in range(0, rows, BATCH_ROWS):
                part = side[start : start + BATCH_ROWS]
                place = self.name + suffix, 0, start, len(part)
                wire.command("V.STOREBATCH", *place, part.tobytes(), "FMT", "F16")

    def remote(self, wire: Wire) -> np.ndarray:
        """The output as the server computes it."""
        heads, _, dim = self.q.shape
        answer = wire.command("ATTEND.PREFIX.QUERY", self.name, 0, heads, dim, 1, self.q.tobytes())
        return np.frombuffer(answer, np.float32).reshape(self.q.shape)

    def fetch(self, wire: Wire) -> list[bytes]:
        """Both sides, fp16 rows."""
        span = "RANGE", 0, self.rows, "FMT", "F16"
        return [wire.command("V.FETCH", self.name + suffix, 0, *span) for suffix in ("_pk", "_pv")]

    def arrays(self, fetched: Sequence[bytes]) -> list[mx.array]:
        """The rows as a model has them, evaluated: on a CPU as float32, which it is faster with."""
        dtype = mx.float32 if mx.default_device() == mx.Device(mx.cpu) else mx.float16
        shape = self.rows, self.options.kv_heads, self.options.head_dim
        found = [mx.array(np.frombuffer(side, np.float16).reshape(shape)).astype(dtype) for side in fetched]
        turned = [mx.contiguous(side.swapaxes(0, 1)[None]) for side in found]
        mx.eval(*turned)
        return turned

    def local(self, k: mx.array, v: mx.array) -> np.ndarray:
        """The output as the client computes it."""
        q = mx.array(self.q)[None].astype(k.dtype)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.options.head_dim**-0.5)
        return np.array(out[0].astype(mx.float32))

    def expected(self) -> np.ndarray:
        """The output by the oracle, of the rows as they were sent."""
        shape = self.rows, self.options.kv_heads, self.options.head_dim
        k, v = (side.astype(np.float64).reshape(shape).swapaxes(0, 1) for side in self.sides)
        return oracle.attend(self.q, k, v, contiguous_map(self.options.query_heads, self.options.kv_heads))[0]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The least cosine of any head's outputs."""
    return float(((a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)).min())


def compare(layer: Layer, wire: Wire) -> float:
    """Compare both arms, and with the oracle where the format is exact; seconds of a local attention."""
    kept = layer.arrays(layer.fetch(wire))
    local, remote = layer.local(*kept), layer.remote(wire)
    found = [cosine(local, remote)]
    if layer.options.format == "fp16":
        found.append(cosine(remote, layer.expected()))
    if min(found) < LEAST_COSINE:
        raise SystemExit(f"{layer.rows} rows: outputs differ, cosine {min(found):.6f}")
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        layer.local(*kept)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def together(wires: Sequence[Wire], ask: Callable[[Wire], object]) -> None:
    """Every client asks, all at once."""
    threads = [threading.Thread(target=ask, args=(wire,)) for wire in wires]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(layer: Layer, wires: Sequence[Wire], local: float, rounds: int) -> Row:
    """One line: so many clients on so many rows."""

    def asking(wire: Wire) -> None:
        for _ in range(ASKED):
            layer.remote(wire)

    seconds = interleaved(
        {"query": lambda: together(wires, asking), "fetch": lambda: together(wires, layer.fetch)}, rounds
    )
    count = len(wires)
    query = statistics.median(seconds["query"]) / ASKED
    fetch = statistics.median(seconds["fetch"])
    asked, fetched = (bytes_of(wires[0], ask) for ask in (layer.remote, layer.fetch))
    alone = [taken / ASKED for taken in seconds["query"]]
    # Clients have machines of their own: what they compute there goes on at the same time.
    with_local = [taken + local for taken in seconds["fetch"]]
    gain = query - local
    return rate_row(
        f"{layer.rows} rows, {count} client{'s' * (count > 1)}: a query each",
        "queries/s",
        count,
        alone,
        ("fetch and attend", with_local),
        bytes_per_query=asked,
        bytes_to_fetch=fetched,
        ms_per_query=round(query * 1e3, 3),
        ms_to_fetch=round(fetch * 1e3, 3),
        ms_of_local_attention=round(local * 1e3, 3),
        break_even_queries_by_time=round(fetch / gain, 1) if gain > 0 else None,
        break_even_queries_by_bytes=round(fetched / asked, 1),
    )


def bytes_of(wire: Wire, ask: Callable[[Wire], object]) -> int:
    """Bytes on the wire of one question."""
    before = wire.bytes
    ask(wire)
    return wire.bytes - before


def packed_layer(options: argparse.Namespace, rows: int, format: str) -> PackedLayer:
    """Random rows as a store has them."""
    spec = LayerSpec(format, options.kv_heads * options.head_dim)
    sides = []
    for seed in range(2):
        elements = np.random.default_rng(seed).standard_normal((rows, spec.dim), np.float32)
        out = bytearray(rows * spec.row_bytes)
        pack(spec, elements, Element.F32, rows, out)
        sides.append((spec, [Run(spec, memoryview(out), rows)]))
    return PackedLayer.of(sides[0], sides[1], options.head_dim)


def packed_or_decoded(options: argparse.Namespace, rows: int, format: str) -> Row:
    """Rows that stay packed beside the same rows decoded, in the engine alone."""
    layer = packed_layer(options, rows, format)
    head_map = contiguous_map(options.query_heads, options.kv_heads)
    q = np.random.default_rng(9).standard_normal((options.query_heads, 1, options.head_dim), np.float32)
    kept = {}
    for name, quantized in (("packed", True), ("decoded", False)):
        engine = MlxEngine(quantized=quantized)
        kept[name] = engine, engine.load(layer)
    outputs = [engine.attend(held, [Query(q)], head_map)[0].out for engine, held in kept.values()]
    if cosine(*outputs) < LEAST_COSINE:
        raise SystemExit(f"{format}: packed and decoded rows differ, cosine {cosine(*outputs):.6f}")

    def arm(name: str) -> Callable[[], object]:
        engine, held = kept[name]
        return lambda: engine.attend(held, [Query(q)], head_map)

    seconds = interleaved({name: arm(name) for name in kept}, options.rounds, warm_up=2)
    return rate_row(
        f"engine, {rows} rows of {format} left packed",
        "queries/s",
        1,
        seconds["packed"],
        ("decoded", seconds["decoded"]),
        bytes_packed=kept["packed"][1].nbytes,
        bytes_decoded=kept["decoded"][1].nbytes,
    )


def main() -> None:
    options = arguments()
    lines: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder) / "data", "--max-bytes", "64gb", "--attend-bytes", "16gb")
        server.start()
        try:
            for rows in options.rows:
                layer = Layer(server.port, options, rows)
                local = compare(layer, Wire(server.port))
                for clients in options.clients:
                    wires = [Wire(server.port) for _ in range(clients)]
                    lines.append(measure(layer, wires, local, options.rounds))
                    print(lines[-1].work, lines[-1].extra, flush=True)
        finally:
            server.close()
    products = quantized_products_work()
    if products:
        lines += [packed_or_decoded(options, options.rows[-1], format) for format in ("mlx4g32", "mlx8g64")]
    engine = MlxEngine()
    shape = f"{options.query_heads} query heads, {options.kv_heads} key/value heads of {options.head_dim}"
    gpu = {} if engine.device == "cpu" else {"gpu": mx.device_info().get("device_name", engine.device)}
    write_results(
        options.name,
        lines,
        directory=options.out,
        blas=BLAS.note,
        shape=shape,
        format=options.format,
        quantised_products=products,
        **gpu,
    )


if __name__ == "__main__":
    main()

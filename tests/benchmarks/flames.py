"""Flame graphs of the server on its three hot paths: rows in, rows out, small commands.

    python tests/benchmarks/flames.py [--seconds 6]     (needs py-spy)

Writes docs/images/flame-<path>.svg; what they show is said in docs/performance.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench_load import fetch, running, store
from harness import ROOT
from wires import DIM, MIB, ROW, Contents, Wire

IMAGES = ROOT / "docs" / "images"
SPY = Path(sys.executable).with_name("py-spy")
SIZE = 4 * MIB
RATE = 500
PIPELINE = 16


Step = Callable[[], None]


def storing(wire: Wire) -> Step:
    wire.call(b"KV.PREFIX.REGISTER", b"in", b"%d" % DIM, b"fp16")
    contents, rows, turn = Contents(SIZE), b"%d" % (SIZE // ROW), [0]

    def run() -> None:
        turn[0] += 1
        layer = b"%d" % (turn[0] % 100)
        wire.call(b"V.STOREBATCH", b"in_pk", layer, b"0", rows, contents.next(), b"FMT", b"F16")

    return run


def fetching(wire: Wire) -> Step:
    store(wire, b"out", 1, SIZE)
    return lambda: fetch(wire, b"out", 0, SIZE)


def small(wire: Wire) -> Step:
    def run() -> None:
        for turn in range(PIPELINE // 4):
            wire.send(b"SET", b"k%d" % turn, b"v" * 64)
            wire.send(b"GET", b"k%d" % turn)
            wire.send(b"KV.PREFIX.LOOKUP", b"nobody")
            wire.send(b"PING")
        for _ in range(PIPELINE // 4):
            assert (wire.line(), wire.bulk(), wire.line(), wire.line()) == (b"+OK", 64, b"+MISS", b"+PONG")

    return run


PATHS: dict[str, Callable[[Wire], Step]] = {"store": storing, "fetch": fetching, "small": small}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=6)
    options = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    for name, prepare in PATHS.items():
        with running("--max-bytes", "8GB") as server:
            step = prepare(Wire(("127.0.0.1", server.port), room=SIZE))
            path = IMAGES / f"flame-{name}.svg"
            command = [SPY, "record", "--pid", str(server.pid), "--output", path]
            command += ["--duration", str(options.seconds), "--rate", str(RATE)]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as spy:
                while spy.poll() is None:
                    step()
            if spy.returncode:
                raise SystemExit(f"py-spy ended with status {spy.returncode}")
            drawn = path.read_text(encoding="utf-8")
            # Its title is the command, with the paths of this machine.
            path.write_text(drawn.replace(" ".join(map(str, command)), name), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KiB", flush=True)


if __name__ == "__main__":
    main()

"""Memory of the server beside the bytes it stores: `python tests/benchmarks/bench_rss.py`.

Stores blobs one after the other, reads each back, and looks at the anonymous memory after each. Pages
are mapped files: they may be resident, and the system can take them back at any time. Anonymous memory it
cannot take back.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from harness import Row, Spread, write_results
from pionkv.protocol.request import encode_command

DIM = 1024
MIB = 1 << 20
BLOBS, BLOB_BYTES = 16, 64 * MIB
FORMATS = {"fp16": "F16", "mlx4g32": "F32"}
ALLOWED = 0.05
"""Growth of anonymous memory that is allowed, as a part of the bytes stored."""


@contextmanager
def server() -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its port and process id."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pionkv.server", "--port", "0", "--data-dir", f"{directory}/data"]
        process = subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        match = re.search(r"tcp://\S+:(\d+)", process.stdout.readline())
        assert match is not None, "the server did not start"
        try:
            yield int(match[1]), process.pid
        finally:
            process.terminate()
            process.wait()


def memory(pid: int) -> dict[str, int]:
    """Resident bytes of a process, anonymous and all."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {
        name: int(re.search(rf"^{name}:\s+(\d+) kB", text, re.M)[1]) * 1024 for name in ("Anonymous", "Rss")
    }


class Link:
    """A client that keeps one buffer and no more."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.lines = self.socket.makefile("rb", buffering=0)

    def ask(self, *args: bytes | str | int | memoryview) -> bytes:
        """Send a command; the first line of its reply."""
        for piece in encode_command(args):
            self.socket.sendall(piece)
        return self.lines.readline()

    def info(self) -> str:
        """The server's own section of INFO."""
        text = memoryview(bytearray(int(self.ask("INFO", "pion")[1:])))
        self.read_bulk(b"$%d\r\n" % text.nbytes, text)
        return bytes(text).decode()

    def read_bulk(self, header: bytes, into: memoryview) -> None:
        assert header == b"$%d\r\n" % into.nbytes, header
        while into.nbytes:
            into = into[self.socket.recv_into(into) :]
        assert self.lines.readline() == b"\r\n"


def grow(format: str, kind: str, blobs: int) -> tuple[list[int], list[int], int]:
    """Store and read blobs; anonymous and all resident bytes after each, and the bytes stored."""
    elements = np.random.default_rng(1).standard_normal(BLOB_BYTES // 4, np.float32)
    blob = memoryview(elements if kind == "F32" else np.resize(elements.astype(np.float16), BLOB_BYTES // 2))
    blob = blob.cast("B")
    rows = BLOB_BYTES // DIM // (4 if kind == "F32" else 2)
    received = memoryview(bytearray(BLOB_BYTES))
    anonymous, resident, stored = [], [], 0
    with server() as (port, pid):
        link = Link(port)
        while "kernels_loading:0" not in link.info():
            pass
        for index in range(blobs):
            sid = f"s{index}"
            link.ask("V.CREATE", sid, DIM, "VQUANT", format)
            assert link.ask("V.STOREBATCH", sid, 0, 0, rows, blob, "FMT", kind) == b"+OK\r\n"
            link.read_bulk(link.ask("V.FETCH", sid, 0, "RANGE", 0, rows, "FMT", kind), received)
            if format == "fp16":
                assert received == blob
            found = memory(pid)
            anonymous.append(found["Anonymous"])
            resident.append(found["Rss"])
        stored = int(re.search(r"stored_bytes:(\d+)", link.info())[1])
    return anonymous, resident, stored


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blobs", type=int, default=BLOBS, help="blobs of 64 MiB to store in each format")
    blobs = parser.parse_args().blobs
    rows = []
    for format, kind in FORMATS.items():
        anonymous, resident, stored = grow(format, kind, blobs)
        growth = anonymous[-1] - anonymous[0]
        rows.append(
            Row(
                f"anonymous memory with {blobs} blobs of 64 MiB stored as {format}, beside that with one",
                "MiB",
                Spread.of([value / MIB for value in anonymous]),
                target=ALLOWED,
                holds=growth <= ALLOWED * stored,
                extra={
                    "stored_mib": round(stored / MIB, 1),
                    "growth_mib": round(growth / MIB, 2),
                    "anonymous_mib": [round(value / MIB, 1) for value in anonymous],
                    "resident_mib": [round(value / MIB, 1) for value in resident],
                },
            )
        )
    write_results("rss", rows)
    assert all(row.holds for row in rows), "anonymous memory grows with what is stored"


if __name__ == "__main__":
    main()

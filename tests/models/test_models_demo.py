"""`pionkv demo`, as a user runs it: from another process, to its end and interrupted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pionkv.client.demo import processes
from pionkv.client.demo.report import Comparison, figures, first_difference
from pionkv.client.demo.worker import Result
from rich.console import Console

SECONDS = 540
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def start_demo(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts the demonstration with a folder of its own for temporary files, which mark its processes too."""

    def start(*flags: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", "from pionkv.server.cli import main; main()", "demo", *flags],
            env={**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def processes_of(folder: Path) -> list[str]:
    """Commands of the processes that were started with `folder` for their temporary files."""
    listing = subprocess.run(["ps", "axeww", "-o", "command"], capture_output=True, text=True, check=True)
    return [line for line in listing.stdout.splitlines() if f"TMPDIR={folder}" in line]


def test_it_shows_what_it_promises_and_leaves_nothing(
    start_demo: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    demo = start_demo("--answer-tokens", "8")
    output = demo.communicate(timeout=SECONDS)[0]
    assert demo.returncode == 0, output
    rows = {cells[1]: cells for cells in (line.split() for line in output.splitlines()) if len(cells) > 10}
    for vquant in ("fp16", "mlx4g32"):
        assert vquant in rows, output
    assert rows["fp16"][-2] == "none"
    assert "Corran is closed on Sundays." in output
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(
    start_demo: Callable[..., "subprocess.Popen[str]"], tmp_path: Path, number: signal.Signals
) -> None:
    demo = start_demo()
    limit = time.monotonic() + SECONDS
    while not list(tmp_path.glob("*/worker.log")):
        assert demo.poll() is None and time.monotonic() < limit
        time.sleep(0.05)
    assert len(processes_of(tmp_path)) >= 2
    demo.send_signal(number)
    output = demo.communicate(timeout=SECONDS)[0]
    assert (demo.returncode, "stopped" in output) == (130, True), output
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [1], 0), ([], [], None)],
)
def test_the_first_difference(one: list[int], other: list[int], expected: int | None) -> None:
    assert first_difference(one, other) == expected


def test_a_difference_is_not_kept_quiet() -> None:
    cold = Result(False, 900, 5.0, 0.5, 0.1, 40_000_000, 100, [[1, 2], [3, 4]], ["a", "b"], None)
    warm = Result(True, 900, 0.05, 0.5, 0.0, 100, 20_000_000, [[1, 2], [3, 5]], ["a", "c"], None)
    comparison = Comparison("fp16", cold, warm)
    assert comparison.first_difference == (1, 1)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(figures([comparison]))
    assert "10.0x" in capture.get()
    assert "2:2" in capture.get()


def test_a_signal_while_a_process_starts_ends_that_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []
    real = subprocess.Popen

    def interrupted(*args: Any, **options: Any) -> "subprocess.Popen[str]":
        started.append(real(*args, **options))
        signal.raise_signal(signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(processes.subprocess, "Popen", interrupted)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with (
        pytest.raises(KeyboardInterrupt),
        processes._child(["-c", "import time; time.sleep(600)"], tmp_path / "log"),
    ):
        raise AssertionError("it went on")
    assert started[0].returncode == -signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers

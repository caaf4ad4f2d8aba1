"""The other processes of the demonstration: a server, and the workers. None of them outlives its context."""

import json
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from .worker import Job, Result

START_SECONDS = 60
STOP_SECONDS = 10

_READY = re.compile(r"pionkv ready on tcp://\S+:(\d+)")

Listener = Callable[[dict[str, Any]], None]


class ProcessFailed(RuntimeError):
    """A process ended, or stayed silent, where a result was due; the text holds what it said."""


@contextmanager
def running_server() -> Iterator[int]:
    """A server with data of its own on a free port, which is the value; both are gone afterwards.

    Raises:
        ProcessFailed: It did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="pionkv-demo-") as folder:
        command = ["-m", "pionkv.server", "--port", "0", "--data-dir", str(Path(folder, "data"))]
        with _child(command, Path(folder, "server.log")) as process:
            line = _first_line(process.stdout, START_SECONDS)
            ready = _READY.match(line)
            if ready is None:
                raise ProcessFailed(
                    f"the server did not start: {Path(folder, 'server.log').read_text()[-2000:]}"
                )
            yield int(ready[1])


def run_worker(job: Job, listener: Listener) -> Result:
    """Run a job in another interpreter.

    Args:
        job: What it does.
        listener: Called with each event that is not the result.

    Raises:
        ProcessFailed: It came to no result.
    """
    with tempfile.TemporaryDirectory(prefix="pionkv-demo-") as folder:
        log = Path(folder, "worker.log")
        with _child(["-m", "pionkv.client.demo.worker"], log) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(asdict(job)) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                event = json.loads(line)
                kind = event.pop("event")
                if kind == "result":
                    return Result(**event)
                if kind == "failed":
                    raise ProcessFailed(event["reason"])
                listener({"event": kind, **event})
        raise ProcessFailed(f"the worker ended without a result: {log.read_text()[-2000:]}")


@contextmanager
def _child(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """An interpreter in a session of its own, so that Ctrl-C reaches us and we end it in order."""
    release = _held_signals()
    try:
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
    except BaseException:
        release()
        raise
    with process:
        try:
            release()
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _held_signals() -> Callable[[], None]:
    """Keep signals that would end us; what is returned lets them through, also those that came meanwhile.

    One that came while a child is being started would leave a child that nobody knows.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    came: list[int] = []
    ends = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in ends}

    def release() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        for got in came:
            signal.raise_signal(got)

    return release


def _first_line(stream: IO[str] | None, seconds: float) -> str:
    assert stream is not None
    readable, _, _ = select.select([stream], [], [], seconds)
    return stream.readline() if readable else ""

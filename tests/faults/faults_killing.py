"""The kill -9 loop: writers and readers go on while workers, the supervisor and writers are killed.

Every restart of the supervisor is on the same directory and port. At the end everything acknowledged is read
again, and the directory examined.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from pionkv.storage.examine import examine
from server_process import ServerProcess

ACTORS = Path(__file__).with_name("faults_actors.py")
SECONDS = 120
WRITERS, READERS, WORKERS = 2, 2, 2
VICTIMS = ("worker", "worker", "worker", "all workers", "supervisor", "supervisor", "writer")


class Wrong(AssertionError):
    """An actor has seen what must not be."""


class Tally:
    """What all actors have said.

    Attributes:
        counts: Changes acknowledged, rows looked at.
        wrong: What must not be.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._changed = threading.Condition()

    def add(self, words: dict[str, object]) -> None:
        with self._changed:
            for name, value in words.items():
                if name == "wrong":
                    self.wrong.append(str(value))
                elif isinstance(value, int):
                    self.counts[name] += value
            self._changed.notify_all()

    def wait(self, name: str, count: int) -> None:
        """Until a count is reached. Raises `Wrong`."""
        with self._changed:
            reached = self._changed.wait_for(lambda: self.wrong or self.counts[name] >= count, SECONDS)
        if self.wrong:
            raise Wrong(self.wrong)
        if not reached:
            raise Wrong(f"{name} stands at {self.counts[name]}, {count} expected")


class Actor:
    """A writer or reader process, and the thread that listens to it."""

    def __init__(self, tally: Tally, role: str, port: int, *numbers: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ACTORS), role, str(port), *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._hear, args=(tally,), daemon=True)
        self._thread.start()

    def _hear(self, tally: Tally) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(json.JSONDecodeError):
                tally.add(json.loads(line))

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def finish(self) -> int:
        """Let it look at everything once more and end; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self._end()

    def _end(self) -> int:
        status = self.process.wait(SECONDS)
        self._thread.join(SECONDS)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        return status


class KillLoop:
    """Rounds of kills on one data directory.

    Args:
        folder: Where the data directory is made.
        seed: Decides who dies when.
        flags: Of the server.
    """

    def __init__(self, folder: Path, seed: int, *flags: str) -> None:
        self.server = ServerProcess(folder / "data", "--workers", str(WORKERS), *flags)
        self.tally = Tally()
        self.killed: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._lives = Counter(range(WRITERS))
        self._writers: list[Actor] = []
        self._readers: list[Actor] = []

    def run(self, rounds: int) -> None:
        """Kill somebody in each round. Raises `Wrong`."""
        self.server.start()
        self._writers = [self._writer(number) for number in range(WRITERS)]
        self._readers = [
            Actor(self.tally, "reader", self.server.port, 900 + number, WRITERS) for number in range(READERS)
        ]
        try:
            for _ in range(rounds):
                self._round()
            self.tally.wait("done", self.tally.counts["done"] + 4)
            ends = [actor.finish() for actor in (*self._writers, *self._readers)]
            if self.tally.wrong or any(ends):
                raise Wrong(self.tally.wrong, ends)
            assert self.server.stop() == 0
            report = examine(self.server.data_dir)
            if report.findings:
                raise Wrong(report.findings)
        finally:
            self.close()

    def _round(self) -> None:
        changes = self._random.randrange(1, 12)
        self.tally.wait("done", self.tally.counts["done"] + changes)
        # Not to wait for anything: the moment of death shall not be that of an acknowledgement.
        time.sleep(self._random.random() * 0.02)
        victim = self._random.choice(VICTIMS)
        if victim == "supervisor":
            self._kill_supervisor()
        elif victim == "writer":
            number = self._random.randrange(WRITERS)
            self._writers[number].kill()
            self._writers[number] = self._writer(number)
        else:
            pids = self._workers()
            chosen = pids if victim == "all workers" else self._random.sample(pids, min(1, len(pids)))
            for pid in chosen:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.killed[victim] += 1

    def _kill_supervisor(self) -> None:
        workers = self._workers()
        port = self.server.port
        self.server.kill()
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            time.sleep(0.001)
        self.server.start(port)

    def _workers(self) -> list[int]:
        pid = self.server.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def _writer(self, number: int) -> Actor:
        """A writer, whose versions no earlier one has used."""
        self._lives[number] += 1
        return Actor(self.tally, "writer", self.server.port, self._lives[number] * 1000 + number)

    def close(self) -> None:
        """Nothing is left running."""
        for actor in (*self._writers, *self._readers):
            if actor.process.poll() is None:
                actor.kill()
        self.server.close()

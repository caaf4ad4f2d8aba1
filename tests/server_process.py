"""A real server for tests and scripts: a process of its own, stopped, killed and started again."""

from __future__ import annotations

import re
import select
import signal
import subprocess
import sys
from pathlib import Path

READY = re.compile(
    r"pionkv ready on (tcp|tls)://(?P<host>\S+):(?P<port>\d+)(?: tls://\S+:(?P<tls_port>\d+))?"
    r"(?: binary://\S+:(?P<binary_port>\d+))?"
)
START_SECONDS = 60
STOP_SECONDS = 60


class ServerProcess:
    """A real server on a free port, in a process of its own; it can be stopped, killed and started again.

    Attributes:
        port: Its TCP port; another one after each `start`, the same after `restart`.
        tls_port: Its TLS port, if it has one beside.
        binary_port: That of the binary lane, if it has one.
        data_dir: Where it keeps everything.
        errors: File that holds what it wrote on standard error.
    """

    def __init__(
        self,
        data_dir: Path,
        *flags: str,
        program: tuple[str, ...] = (sys.executable, "-m", "pionkv.server"),
    ) -> None:
        self.data_dir = data_dir
        self.program = program
        self.errors = data_dir.with_suffix(".log")
        self.flags = flags
        self.port = self.tls_port = self.binary_port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, port: int = 0) -> None:
        """Start it, on a free port unless one is named, and wait for its ready line."""
        assert self._process is None
        command = [*self.program, "--port", str(port), "--data-dir", str(self.data_dir)]
        with self.errors.open("a") as errors:
            self._process = subprocess.Popen(
                [*command, *self.flags], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
        line = self._process.stdout.readline() if readable else ""
        match = READY.match(line)
        if match is None:
            self.kill()
            raise AssertionError(f"no ready line but {line!r}; {self.errors.read_text()}")
        self.port = int(match["port"])
        self.tls_port = int(match["tls_port"] or 0)
        self.binary_port = int(match["binary_port"] or 0)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self.wait()

    def kill(self) -> int:
        """End it as a crash would (SIGKILL)."""
        return self.stop(signal.SIGKILL)

    def restart(self, *, crash: bool = False) -> None:
        """End it, gracefully or not, and start it on the same data and port."""
        self.stop(signal.SIGKILL if crash else signal.SIGTERM)
        self.start(self.port)

    def wait(self) -> int:
        """Wait until it has ended; its exit code."""
        assert self._process is not None and self._process.stdout is not None
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process.stdout.close()
            self._process = None

    def close(self) -> None:
        """Make sure that nothing is left running."""
        if self._process is not None:
            self.kill()

    def anonymous_bytes(self) -> int:
        """Memory of the process that no file backs."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        found = re.search(r"Anonymous:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) * 1024

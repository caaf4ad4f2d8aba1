"""What the GPU switch did in this process, for a server's INFO or a client's statistics."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class BackendReport:
    """Counts since the process started.

    Attributes:
        gpu_launches: Kernels launched on a GPU.
        fallbacks: Operations done on the CPU although a GPU was wished for.
        latched: Instances that turned to the CPU for good.
        reason: Why the last of them did; empty if none.
    """

    gpu_launches: int = 0
    fallbacks: int = 0
    latched: int = 0
    reason: str = ""


class Tally:
    """Counts from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._report = BackendReport()

    def launched(self) -> None:
        """A kernel was launched."""
        with self._lock:
            self._report = replace(self._report, gpu_launches=self._report.gpu_launches + 1)

    def fell_back(self, operations: int) -> None:
        """Operations were done on the CPU instead."""
        with self._lock:
            self._report = replace(self._report, fallbacks=self._report.fallbacks + operations)

    def gave_up(self, reason: str) -> None:
        """An instance turned to the CPU."""
        with self._lock:
            self._report = replace(self._report, latched=self._report.latched + 1, reason=reason)

    def report(self) -> BackendReport:
        """The counts now."""
        return self._report


# A count of a process, like those that metrics are made of: every instance of the switch adds to it.
TALLY = Tally()


def backend_report() -> BackendReport:
    """What the GPU switches of this process did."""
    return TALLY.report()

"""Which backends code rows in this process and what the GPU switch did, for a server's INFO or statistics."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class BackendReport:
    """What happened since the process started.

    Attributes:
        tried: Backends that were asked for, in the order in which they first were.
        serving: Those of them that work: a GPU leaves when an instance turns to the CPU.
        gpu_launches: Kernels launched on a GPU.
        fallbacks: Operations done on the CPU although a GPU was wished for.
        latched: Instances that turned to the CPU for good.
        reason: Why the last of them did, on one line; empty if none.
    """

    tried: tuple[str, ...] = ()
    serving: tuple[str, ...] = ()
    gpu_launches: int = 0
    fallbacks: int = 0
    latched: int = 0
    reason: str = ""


class Tally:
    """Counts from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._report = BackendReport()

    def tried(self, backend: str) -> None:
        """A backend was asked for."""
        with self._lock:
            self._report = replace(self._report, tried=_with(self._report.tried, backend))

    def serves(self, backend: str) -> None:
        """A backend that was asked for works."""
        with self._lock:
            self._report = replace(self._report, serving=_with(self._report.serving, backend))

    def launched(self) -> None:
        """A kernel was launched."""
        with self._lock:
            self._report = replace(self._report, gpu_launches=self._report.gpu_launches + 1)

    def fell_back(self, operations: int) -> None:
        """Operations were done on the CPU instead."""
        with self._lock:
            self._report = replace(self._report, fallbacks=self._report.fallbacks + operations)

    def gave_up(self, backend: str, reason: str) -> None:
        """An instance turned from this backend to the CPU."""
        with self._lock:
            self._report = replace(
                self._report,
                serving=tuple(name for name in self._report.serving if name != backend),
                latched=self._report.latched + 1,
                reason=" ".join(reason.split()),
            )

    def report(self) -> BackendReport:
        """The counts now."""
        return self._report


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return names if name in names else (*names, name)


# A count of a process, like those that metrics are made of: every instance of the switch adds to it.
TALLY = Tally()


def backend_report() -> BackendReport:
    """Which backends this process tried, which serve, and what its GPU switches did."""
    return TALLY.report()

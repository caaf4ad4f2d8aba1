"""What measurements share: medians with their spread, and the machine that they were made on."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of one arm over its rounds, in four digits."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """That of some values, at least one."""
        return cls(short(statistics.median(values)), short(min(values)), short(max(values)))

    def inverted(self, work: float) -> Spread:
        """The rate that times stand for: `work` units each."""
        return Spread(short(work / self.median), short(work / self.max), short(work / self.min))

    def exceeds(self, other: Spread) -> bool:
        """Whether it differs from another by more than both spread."""
        return self.min > other.max or self.max < other.min


def short(value: float) -> float:
    """Four digits of a number."""
    return float(f"{value:.4g}")


def machine() -> dict[str, Any]:
    """The machine in words that mean something elsewhere, and how busy it was."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "python": platform.python_version(),
        "load_before": [round(x, 2) for x in os.getloadavg()],
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)

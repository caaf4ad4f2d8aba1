"""What this process takes of the machine's memory, as the kernel counts it."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path

ROLLUP = Path("/proc/self/smaps_rollup")
KIB = 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes.

    Attributes:
        anonymous: Memory that no file backs: what the process itself holds.
        resident: Everything resident, pages of mapped files included.
        peak_resident: The most that was ever resident.
    """

    anonymous: int
    resident: int
    peak_resident: int


def read_memory() -> Memory:
    """The figures now. Where the kernel does not tell them apart, `anonymous` is the peak of all."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else KIB)
    try:
        lines = ROLLUP.read_text().splitlines()[1:]
    except OSError:
        return Memory(peak, peak, peak)
    sizes = {name: int(text.split()[0]) * KIB for name, _, text in (line.partition(":") for line in lines)}
    return Memory(sizes["Anonymous"], sizes["Rss"], peak)

"""What processes take of the machine's memory, as the kernel counts it."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

PROCESSES = Path("/proc")
KIB = 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes.

    Attributes:
        anonymous: Memory that no file backs: what the processes themselves hold.
        resident: Everything resident, pages of mapped files included.
        peak_resident: The most that was ever resident.
    """

    anonymous: int
    resident: int
    peak_resident: int


def read_memory(pids: Iterable[int]) -> Memory:
    """The figures of some processes now, added up: a page of a file that two have mapped counts twice.

    Where the kernel does not tell them, all are the peak of this process.
    """
    found = [memory for memory in map(_read, pids) if memory is not None]
    if not found:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else KIB)
        return Memory(peak, peak, peak)
    return Memory(*(sum(sizes) for sizes in zip(*map(astuple, found), strict=True)))


def _read(pid: int) -> Memory | None:
    try:
        rollup = (PROCESSES / str(pid) / "smaps_rollup").read_text()
        status = (PROCESSES / str(pid) / "status").read_text()
    except OSError:
        return None
    sizes = {
        name: int(text.split()[0]) * KIB
        for name, _, text in (line.partition(":") for line in (rollup + status).splitlines())
        if text.endswith("kB")
    }
    return Memory(sizes["Anonymous"], sizes["Rss"], sizes["VmHWM"])

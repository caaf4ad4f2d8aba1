"""Spare files: pages that were evicted or overwritten, kept for a moment to be written again.

Writing into a file whose blocks are in memory is several times faster than into a new one, and a store at
its budget frees a page for every page it makes. A file is reused only if nobody can see it change:

- every process that maps a page, or may write to it, holds the file's lock, shared, as long as it does; who
  wants the file locks it alone, and leaves it when that fails;
- a page that a copy of the store shares (`Store.begin_save`) is never reused;
- a page whose place was told to a client (`Store.locate`) is never reused;
- the file gets another name and number first: who opened it under the old one finds the wrong number, and
looks again.

The budget does not count spares, so they are few, small and short-lived.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .page import BLOCK, BadHeader, PageLayout, parse_header

MIN_BYTES = 256 << 10
"""Making a small file anew costs no more than keeping it."""
MAX_BYTES = 16 << 20
"""Larger files gain less, and would be in the way of the budget."""
TOTAL_BYTES = 64 << 20
"""Bytes of all spares of a process."""
_TICKS = 2


class Freed(NamedTuple):
    """A page that nothing names any more.

    Attributes:
        number: The page.
        bytes: What it was charged.
        lent: Whether a client may have it mapped.
        fill: Rows written in each region.
    """

    number: int
    bytes: int
    lent: bool
    fill: dict[int, int]


@dataclass(slots=True)
class Spare:
    """A file to be written again, under its new number.

    Attributes:
        number: Its new number.
        fd: Open for writing.
        layout: Its layout, the only one it can have.
        bytes: Disk it takes.
        fill: Rows of each region whose blocks are there.
        ticks: Ticks it has waited.
    """

    number: int
    fd: int
    layout: PageLayout
    bytes: int
    fill: dict[int, int]
    ticks: int = 0


class Spares:
    """The spares of a process.

    Args:
        rename: Gives a page file a new number, and the name that goes with it.
        remove: Removes the file of a number.
    """

    def __init__(self, rename: Callable[[str], int], remove: Callable[[int], None]) -> None:
        self._rename = rename
        self._remove = remove
        self._found: deque[Spare] = deque()
        self._bytes = 0

    def offer(self, path: str, freed: Freed) -> bool:
        """Take over the file of a freed page; False if it is not worth it, or somebody has it mapped."""
        if freed.lent or not MIN_BYTES <= freed.bytes <= MAX_BYTES:
            return False
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _, layout = parse_header(os.pread(fd, BLOCK, 0))
            number = self._rename(path)
            if os.fstat(fd).st_nlink > 1:
                # A copy of the store holds it, too. Under its new name nobody links it any more.
                self._remove(number)
                os.close(fd)
                return True
            os.pwrite(fd, layout.encode(number), 0)
            fcntl.flock(fd, fcntl.LOCK_SH)
        except (OSError, BadHeader):
            os.close(fd)
            return False
        self._found.append(Spare(number, fd, layout, freed.bytes, freed.fill))
        self._bytes += freed.bytes
        while self._bytes > TOTAL_BYTES:
            self._drop(self._found.popleft())
        return True

    def take(self, layout: PageLayout) -> Spare | None:
        """A spare of this layout, the one that waited least."""
        for spare in reversed(self._found):
            if spare.layout == layout:
                self._found.remove(spare)
                self._bytes -= spare.bytes
                return spare
        return None

    def tick(self) -> None:
        """Let go of spares that nobody wanted for a while."""
        for spare in self._found:
            spare.ticks += 1
        while self._found and self._found[0].ticks >= _TICKS:
            self._drop(self._found.popleft())

    def close(self) -> None:
        """Let go of all."""
        while self._found:
            self._drop(self._found.popleft())

    def _drop(self, spare: Spare) -> None:
        self._bytes -= spare.bytes
        self._remove(spare.number)
        os.close(spare.fd)

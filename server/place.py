"""Which of a server's workers a process is, and the numbers of all of them together."""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .counters import Counters, Numbers
from .metrics import Metrics
from .receipt import Totals

CLIENT_IDS = 1 << 24
"""Client ids of one life of a worker; the next life begins with others."""

ATTEND_GAUGES = ("attend_resident_layers", "attend_resident_bytes", "attend_cold_layers")
TIER_GAUGES = ("tier_queued", "tier_queued_bytes", "tier_away")
GAUGES = frozenset({"clients", "listened", "monitors", "pid", *ATTEND_GAUGES, *TIER_GAUGES})
GAUGES_OF_USERS = "user:"
"""Numbers that say what is true of a worker now; all others are counted up."""


def _nobody(*message: Any) -> None:
    """There is no other worker."""


@dataclass(frozen=True)
class Place:
    """Which worker a process is; by default the only one.

    Attributes:
        number: From 0 on.
        workers: How many there are.
        lives: How many processes had this number before.
        run_id: Names this run of the server.
        started_at: When it began.
        counters: Where the workers share their numbers; None when there is one.
        tell: Sends a message to every other worker.
    """

    number: int = 0
    workers: int = 1
    lives: int = 0
    run_id: str = field(default_factory=lambda: secrets.token_hex(20))
    started_at: float = field(default_factory=time.time)
    counters: Counters | None = None
    tell: Callable[..., None] = _nobody

    def ids(self) -> Iterator[int]:
        """Numbers that grow, from 0 on if there is one worker, and that no other process gives."""
        return itertools.count(self.lives * CLIENT_IDS * self.workers + self.number, self.workers)

    def client_id(self, count: int) -> int:
        """The id of the count-th client of this process, which no other process gives."""
        return (self.lives * CLIENT_IDS + count - 1) * self.workers + self.number + 1


class Sums:
    """The numbers of this worker, shown to the others, and the sums over all.

    Those of other workers are as old as their last `flush`.

    Args:
        place: Which worker this is.
        gauges: What is true of this process now, such as how many clients it has.
        counts: Further numbers that only grow.

    Attributes:
        metrics: This worker's own, and those of earlier processes in its place.
        receipt: The same.
        before: The numbers of an earlier process in its place, when this one began.
        elsewhere: The numbers of the other workers, as of the last `flush`.
    """

    def __init__(
        self, place: Place, gauges: Callable[[], Numbers], counts: Callable[[], Numbers] = dict
    ) -> None:
        self._place = place
        self._gauges = gauges
        self._counts = counts
        self.before = before = place.counters.read(place.number) if place.counters is not None else {}
        self.metrics = Metrics.of(before)
        self.receipt = Totals.of(before)
        self.elsewhere: list[Numbers] = []
        self._elsewhere: Counter[str] = Counter()
        self.flush()

    def flush(self) -> None:
        """Show the others this worker's numbers, and look at theirs."""
        place = self._place
        if place.counters is not None:
            # What cannot be shown now is shown the next time; no command fails for it.
            with suppress(OSError):
                place.counters.write(place.number, self._own())
            others = (number for number in range(place.workers) if number != place.number)
            self.elsewhere = [place.counters.read(number) for number in others]
            self._elsewhere = _sum(self.elsewhere)

    def workers(self) -> list[Numbers]:
        """The numbers of every worker, in order."""
        self.flush()
        found = [*self.elsewhere]
        found.insert(self._place.number, self._own())
        return found

    def all_metrics(self) -> Metrics:
        """The sum of all workers' metrics."""
        return Metrics.of(_sum(self.workers()))

    def all_receipts(self) -> Totals:
        """The sum of all workers' receipts, since the last reset."""
        found = _sum(self.workers())
        if self._place.counters is not None:
            found.subtract(self._place.counters.read(self._place.workers))
        return Totals.of(found)

    def reset_receipts(self) -> None:
        """Count receipts from here on."""
        if self._place.counters is not None:
            self._place.counters.write(self._place.workers, Totals.of(_sum(self.workers())).numbers())
        else:
            self.receipt.clear()

    def gauge(self, name: str) -> int:
        """The sum of a gauge over all workers: here now, elsewhere as of the last `flush`."""
        return self._gauges()[name] + self.elsewhere_of(name)

    def total(self) -> Numbers:
        """Every number, summed over all workers."""
        return _sum(self.workers())

    def elsewhere_of(self, name: str) -> int:
        """The sum over the other workers, as of the last `flush`."""
        return self._elsewhere.get(name, 0)

    def _own(self) -> Numbers:
        return {**self.metrics.numbers(), **self.receipt.numbers(), **self._gauges(), **self._counts()}


def ended(numbers: Numbers) -> Numbers:
    """The numbers of a worker whose process has ended: what it has counted stays."""
    over = [name for name in numbers if name in GAUGES or name.startswith(GAUGES_OF_USERS)]
    return {**numbers, **dict.fromkeys(over, 0)}


def _sum(found: list[Numbers]) -> Counter[str]:
    total: Counter[str] = Counter()
    for numbers in found:
        total.update(numbers)
    return total

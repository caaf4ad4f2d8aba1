"""How long a client waits for a server."""

import time
from collections.abc import Callable

from .errors import TimedOut

Clock = Callable[[], float]


class Deadline:
    """A bound on the whole of an exchange, and on each silence within it.

    Large prefixes need seconds although all is well, so the whole cannot be bounded tightly; a server that
    hangs is recognised by its silence.
    """

    def __init__(self, total: float, silence: float, *, clock: Clock = time.monotonic) -> None:
        """Start the clock.

        Args:
            total: Seconds that the exchange may take.
            silence: Seconds that may pass without a byte moving.
            clock: Source of the time, in seconds.
        """
        self._clock = clock
        self._silence = silence
        self._total = total
        self._end = clock() + total

    def wait(self) -> float:
        """Seconds that the next wait may take, more than 0.

        Raises:
            TimedOut: The deadline has passed.
        """
        left = self.left
        if left <= 0:
            raise TimedOut(f"no result within {self._total:g} s")
        return min(left, self._silence)

    @property
    def left(self) -> float:
        """Seconds until the whole time is over; below 0 afterwards."""
        return self._end - self._clock()

    def within(self, total: float) -> "Deadline":
        """A deadline for a part of the exchange: as this one, but no later than `total` seconds from now."""
        return Deadline(min(total, self.left), min(total, self._silence), clock=self._clock)

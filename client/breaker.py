"""Remember that a server is down, so that not every call pays for finding out."""

import time

from .deadline import Clock


class Breaker:
    """Closed: ask the server. Open: do not, until the pause is over; then one call probes.

    Every failure in a row doubles the pause, up to the longest; one success closes the breaker.
    """

    def __init__(self, first: float = 1.0, longest: float = 60.0, *, clock: Clock = time.monotonic) -> None:
        """Start closed.

        Args:
            first: Seconds of the pause after the first failure.
            longest: Seconds that a pause never exceeds.
            clock: Source of the time, in seconds.
        """
        self._first = first
        self._longest = longest
        self._clock = clock
        self._pause = 0.0
        self._open_until = 0.0

    def allows(self) -> bool:
        """Whether the server may be asked now."""
        return self._pause == 0.0 or self._clock() >= self._open_until

    def failed(self) -> None:
        """Note that the server could not be used."""
        self._pause = min(self._pause * 2 or self._first, self._longest)
        self._open_until = self._clock() + self._pause

    def succeeded(self) -> None:
        """Note that the server answered."""
        self._pause = 0.0

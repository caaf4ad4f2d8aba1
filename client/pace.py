"""Whether rows come faster than the model computes them: measured, not assumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LEAST_BYTES = 1 << 20
"""Transfers of less say more about latency than about the link: they are neither measured nor declined."""
LEAST_TOKENS = 16
"""Likewise prefills of fewer tokens."""
WEIGHT = 0.3
"""Of a new measurement in its average."""
RUN_BYTES, STEP = 16 << 20, 256
"""Bytes of a run of rows, about, and what its tokens are a multiple of."""
PROBE = 8
"""After so many fetches declined in a row one is made, to see whether the link has become faster."""


@dataclass(slots=True)
class Pace:
    """Exponential averages of what the model and the link do in a second.

    Attributes:
        prefill: Tokens prefilled in a second; None before the first measurement.
        link: Bytes of rows restored in a second, likewise.
    """

    prefill: float | None = None
    link: float | None = None
    _declined: int = 0

    def prefilled(self, tokens: int, seconds: float) -> None:
        """Note a prefill."""
        if tokens >= LEAST_TOKENS and seconds > 0:
            self.prefill = _averaged(self.prefill, tokens / seconds)

    def fetched(self, nbytes: int, seconds: float) -> None:
        """Note a fetch."""
        if nbytes >= LEAST_BYTES and seconds > 0:
            self.link = _averaged(self.link, nbytes / seconds)

    def pays(self, tokens: int, nbytes: int) -> bool:
        """Whether so many tokens, in so many bytes, come sooner than they are prefilled, or nobody knows."""
        seconds = self._seconds(tokens, nbytes)
        return seconds is None or seconds[0] <= seconds[1]

    def objection(self, tokens: int, nbytes: int) -> str | None:
        """Why so many tokens, in so many bytes, had better be prefilled than fetched; None: fetch them."""
        seconds = self._seconds(tokens, nbytes)
        if seconds is None:
            return None
        fetch, prefill = seconds
        if fetch <= prefill or self._declined >= PROBE:
            self._declined = 0
            return None
        self._declined += 1
        return f"{tokens} tokens would take {fetch:.3g} s to fetch, {prefill:.3g} s to prefill"

    def _seconds(self, tokens: int, nbytes: int) -> tuple[float, float] | None:
        """What fetching takes, and what prefilling does; None: too little, or not measured."""
        if self.prefill is None or self.link is None or nbytes < LEAST_BYTES:
            return None
        return nbytes / self.link, tokens / self.prefill


class Watch:
    """A fetch under way, in runs of rows: whether the rest of it had better be prefilled.

    Args:
        pace: What prefilling has been measured to take.
        nbytes: Bytes of one token's rows.
        tokens: How many are to be fetched.
        clock: Source of the time, in seconds.
    """

    def __init__(self, pace: Pace, nbytes: int, tokens: int, clock: Callable[[], float]) -> None:
        self._pace = pace
        self._nbytes = nbytes
        self._tokens = tokens
        self._clock = clock
        self._came, self._at = 0, clock()

    @property
    def run(self) -> int:
        """Tokens of a run: its bytes tell how fast the link is, and at its end a chunk may begin."""
        return max(1, RUN_BYTES // self._nbytes // STEP) * STEP

    def stops(self, came: int, left: float) -> bool:
        """Whether what has come, so many tokens, is all that is to be waited for.

        Args:
            came: Tokens whose rows have come.
            left: Seconds until the fetch has to be over.
        """
        now = self._clock()
        seconds, tokens = now - self._at, came - self._came
        self._came, self._at = came, now
        rest = self._tokens - came
        if rest < LEAST_TOKENS or tokens * self._nbytes < LEAST_BYTES:
            return False
        fetch = rest * seconds / tokens
        return fetch > left or (self._pace.prefill is not None and fetch > rest / self._pace.prefill)


def _averaged(before: float | None, now: float) -> float:
    return now if before is None else before + WEIGHT * (now - before)

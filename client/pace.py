"""Whether rows come faster than the model computes them: measured, not assumed."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_BYTES = 1 << 20
"""Transfers of less say more about latency than about the link: they are neither measured nor declined."""
LEAST_TOKENS = 16
"""Likewise prefills of fewer tokens."""
WEIGHT = 0.3
"""Of a new measurement in its average."""
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

    def objection(self, tokens: int, nbytes: int) -> str | None:
        """Why so many tokens, in so many bytes, had better be prefilled than fetched; None: fetch them."""
        if self.prefill is None or self.link is None or nbytes < LEAST_BYTES:
            return None
        fetch, prefill = nbytes / self.link, tokens / self.prefill
        if fetch <= prefill or self._declined >= PROBE:
            self._declined = 0
            return None
        self._declined += 1
        return f"{tokens} tokens would take {fetch:.3g} s to fetch, {prefill:.3g} s to prefill"


def _averaged(before: float | None, now: float) -> float:
    return now if before is None else before + WEIGHT * (now - before)

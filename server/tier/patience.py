"""How long one read may use the tier: a deadline, or as long as computing takes if that is longer."""

from __future__ import annotations

from dataclasses import dataclass

from .interface import TierError

MILLION = 1_000_000


class Overdue(TierError):
    """By now the rows would have been computed."""

    reason = "overdue"


@dataclass(slots=True)
class Patience:
    """What is left of a read's time. All its questions share one deadline, until a record has come.

    Attributes:
        began: When the request asked, on the loop's clock.
        deadline: Seconds for a small question.
        prefill_us: How long computing takes, as the request says.
        saved: Seconds that computing takes, by the request or the record; 0 before there is a record.
    """

    began: float
    deadline: float
    prefill_us: int | None = None
    saved: float = 0.0

    @property
    def end(self) -> float:
        """When the read is over, whatever has come by then."""
        return self.began + max(self.deadline, self.saved)

    def question(self, now: float) -> float:
        """Seconds for a question that is asked now. Raises `Overdue`."""
        return min(self.left(now), self.deadline)

    def left(self, now: float) -> float:
        """Seconds until the end. Raises `Overdue`."""
        left = self.end - now
        if left <= 0:
            raise Overdue("no time is left to ask for more of it")
        return left

    def known(self, seconds: float) -> None:
        """There is a record; computing its rows takes so long."""
        self.saved = seconds

    def of_joiner(self, reading: Patience) -> float:
        """When a request that joins another's read stops waiting for it."""
        mine = (self.prefill_us or 0) / MILLION
        return self.began + max(self.deadline, mine or reading.saved)

"""Compute once: of several processes that miss the same prefix at a time one prefills, the others wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from .deadline import Clock, Deadline
from .lane import Lane
from .link import Work

T = TypeVar("T")
Progress = Callable[[int, int], None]

LEASE_SECONDS = 15.0
"""How long a claim lasts if its process hangs; it is renewed while chunks are prefilled."""
SLICE_SECONDS = 0.5
"""The longest wait of one exchange: a connection is not held for longer, nor taken for a silent server."""


class Attempt(Protocol):
    """Runs an exchange: its result, or what went wrong."""

    def __call__(self, work: Work[T]) -> tuple[T | None, Exception | None]:
        """Run it."""


class Turn:
    """One prefix, and whether it is our turn to compute it.

    Args:
        attempt: Runs exchanges.
        namespace: The prefix.
        longest: Seconds to wait for others, in all.
        silence: Seconds after which the server counts as hung: no wait comes near it.
        clock: Source of the time, in seconds.
    """

    def __init__(
        self, attempt: Attempt, namespace: str, longest: float, silence: float, clock: Clock
    ) -> None:
        self._attempt = attempt
        self._namespace = namespace
        self._longest = longest
        self._slice = min(SLICE_SECONDS, silence / 2)
        self._clock = clock
        self._renewed = 0.0
        self.ours = False
        """Whether the claim is ours, to be given back."""

    def wait(self) -> bool:
        """Until it is our turn, or needs none; whether the prefix has been published meanwhile.

        A server that cannot be asked makes nobody wait.
        """
        if not self._longest:
            return False
        end = self._clock() + self._longest
        while True:
            answer = self._claim()
            if answer != "HELD" or self._clock() >= end:
                self.ours = answer == "CLAIMED"
                return answer == "HIT"
            self._attempt(self._sleep)

    def renew(self, done: int, total: int) -> None:
        """Keep the claim while there is something to compute; called after each chunk."""
        if self.ours and done < total and self._clock() - self._renewed > LEASE_SECONDS / 3:
            self._claim()

    def give_back(self) -> None:
        """Let others go on."""
        self.hand_over()()

    def hand_over(self) -> Callable[[], None]:
        """Leave letting others go on to whoever calls what is returned; `give_back` does nothing then."""
        ours, self.ours = self.ours, False

        def give_back() -> None:
            if ours:
                self._attempt(lambda lane, deadline: _ask(lane, deadline, self._namespace, 0))

        return give_back

    def _claim(self) -> object:
        self._renewed = self._clock()
        milliseconds = round(LEASE_SECONDS * 1000)
        return self._attempt(lambda lane, deadline: _ask(lane, deadline, self._namespace, milliseconds))[0]

    def _sleep(self, lane: Lane, deadline: Deadline) -> object:
        lane.send(("KV.PREFIX.LOOKUP", self._namespace, "WAIT", round(self._slice * 1000)), deadline)
        return lane.receive(deadline)


def _ask(lane: Lane, deadline: Deadline, namespace: str, lease: int) -> object:
    lane.send(("KV.PREFIX.CLAIM", namespace, lease), deadline)
    return lane.receive(deadline)


def both(one: Progress, other: Progress | None) -> Progress:
    """A progress callback that calls two."""
    if other is None:
        return one

    def call(done: int, total: int) -> None:
        one(done, total)
        other(done, total)

    return call

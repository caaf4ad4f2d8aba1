"""Compute once: of several processes that miss the same prefix at a time one prefills, the others wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from .deadline import Clock, Deadline
from .lane import Lane
from .link import Work

T = TypeVar("T")
Progress = Callable[[int, int], None]

LEASE_SECONDS = 15.0
"""How long a claim lasts if its process hangs; it is renewed while chunks are prefilled."""
LEASE = round(LEASE_SECONDS * 1000)
CLAIMED, HELD, HIT = "CLAIMED", "HELD", "HIT"
MOMENT, MOST_MOMENTS = 20, 50
"""Milliseconds that another is given to claim one after the other what it claims, and how often."""
SLICE_SECONDS = 0.5
"""The longest wait of one exchange: a connection is not held for longer, nor taken for a silent server."""


class Attempt(Protocol):
    """Runs an exchange: its result, or what went wrong."""

    def __call__(self, work: Work[T]) -> tuple[T | None, Exception | None]:
        """Run it."""


class Turn:
    """A prefix, and whether it is our turn to compute it.

    Beside its own name a prefix has names for its beginnings, which others share that go on otherwise. Who
    computes a prefix claims them all, from the shortest on. Who finds the shortest one claimed looks how far
    the other goes along, and waits for that if it is at least half of what is to be computed; who waits
    claims nothing, so that nobody waits for another that waits.

    Args:
        attempt: Runs exchanges.
        names: Names of beginnings, from the shortest to the prefix's own, each with its new tokens.
        silence: Seconds after which the server counts as hung: no wait comes near it.
        clock: Source of the time, in seconds.
        until: When waiting for others has to end.
        pace: Tokens prefilled here in a second, if known: another's beginning is waited for no longer than
            twice the time that computing it would take.

    Attributes:
        hit: Whether the whole prefix turned out to be stored.
    """

    def __init__(
        self,
        attempt: Attempt,
        names: Sequence[tuple[str, int]],
        silence: float,
        clock: Clock,
        until: float,
        pace: float | None = None,
    ) -> None:
        self._attempt = attempt
        self._names = names
        self._slice = min(SLICE_SECONDS, silence / 2)
        self._clock = clock
        self._until = until
        self._pace = pace
        self.hit = False
        self._renewed = 0.0
        self._ours: list[str] = []

    def wait(self) -> bool:
        """Until it is our turn, or needs none; whether something of it may have been published meanwhile.

        A server that cannot be asked makes nobody wait.
        """
        if self._clock() >= self._until:
            return False
        self._renewed = self._clock()
        awaited = self._attempt(self._claim)[0]
        if self.hit or awaited is None:
            return self.hit
        name, tokens = awaited
        until = self._until
        if self._pace is not None and awaited != self._names[-1]:
            until = min(until, self._clock() + 2 * tokens / self._pace)
        while self._clock() < until:
            self._attempt(lambda lane, deadline: _sleep(lane, deadline, name, self._slice))
            if self._attempt(lambda lane, deadline: _look(lane, deadline, name))[0] != HELD:
                return True
        return False

    def renew(self, done: int, total: int) -> None:
        """Keep the claims while there is something to compute; called after each chunk."""
        if self._ours and done < total and self._clock() - self._renewed > LEASE_SECONDS / 3:
            self._renewed, names = self._clock(), list(self._ours)
            self._attempt(lambda lane, deadline: _ask_all(lane, deadline, names, LEASE))

    def give_back(self) -> None:
        """Let others go on."""
        self.hand_over()()

    def hand_over(self) -> Callable[[], None]:
        """Leave letting others go on to whoever calls what is returned; `give_back` does nothing then."""
        ours, self._ours = self._ours, []

        def give_back() -> None:
            if ours:
                self._attempt(lambda lane, deadline: _ask_all(lane, deadline, ours, 0))

        return give_back

    def _claim(self, lane: Lane, deadline: Deadline) -> tuple[str, int] | None:
        """Claim what can be claimed; or the name to wait for, and its tokens."""
        names = [name for name, _ in self._names]
        with _alone(lane, deadline, names):
            answers = _ask_all(lane, deadline, names, LEASE)
            shared = next((at for at, answer in enumerate(answers) if answer != HELD), len(answers))
            taken = [name for name, answer in zip(names, answers, strict=True) if answer == CLAIMED]
            self.hit = answers[-1] == HIT
            waits = not self.hit and bool(shared) and self._is_worth(shared)
            if waits or self.hit:
                _ask_all(lane, deadline, taken, 0)
        self._ours = [] if waits or self.hit else taken
        return self._names[shared - 1] if waits else None

    def _is_worth(self, shared: int) -> bool:
        return 2 * self._names[shared - 1][1] >= self._names[-1][1]


@contextmanager
def _alone(lane: Lane, deadline: Deadline, names: Sequence[str]) -> Iterator[None]:
    """While nobody else claims, one after the other, names that begin with the same one."""
    door = f"{names[0]}:door"
    if len(names) == 1:
        yield
        return
    for _ in range(MOST_MOMENTS):
        if _ask_all(lane, deadline, [door], MOMENT * MOST_MOMENTS) != [HELD]:
            break
        _sleep(lane, deadline, door, MOMENT / 1000)
    yield
    _ask_all(lane, deadline, [door], 0)


def _look(lane: Lane, deadline: Deadline, name: str) -> object:
    """What a claim would be answered; it is given back at once."""
    (answer,) = _ask_all(lane, deadline, [name], LEASE)
    if answer == CLAIMED:
        _ask_all(lane, deadline, [name], 0)
    return answer


def _sleep(lane: Lane, deadline: Deadline, name: str, seconds: float) -> object:
    lane.send(("KV.PREFIX.LOOKUP", name, "WAIT", round(seconds * 1000)), deadline)
    return lane.receive(deadline)


def _ask_all(lane: Lane, deadline: Deadline, names: Sequence[str], lease: int) -> list[object]:
    for name in names:
        lane.send(("KV.PREFIX.CLAIM", name, lease), deadline)
    return [lane.receive(deadline) for _ in names]


def both(one: Progress, other: Progress | None) -> Progress:
    """A progress callback that calls two."""
    if other is None:
        return one

    def call(done: int, total: int) -> None:
        one(done, total)
        other(done, total)

    return call

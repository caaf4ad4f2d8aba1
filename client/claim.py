"""Compute once: of several processes that miss the same prefix at a time one prefills, the others wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from .deadline import Clock, Deadline
from .lane import Lane
from .link import Work
from .pace import Pace

T = TypeVar("T")
Progress = Callable[[int, int], None]
Names = Sequence[tuple[str, int]]
"""Names of beginnings, from the shortest to the prefix's own, each with its new tokens."""

LEASE_SECONDS = 15.0
"""How long a claim lasts if its process hangs; it is renewed while chunks are prefilled."""
LEASE = round(LEASE_SECONDS * 1000)
CLAIMED, HELD, HIT = "CLAIMED", "HELD", "HIT"
MOMENT, MOST_MOMENTS = 20, 50
"""Milliseconds that another is given to claim one after the other what it claims, and how often."""
SLICE_SECONDS = 0.5
"""The longest wait of one exchange: a connection is not held for longer, nor taken for a silent server."""
PATIENCE = 2
"""Another, which may just have begun, is waited for so many times what computing would take here at most."""


class Attempt(Protocol):
    """Runs an exchange: its result, or what went wrong."""

    def __call__(self, work: Work[T]) -> tuple[T | None, Exception | None]:
        """Run it."""


class Claims:
    """The turns of one connection.

    A server knows by the connection who claims: of two turns that share one, both would be told that it is
    theirs. So it is noted here which of them has what, for as long as the server would, and asked within
    exchanges only, of which one runs at a time.

    Args:
        attempt: Runs exchanges.
        silence: Seconds after which the server counts as hung: no wait comes near it.
        clock: Source of the time, in seconds.
        pace: Tells what computing would take here.
    """

    def __init__(self, attempt: Attempt, silence: float, clock: Clock, pace: Pace) -> None:
        self.attempt = attempt
        self.slice = min(SLICE_SECONDS, silence / 2)
        self.clock = clock
        self.pace = pace
        self.interrupts = 0
        self._held: dict[str, tuple[Turn, float]] = {}

    def turn(self, names: Names, seconds: float) -> Turn:
        """A prefix that is to be computed, unless others do so, for whom so many seconds are waited."""
        return Turn(self, names, self.clock() + seconds, self.interrupts)

    def interrupt(self) -> None:
        """Have nobody wait any longer."""
        self.interrupts += 1

    def ask(self, turn: Turn, lane: Lane, deadline: Deadline, names: Sequence[str]) -> list[object]:
        """Claim names for a turn, or keep them: an answer each."""
        answers = _ask_all(lane, deadline, names, LEASE)
        for at, name in enumerate(names):
            if answers[at] == CLAIMED and self._is_of_another(turn, name):
                answers[at] = HELD
            elif answers[at] == CLAIMED:
                self._held[name] = turn, self.clock() + LEASE_SECONDS
        return answers

    def give_back(self, turn: Turn, lane: Lane, deadline: Deadline, names: Sequence[str]) -> None:
        """Let others claim what a turn had."""
        self.forget(turn, names)
        _ask_all(lane, deadline, [name for name in names if name not in self._held], 0)

    def forget(self, turn: Turn, names: Sequence[str]) -> None:
        """Note that a turn does not compute these any more."""
        for name in names:
            if self._held.get(name, (None,))[0] is turn:
                self._held.pop(name, None)

    def _is_of_another(self, turn: Turn, name: str) -> bool:
        holder, until = self._held.get(name, (turn, 0.0))
        return holder is not turn and self.clock() < until


class Turn:
    """A prefix, and whether it is our turn to compute it. Made by `Claims.turn`.

    Beside its own name a prefix has names for its beginnings, which others share that go on otherwise. Who
    computes a prefix claims them all, from the shortest on. Who finds the shortest one claimed looks how far
    the other goes along, and waits for that if it is at least half of what is to be computed; who waits
    claims nothing, so that nobody waits for another that waits.

    Args:
        claims: The turns of this connection.
        names: What may be claimed.
        until: When waiting for others has to end.
        interrupts: How often waits had been interrupted when this one began.

    Attributes:
        hit: Whether the whole prefix turned out to be stored.
        waits: Whether somebody else was found to compute it, or enough of it.
    """

    def __init__(self, claims: Claims, names: Names, until: float, interrupts: int) -> None:
        self._claims = claims
        self._names = names
        self._until = self._late = until
        self._interrupts = interrupts
        self.hit = self.waits = False
        self._renewed = 0.0
        self._awaited = ""
        self._ours: list[str] = []

    def again(self, names: Names) -> Turn:
        """The same for what is still missing after a wait, which ends when this one would have."""
        return Turn(self._claims, names, self._until, self._interrupts)

    def wait(self) -> bool:
        """Until it is our turn, or needs none; whether something of it may have been published meanwhile.

        A server that cannot be asked makes nobody wait.
        """
        self.claim()
        while self.waits and not self.late:
            self._claims.attempt(
                lambda lane, deadline: _sleep(lane, deadline, self._awaited, self._claims.slice)
            )
            if self.settled():
                return True
        return self.hit

    def claim(self) -> None:
        """Claim it, unless it is stored, or somebody else computes it, or enough of it."""
        self.waits = False
        if self.late:
            return
        self._renewed = self._claims.clock()
        awaited = self._claims.attempt(self._claim)[0]
        if awaited is None:
            return
        self.waits, (self._awaited, tokens) = True, awaited
        if self._claims.pace.prefill:
            patience = PATIENCE * tokens / self._claims.pace.prefill
            self._late = min(self._until, self._claims.clock() + patience)

    @property
    def ours(self) -> bool:
        """Whether something is claimed that has not been given back, or handed over."""
        return bool(self._ours)

    @property
    def late(self) -> bool:
        """Whether enough has been waited."""
        return self._claims.clock() >= self._late or self._claims.interrupts != self._interrupts

    def settled(self) -> bool:
        """Whether what is waited for is published, or nobody computes it any more, or the server fails."""
        return self._claims.attempt(self._look)[0] != HELD

    def renew(self, done: int, total: int) -> None:
        """Keep the claims while there is something to compute; called after each chunk."""
        if self._ours and done < total and self._claims.clock() - self._renewed > LEASE_SECONDS / 3:
            self._renewed, names = self._claims.clock(), list(self._ours)
            self._claims.attempt(lambda lane, deadline: self._claims.ask(self, lane, deadline, names))

    def give_back(self) -> None:
        """Let others go on."""
        self.hand_over()()

    def hand_over(self) -> Callable[[], None]:
        """Leave letting others go on to whoever calls what is returned; `give_back` does nothing then."""
        ours, self._ours = self._ours, []

        def give_back() -> None:
            if ours:
                self._claims.attempt(
                    lambda lane, deadline: self._claims.give_back(self, lane, deadline, ours)
                )
                self._claims.forget(self, ours)

        return give_back

    def _claim(self, lane: Lane, deadline: Deadline) -> tuple[str, int] | None:
        """Claim what can be claimed; or the name to wait for, and its tokens."""
        names = [name for name, _ in self._names]
        with _alone(lane, deadline, names):
            answers = self._claims.ask(self, lane, deadline, names)
            shared = next((at for at, answer in enumerate(answers) if answer != HELD), len(answers))
            taken = [name for name, answer in zip(names, answers, strict=True) if answer == CLAIMED]
            self.hit = answers[-1] == HIT
            waits = not self.hit and bool(shared) and self._is_worth(shared)
            if waits or self.hit:
                self._claims.give_back(self, lane, deadline, taken)
        self._ours = [] if waits or self.hit else taken
        return self._names[shared - 1] if waits else None

    def _is_worth(self, shared: int) -> bool:
        return 2 * self._names[shared - 1][1] >= self._names[-1][1]

    def _look(self, lane: Lane, deadline: Deadline) -> object:
        """What a claim of what is waited for would be answered; it is given back at once."""
        (answer,) = self._claims.ask(self, lane, deadline, [self._awaited])
        if answer == CLAIMED:
            self._claims.give_back(self, lane, deadline, [self._awaited])
        return answer


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

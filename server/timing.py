"""How long commands take: a histogram for each, a list of the slow ones, and spikes of latency."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from .arguments import Argument
from .monitor import SECRET
from .receiving import Receiver

if TYPE_CHECKING:
    from .clients import Client
    from .dispatch import Entry
    from .runs import Run

NS_A_MICROSECOND = 1000
NS_A_MILLISECOND = 1_000_000
NEVER = 1 << 62
BUCKETS = 41
ARGUMENTS_KEPT = 32
BYTES_KEPT = 128
SPIKES_KEPT = 160
REDACTED = b"(redacted)"


@dataclass(slots=True)
class Histogram:
    """Durations in powers of two: bucket i counts those below 2^i microseconds."""

    counts: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    total_ns: int = 0

    def add(self, ns: int) -> None:
        """One took so long."""
        self.total_ns += ns
        self.counts[min((ns // NS_A_MICROSECOND).bit_length(), BUCKETS - 1)] += 1

    def add_many(self, count: int, ns: int) -> None:
        """So many took so long together; each counts as the average."""
        self.total_ns += ns
        self.counts[min((ns // count // NS_A_MICROSECOND).bit_length(), BUCKETS - 1)] += count

    @property
    def calls(self) -> int:
        """How many there were."""
        return sum(self.counts)

    @property
    def total_us(self) -> int:
        """How long they took together, microseconds."""
        return self.total_ns // NS_A_MICROSECOND

    def cumulative(self) -> dict[int, int]:
        """Microseconds -> how many took less; only where that grows."""
        found, sum_of_them = {}, 0
        for place, count in enumerate(self.counts):
            sum_of_them += count
            if count:
                found[1 << place] = sum_of_them
        return found

    def percentile(self, part: float) -> int:
        """Within how many microseconds this part of them was, to the next power of two; 0 for none."""
        wanted = part * self.calls
        return next((bound for bound, count in self.cumulative().items() if count >= wanted), 0)

    def numbers(self, name: str) -> dict[str, int]:
        """Everything in it, each under a name that begins with this one."""
        found = {f"{name}:{place}": count for place, count in enumerate(self.counts) if count}
        return found | {f"{name}:ns": self.total_ns} if found else {}

    def add_numbers(self, numbers: Mapping[str, int], name: str) -> None:
        """Add what another one has given as its numbers."""
        self.total_ns += numbers.get(f"{name}:ns", 0)
        for place in range(BUCKETS):
            self.counts[place] += numbers.get(f"{name}:{place}", 0)

    def reset(self) -> None:
        """Begin anew."""
        self.counts, self.total_ns = [0] * BUCKETS, 0


class SlowCommand(NamedTuple):
    """A command that took long; `at` is seconds since the epoch."""

    id: int
    at: float
    microseconds: int
    words: Sequence[bytes]
    address: str
    name: bytes


class Timing:
    """What took long in this process.

    Attributes:
        notable_ns: What takes less is of no further interest.
    """

    def __init__(self, slower_than_us: int, kept: int, spike_ms: int, ids: Iterator[int]) -> None:
        self._ids = ids
        self.slow: deque[SlowCommand] = deque(maxlen=kept)
        self.spikes: dict[str, deque[tuple[int, int]]] = {}
        """Event -> (time in seconds, milliseconds), oldest first; one a second at most."""
        self.worst: dict[str, int] = {}
        self.notable_ns = NEVER
        self.configure(slower_than_us, kept, spike_ms)

    def configure(self, slower_than_us: int, kept: int, spike_ms: int) -> None:
        """Other thresholds.

        Args:
            slower_than_us: Commands that take as long are listed; negative: none.
            kept: How many are kept.
            spike_ms: What takes as long is a spike; 0: nothing is.
        """
        self._slow_ns = slower_than_us * NS_A_MICROSECOND if slower_than_us >= 0 else NEVER
        self._spike_ns = spike_ms * NS_A_MILLISECOND if spike_ms > 0 else NEVER
        self.notable_ns = min(self._slow_ns, self._spike_ns)
        self._summed_ns = min(self.notable_ns, NS_A_MILLISECOND)
        if kept != self.slow.maxlen:
            self.slow = deque(list(self.slow)[:kept], maxlen=kept)

    def took(self, client: Client, runs: Sequence[Run], times: Sequence[int]) -> None:
        """Commands of a client were run one after the other.

        As long as they took less than a millisecond altogether, and none can be notable, a run is counted as
        one sum: that is what makes a pipeline of small commands cheap.

        Args:
            client: Whose they are.
            runs: The commands.
            times: On the clock, nanoseconds: when the first was begun, and when each of them was done.
        """
        if times[-1] - times[0] < self._summed_ns:
            at = 0
            for entry, lines in runs:
                begun, at = at, at + len(lines)
                entry.times.add_many(at - begun, times[at] - times[begun])
            return
        ran = ((entry, args) for entry, lines in runs for args in lines)
        for (entry, args), (begun, done) in zip(ran, pairwise(times), strict=True):
            self.one_took(client, entry, args, done - begun)

    def several_took(
        self, client: Client, entry: Entry, lines: Sequence[Sequence[Argument]], ns: int
    ) -> None:
        """Lines of a command took so long in one step; if that is notable, it is the first one's time."""
        if ns < self._summed_ns:
            entry.times.add_many(len(lines), ns)
            return
        for line in lines:
            self.one_took(client, entry, line, ns)
            ns = 0

    def one_took(self, client: Client, entry: Entry, args: Sequence[Argument], ns: int) -> None:
        """A command took so long."""
        entry.times.add(ns)
        if ns >= self.notable_ns:
            self.note(client, entry, args, ns)

    def note(self, client: Client, entry: Entry, args: Sequence[Argument], ns: int) -> None:
        """A command took at least `notable_ns`."""
        now = client.service.clock()
        if ns >= self._slow_ns:
            words = _words(entry, args)
            slow = SlowCommand(
                next(self._ids), now, ns // NS_A_MICROSECOND, words, client.address, client.name
            )
            self.slow.appendleft(slow)
        self.spike("fast-command" if "fast" in entry.spec.flags else "command", ns, now)

    def spike(self, event: str, ns: int, now: float) -> None:
        """Something took so long; it is kept if it is a spike."""
        if ns < self._spike_ns:
            return
        taken = ns // NS_A_MILLISECOND
        samples = self.spikes.setdefault(event, deque(maxlen=SPIKES_KEPT))
        if samples and samples[-1][0] == int(now):
            taken = max(taken, samples.pop()[1])
        samples.append((int(now), taken))
        self.worst[event] = max(taken, self.worst.get(event, 0))

    def forget_spikes(self, events: Sequence[str]) -> list[str]:
        """Begin anew for these events, or for all; those that had spikes."""
        gone = [event for event in events or list(self.spikes) if self.spikes.pop(event, None)]
        for event in gone:
            del self.worst[event]
        return gone


def _words(entry: Entry, args: Sequence[Argument]) -> list[bytes]:
    """A command line as it is kept: short, and without passwords."""
    if entry.spec.name in SECRET:
        names = len(entry.spec.words)
        return [*(bytes(word) for word in args[:names]), *[REDACTED] * (len(args) - names)][:ARGUMENTS_KEPT]  # type: ignore[arg-type]
    if len(args) <= ARGUMENTS_KEPT:
        return [_word(argument) for argument in args]
    left = len(args) - ARGUMENTS_KEPT + 1
    return [*map(_word, args[: ARGUMENTS_KEPT - 1]), b"... (%d more arguments)" % left]


def _word(argument: Argument) -> bytes:
    if isinstance(argument, Receiver):
        return b"(%d bytes)" % argument.length
    more = len(argument) - BYTES_KEPT
    head = bytes(argument[:BYTES_KEPT])
    return head if more <= 0 else head + b"... (%d more bytes)" % more

"""Rows of a prefix as they come over connections: one, or several at once for a large prefix.

One connection is one thread here that receives, cuts rows into heads, and is the first to touch the memory
they go to; it does not use up a fast link. Several bring some layers each, and touch memory at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

from . import requests
from .deadline import Deadline
from .errors import BadReply, NotStored, ServerRefused
from .lane import Lane
from .pace import Watch
from .requests import Name
from .route import MOST_CONNECTIONS, Route
from .shape import runs

BYTES_A_CONNECTION = 8 << 20
"""A connection that brings fewer does not pay."""


class Receiver(Protocol):
    """Where the rows of one layer and side go."""

    def place(self, start: int, end: int) -> memoryview:
        """Writable bytes for rows `start` to `end - 1` in their stored format, valid until the next call."""

    def landed(self, start: int, end: int) -> None:
        """Say that those rows have been written there; other receivers may be at work meanwhile."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is fetched.

    Attributes:
        namespace: The prefix.
        row_bytes: Bytes of a row of each layer and side: k0 v0 k1 v1 and so on.
        at: The generation that the rows must be of; None: whatever is stored, over one connection, since
            several might bring rows of different ones.
    """

    namespace: Name
    row_bytes: tuple[int, ...]
    at: int | None = None


class _Shares:
    """Brings rows over a connection, and others beside it where that pays.

    Attributes:
        connections: How many they are.
    """

    def __init__(self, lane: Lane, deadline: Deadline, wanted: Wanted, count: int) -> None:
        """Open what is needed, `count` connections at most."""
        self._lanes = [lane, *lane.beside(count - 1, deadline)]
        self._deadline = deadline
        self._wanted = wanted
        self.connections = len(self._lanes)
        self._shares = list(pairwise(_cuts(wanted.row_bytes, self.connections)))
        self._pool = ThreadPoolExecutor(MOST_CONNECTIONS, "pionkv rows") if self.connections > 1 else None
        self._asked: tuple[int, int] | None = None

    def __enter__(self) -> _Shares:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def ask(self, start: int, end: int) -> None:
        """Have the server begin with rows `start` to `end - 1`, which are fetched next."""
        if self._asked != (start, end):
            self._asked = start, end
            for lane, share in zip(self._lanes, self._shares, strict=True):
                layers = share if self.connections > 1 else None
                wanted = self._wanted
                question = requests.fetch_all(wanted.namespace, start, end, "RAW", layers, wanted.at)
                lane.send(question, self._deadline)

    def fetch(self, receivers: Sequence[Receiver], start: int, end: int) -> None:
        """Fetch rows `start` to `end - 1` of everything; see `fetch`."""
        (ours, share), *rest = zip(self._lanes, self._shares, strict=True)
        others: list[Future[None]] = []
        try:
            self.ask(start, end)
            if self._pool is not None:
                others += [
                    self._pool.submit(self._bring, lane, each, receivers, start, end) for lane, each in rest
                ]
            self._bring(ours, share, receivers, start, end)
            for each in others:
                each.result()
        except BaseException:
            # What they are still about to receive is of no use, and nobody is to wait for it.
            for lane, _ in rest:
                lane.interrupt()
            wait(others)
            for lane, _ in rest:
                lane.close()
            raise

    def _bring(
        self, lane: Lane, share: tuple[int, int], receivers: Sequence[Receiver], start: int, end: int
    ) -> None:
        first, last = share
        arriving = receivers[2 * first : 2 * last]
        widths = self._wanted.row_bytes[2 * first : 2 * last]

        def place(index: int, length: int) -> memoryview:
            if index >= len(arriving):
                raise BadReply(f"more than {len(arriving)} runs of rows")
            if index:
                arriving[index - 1].landed(start, end)
            if length != (end - start) * widths[index]:
                raise BadReply(f"{length} bytes for {end - start} rows of {widths[index]}")
            return arriving[index].place(start, end)

        try:
            count = lane.receive_rows(place, self._deadline)
        except ServerRefused as error:
            if error.code == "STALE":
                raise NotStored("replaced a moment ago") from error
            raise
        if count != len(arriving):
            raise BadReply(f"{count} runs of rows where {len(arriving)} were expected")
        arriving[-1].landed(start, end)


class Fetch:
    """Rows of everything, in runs.

    Args:
        lane: A connection; those that are opened beside it are kept with it.
        deadline: Bounds all of it.
        wanted: What is fetched.
        tokens: How many rows.
        route: Says how many connections there may be, and is told how many there were.
        watch: Says when the rest had better be prefilled. None: all of it is fetched.
    """

    def __init__(
        self, lane: Lane, deadline: Deadline, wanted: Wanted, tokens: int, route: Route, watch: Watch | None
    ) -> None:
        layers = len(wanted.row_bytes) // 2
        pays = tokens * sum(wanted.row_bytes) // BYTES_A_CONNECTION
        count = 1 if wanted.at is None else max(1, min(route.connections, layers, pays))
        self._shares = _Shares(lane, deadline, wanted, count)
        self._deadline = deadline
        self._tokens = tokens
        self._route = route
        self._watch = watch
        most = None if watch is None else watch.run * self._shares.connections
        self._runs = tuple(runs(0, tokens, max(wanted.row_bytes), most))

    def ask(self) -> None:
        """Ask for the first run, where one connection brings it: other replies may be received before it.

        Raises:
            Unavailable: The connection broke or stalled.
        """
        if self._shares.connections == 1:
            self._shares.ask(*self._runs[0])

    def into(self, receivers: Sequence[Receiver]) -> int:
        """Receive the rows; how many came.

        Args:
            receivers: Where they go: k0 v0 k1 v1 and so on.

        Raises:
            NotStored: They are of another generation.
            BadReply: Something else came.
            StoreError: The server refused, or is not available.
        """
        self._route.used = self._shares.connections
        watch, end = self._watch, 0
        with self._shares as shares:
            for start, end in self._runs:
                shares.fetch(receivers, start, end)
                if watch is not None and end < self._tokens and watch.stops(end, self._deadline.left):
                    break
        return end


def _cuts(row_bytes: Sequence[int], shares: int) -> list[int]:
    """Where to cut the layers so that shares have about as many bytes; each has a layer at least."""
    layers = [keys + values for keys, values in zip(row_bytes[::2], row_bytes[1::2], strict=True)]
    ends, total = list(accumulate(layers)), sum(layers)
    cuts = [0]
    for share in range(1, shares):
        wanted = total * share / shares
        nearest = min(range(len(layers)), key=lambda layer: abs(ends[layer] - wanted)) + 1
        cuts.append(max(cuts[-1] + 1, min(nearest, len(layers) - (shares - share))))
    return [*cuts, len(layers)]

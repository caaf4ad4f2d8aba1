"""One connection: opened when needed, replaced when it broke, left alone while the server is down."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

from .breaker import Breaker
from .deadline import Clock, Deadline
from .endpoint import Endpoint
from .errors import BadReply, ConnectionLost, NotAsked, NotStored, ServerRefused, Unavailable
from .lane import Lane, Traffic
from .local import WORTH_BYTES, unix_twin

T = TypeVar("T")
Work = Callable[[Lane, Deadline], T]

_links: weakref.WeakSet[Link] = weakref.WeakSet()


class Link:
    """Runs exchanges with a server, each within a deadline. Thread-safe: one exchange at a time.

    Attributes:
        endpoint: Where the server is.
        traffic: Bytes moved so far.
        breaker: Decides whether a server that failed is asked again; None asks always.
        clock: Source of the time, in seconds.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        total: float,
        silence: float,
        connect: float,
        breaker: Breaker | None = None,
        prefer_unix: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            endpoint: Where the server is.
            total: Seconds that one exchange may take.
            silence: Seconds without a byte after which the server counts as hung.
            connect: Seconds until a new connection must have answered.
            breaker: Decides whether a server that failed is asked again; None asks always.
            prefer_unix: Whether to change to the server's Unix socket once many bytes have moved.
            clock: Source of the time, in seconds.

        Raises:
            ValueError: A time is not above 0.
        """
        if min(total, silence, connect) <= 0:
            raise ValueError(f"deadline {total}, silence {silence}, connect_timeout {connect}: each above 0")
        self.endpoint = endpoint
        self.traffic = Traffic()
        self._total = total
        self._silence = silence
        self._connect = connect
        self.clock = clock
        self.breaker = breaker
        self._lane_type = Lane
        self._lock = threading.Lock()
        self._lane: Lane | None = None
        self._interrupted = False
        self._may_change = prefer_unix and endpoint.may_have_unix_twin
        self._given = endpoint
        _links.add(self)

    def twin(self, endpoint: Endpoint, breaker: Breaker | None, lane_type: type[Lane] = Lane) -> Link:
        """A link of its own with the same bounds, for exchanges in which the server computes.

        Such a server is silent until it is done: a silence counts as long as the whole may.

        Args:
            endpoint: Where the server is.
            breaker: Decides whether a server that failed is asked again; None asks always.
            lane_type: What the connections are.
        """
        total, connect = self._total, self._connect
        link = Link(endpoint, total=total, silence=total, connect=connect, breaker=breaker, clock=self.clock)
        link._lane_type = lane_type
        return link

    def exchange(self, work: Work[T]) -> T:
        """Run `work` on a connection.

        A connection that was kept from an earlier exchange may have ended since, as when the server was
        restarted. If it turns out so, the work is run once more on a new one: it must bear being repeated.

        Raises:
            Unavailable: The server cannot be used now.
            BadReply: The server answered nonsense.
            ServerRefused: The server answered `work` with an error.
        """
        with self._lock:
            self._interrupted = False
            if self.breaker is not None and not self.breaker.allows():
                raise NotAsked(f"{self.endpoint} failed a moment ago")
            try:
                result = self._attempts(work)
            except (Unavailable, BadReply):
                if not self._interrupted:
                    self._note(failed=True)
                raise
            except (ServerRefused, NotStored):
                self._note(failed=False)
                raise
            self._note(failed=False)
            self._change_to_unix()
            return result

    def interrupt(self) -> None:
        """End the exchange that another thread is in, if any, as if the connection had been lost."""
        self._interrupted = True
        lane = self._lane
        if lane is not None:
            lane.interrupt()

    def close(self) -> None:
        """Close the connection; a later exchange opens another."""
        with self._lock:
            self._drop()

    def _change_to_unix(self) -> None:
        """Use the server's Unix socket from now on, if it has one; asked once."""
        lane = self._lane
        if not self._may_change or lane is None or self.traffic.received + self.traffic.sent < WORTH_BYTES:
            return
        self._may_change = False
        deadline = Deadline(self._connect, self._connect, clock=self.clock)
        try:
            found = unix_twin(lane, self.endpoint, deadline, self.traffic)
        except (Unavailable, BadReply):
            self._drop()
            return
        if found is not None:
            lane.close()
            self.endpoint, self._lane = found

    def _note(self, *, failed: bool) -> None:
        if self.breaker is None:
            return
        if failed:
            self.breaker.failed()
        else:
            self.breaker.succeeded()

    def _attempts(self, work: Work[T]) -> T:
        deadline = Deadline(self._total, self._silence, clock=self.clock)
        kept = self._lane
        if kept is not None:
            try:
                return self._run(work, kept, deadline)
            except ConnectionLost:
                if self._interrupted:
                    raise
        return self._run(work, self._open(deadline), deadline)

    def _run(self, work: Work[T], lane: Lane, deadline: Deadline) -> T:
        try:
            result = work(lane, deadline)
        except (ServerRefused, NotStored):
            # Answers like any other, unless replies are outstanding: those would be taken for the next ones.
            if lane.pending:
                self._drop()
            raise
        except BaseException:
            self._drop()
            raise
        return result

    def _open(self, deadline: Deadline) -> Lane:
        try:
            self._lane = self._connected(deadline)
        except ServerRefused as error:
            raise Unavailable(f"{self.endpoint} refuses this client: {error}") from error
        return self._lane

    def _connected(self, deadline: Deadline) -> Lane:
        def connect() -> Lane:
            soon = deadline.within(self._connect)
            return self._lane_type.open(self.endpoint, soon, self.traffic, ahead=True)

        if self.endpoint is self._given:
            return connect()
        try:
            return connect()
        except Unavailable:
            # The server that had the Unix socket is gone; the one at the address given may be another.
            self.endpoint, self._may_change = self._given, True
            return connect()

    def _drop(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()


def _leave_to_parent() -> None:
    """In a forked child: the parent still talks on the connections, and its threads hold the locks."""
    for link in list(_links):
        link._lane, link._lock = None, threading.Lock()


os.register_at_fork(after_in_child=_leave_to_parent)

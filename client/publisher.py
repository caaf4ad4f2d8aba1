"""Which prefixes are published, and when: at once, or from a copy beside the generation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .admission import Admission
from .background import Store, StoreQueue
from .claim import Turn
from .deadline import Clock, Deadline
from .errors import NotStored
from .lane import Lane, Traffic
from .link import Link, Work
from .requests import Found, tokens_of
from .reuse import name_of
from .stats import Stats, attempt, reason

if TYPE_CHECKING:
    from .publish import Filled, Source

REMEMBERED = 16
"""Prefixes that are known to be stored, or to be soon: what follows them is copied without them."""


class Publisher:
    """Publishes what a prompt cache had to prefill.

    Args:
        link: The connection.
        stats: Where it is counted.
        admission: Which misses are worth it.
        queue: What waits; None publishes at once.
        publish_after: A prefix without a name is published if at least so many of its tokens are new.
        deadline: Seconds that the end waits for what waits.
        clock: Source of the time, in seconds.

    Attributes:
        admission: As given.
    """

    def __init__(
        self,
        link: Link,
        stats: Stats,
        admission: Admission,
        queue: StoreQueue | None,
        *,
        publish_after: int,
        deadline: float,
        clock: Clock,
    ) -> None:
        self.admission = admission
        self._link = link
        self._stats = stats
        self._queue = queue
        self._publish_after = publish_after
        self._deadline = deadline
        self._clock = clock
        self._stored: deque[list[int]] = deque(maxlen=REMEMBERED)

    @property
    def waiting(self) -> int:
        """Publications that wait, or run."""
        return 0 if self._queue is None else len(self._queue)

    @property
    def traffic(self) -> Traffic:
        """Bytes moved beside those of the prompt cache's own connection."""
        return Traffic() if self._queue is None else self._link.traffic

    def remember(self, ids: list[int]) -> None:
        """Note that these tokens are stored."""
        self._stored.append(ids)

    def known(self, ids: list[int]) -> int:
        """How many of these tokens are stored, or will be: nothing of them has to be copied."""
        if self._queue is None:
            return 0
        return max((len(each) for each in list(self._stored) if ids[: len(each)] == each), default=0)

    def wait_for(self, ids: Sequence[int]) -> None:
        """Until what waits of these tokens is published, within the deadline."""
        if self._queue is not None:
            self._queue.wait_for(ids, self._deadline)

    def flush(self, timeout: float | None) -> bool:
        """Until nothing waits; whether it came to that."""
        return self._queue is None or self._queue.flush(timeout)

    def close(self) -> None:
        """Publish what waits, within the deadline; give up and count the rest."""
        if self._queue is None:
            return
        lost = self._queue.close(self._deadline)
        if lost:
            self._skip(f"{lost} stores still waited when the cache was closed", lost)
        if not self.waiting:
            self._link.close()

    def publish_tokens(
        self,
        model: str,
        live: Filled,
        ids: list[int],
        known: int,
        parent: Work[Found | None],
        prefill_ms: float,
        turn: Turn | None = None,
    ) -> bool:
        """Publish a prefix without a name, if it is worth it.

        Args:
            model: The model's digest.
            live: Caches that hold the tokens.
            ids: The tokens.
            known: How many of them are stored, or will be when this is published.
            parent: Finds what is stored of them then.
            prefill_ms: What it takes to compute them.
            turn: Ends when it is published.

        Returns:
            Whether it is stored, or waits to be.
        """
        from .publish import publish_tokens

        if known == len(ids):
            return True
        if len(ids) - known < self._publish_after:
            self._stats.last_unpublished = self._few(len(ids) - known, ids)
            return False
        namespace, milliseconds = name_of(model, ids), round(prefill_ms)

        def store(source: Source) -> Work[int | None]:
            def work(lane: Lane, deadline: Deadline) -> int | None:
                found = parent(lane, deadline)
                new = len(ids) - tokens_of(found)
                if 0 < new < self._publish_after:
                    raise NotStored(self._few(new, ids))
                if not new:
                    return None
                return publish_tokens(
                    lane, deadline, namespace, live.shape, source, ids, milliseconds, model, found
                )

            return work

        return self.publish(namespace, ids, live, known, store, turn)

    def publish(
        self,
        namespace: str,
        ids: list[int],
        live: Filled,
        known: int,
        store: Callable[[Source], Work[Any]],
        turn: Turn | None,
    ) -> bool:
        """Publish, or have it done soon, unless the prefix was not missed often enough or too much waits.

        Args:
            namespace: Its name.
            ids: Its tokens.
            live: Caches that hold them.
            known: How many of its rows need not be sent.
            store: Makes the exchange.
            turn: Ends when it is published.
        """
        if not self.admission.admits(namespace):
            self._stats.add(admission_skips=1)
            return False
        if self._queue is None:
            return self._store(namespace, store(live))
        refusal = self._queue.refusal(live.row_bytes(known))
        if refusal is None:
            refusal = self._put(self._queue, namespace, ids, live, known, store, turn)
        if refusal is not None:
            self._skip(refusal)
            return False
        return True

    def _put(
        self,
        queue: StoreQueue,
        namespace: str,
        ids: list[int],
        live: Filled,
        known: int,
        store: Callable[[Source], Work[Any]],
        turn: Turn | None,
    ) -> str | None:
        snapshot = live.snapshot(known)
        work = store(snapshot)
        done = _nothing if turn is None else turn.hand_over()
        self._stored.append(ids)
        refusal = queue.put(Store(ids, snapshot.nbytes, lambda: self._store(namespace, work), done))
        if refusal is not None:
            self._stored.clear()
            done()
        return refusal

    def _store(self, namespace: str, work: Work[Any]) -> bool:
        begin = self._clock()
        done, failure = attempt(self._link, self._stats, work)
        self._stats.add(store_ms_total=(self._clock() - begin) * 1000, stores=done is not None)
        if failure is None:
            self.admission.forget(namespace)
            return True
        self._stats.last_unpublished = reason(failure)
        # It may be that something of it, or before it, is gone.
        self._stored.clear()
        return False

    def _skip(self, why: str, count: int = 1) -> None:
        self._stats.add(stores_skipped=count)
        self._stats.last_unpublished = why

    def _few(self, new: int, ids: list[int]) -> str:
        return f"only {new} of {len(ids)} tokens were new, publish_after is {self._publish_after}"


def _nothing() -> None:
    """There is nobody to let go on."""

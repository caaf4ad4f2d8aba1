"""What the prompt caches of every framework do alike: find, restore, compute once, publish, count."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from .admission import Admission
from .background import StoreQueue
from .breaker import Breaker
from .claim import Claims, Progress, Turn, both
from .deadline import Clock, Deadline
from .endpoint import Endpoint
from .errors import NotStored, UnsupportedModel
from .identity import token_ids as token_ids_of
from .lane import Lane, Traffic
from .link import Link, Work
from .pace import Pace
from .publisher import Publisher
from .requests import Found, tokens_of
from .reuse import Declined, find, names_of
from .route import Route
from .stats import Stats, attempt, reason

if TYPE_CHECKING:
    from .publish import Filled
    from .shape import Shape

C = TypeVar("C")
"""The caches of a model, as its framework has them."""
T = TypeVar("T")


class PrefixCache(ABC, Generic[C]):
    """A prompt cache that is kept in a store, for the caches of some framework. Thread-safe.

    Args:
        endpoint: Where the server is.
        route: How rows come.
        prefer_unix: Whether to change to the server's Unix socket once many bytes have moved.
        admission_threshold: A prefix is published at its so-many-th miss in this process.
        publish_after: A prefix is published when at least so many of its tokens are new.
        background: Publish beside the generation, from a copy.
        always_fetch: Restore what is stored even where prefilling it has been measured to be faster.
        wait_for_others: Seconds to wait, at most, for another process that computes the same prefix.
        waiting_bytes: Bytes that what waits to be published may take.
        deadline: Seconds that a restore, or a publication, may take in all.
        silence: Seconds without a byte moving after which the server counts as hung.
        connect_timeout: Seconds within which a new connection must have answered.
        clock: Source of the time, in seconds.
    """

    shape: Shape | None
    """How the model's caches look and are stored; None when they are not."""

    def __init__(
        self,
        endpoint: Endpoint,
        route: Route,
        *,
        prefer_unix: bool,
        admission_threshold: int,
        publish_after: int,
        background: bool,
        always_fetch: bool,
        wait_for_others: float,
        waiting_bytes: int,
        deadline: float,
        silence: float,
        connect_timeout: float,
        clock: Clock,
    ) -> None:
        breaker = Breaker(clock=clock)

        def link(*, breaker: Breaker = breaker, prefer_unix: bool = prefer_unix) -> Link:
            bounds = {"total": deadline, "silence": silence, "connect": connect_timeout}
            return Link(endpoint, **bounds, breaker=breaker, prefer_unix=prefer_unix, clock=clock)

        self._clock = clock
        self._stats = Stats()
        self._pace = Pace()
        self._route = route
        self._link = link()
        # Claims end with their connection: it is kept through whatever happens to that of the rows. A server
        # that takes no second connection serves rows over the first none the less.
        self._claims_link = link(breaker=Breaker(clock=clock), prefer_unix=False)
        self._claims = Claims(self._claiming, silence, clock, self._pace)
        # A publication must not hold up a restore.
        self._publisher = Publisher(
            link() if background else self._link,
            self._stats,
            Admission(admission_threshold),
            StoreQueue(waiting_bytes, exit_seconds=deadline) if background else None,
            publish_after=publish_after,
            deadline=deadline,
            clock=clock,
        )
        self._publish_after = publish_after
        self._always_fetch = always_fetch
        # A prefix that is not going to be published makes nobody wait for it.
        self._wait = wait_for_others if admission_threshold == 1 else 0.0

    # What a framework says

    @property
    @abstractmethod
    def model_digest(self) -> str:
        """What stands for model, tokenizer and formats in the store."""

    @abstractmethod
    def _fetch(
        self, lane: Lane, deadline: Deadline, shape: Shape, ids: list[int], pace: Pace | None, beyond: int
    ) -> tuple[Found, C]:
        """What is stored of the tokens, and caches that hold it. Raises `StoreError`."""

    @abstractmethod
    def _held(self, shape: Shape, caches: C, known: int) -> int:
        """How many tokens fetched caches hold, of so many that are stored."""

    @abstractmethod
    def _filled(self, shape: Shape, caches: C, tokens: int) -> Filled:
        """The first rows of caches, as they are published. Raises `UnsupportedModel`."""

    @abstractmethod
    def _compute(self, ids: list[int], progress: Progress | None, caches: C | None, done: int) -> C:
        """Have the model compute the tokens after the first `done`, which the caches hold."""

    # What is done

    def restore(self, token_ids: Sequence[int], *, beyond: int = 0) -> tuple[C | None, int]:
        """The longest stored beginning of some tokens; nothing is prefilled, and nobody is waited for.

        For loops that prefill themselves: give `prefilled` what that took, and `keep` what came of it.

        Args:
            token_ids: The tokens.
            beyond: More than so many must be stored, else nothing is restored.

        Returns:
            Caches as of `get_or_prefill`, and how many of the tokens they hold; None and 0 when nothing is
            restored, and `stats` says why.
        """
        ids, shape = token_ids_of(token_ids), self.shape
        if shape is None or not ids:
            return None, 0
        found, caches, _ = self._longest(shape, ids, beyond)
        known = tokens_of(found)
        self._publisher.remember(ids[:known])
        if caches is None:
            return None, 0
        known = self._held(shape, caches, known)
        self._stats.add(tokens_restored=known)
        return caches, known

    def claim(self, token_ids: Sequence[int], *, beyond: int = 0, after: Turn | None = None) -> Turn | None:
        """Claim what is missing of some tokens, unless somebody else computes it; nobody is waited for.

        For loops that prefill themselves: while `Turn.waits`, what is missing may soon be had; else it is
        this loop's to compute, and `keep` takes the turn.

        Args:
            token_ids: The tokens.
            beyond: So many of them need no computing, whatever is stored.
            after: The turn of an earlier call that has waited: this one waits no longer than it may.

        Returns:
            The turn; None where too little is missing to be published, or nothing is to be waited for.
        """
        ids, shape = token_ids_of(token_ids), self.shape
        if shape is None or not self._wait or len(ids) - beyond < self._publish_after:
            return None
        model, whole = self.model_digest, shape.whole
        found, failure = self.exchange(
            lambda lane, deadline: (find(lane, deadline, model, ids, whole=whole),)
        )
        known = max(beyond, tokens_of(found[0] if found else None))
        if failure is not None or not self._is_worth(shape, len(ids) - known):
            return None
        turn = self._turn(names_of(model, ids, known), after)
        turn.claim()
        return turn

    def prefilled(self, tokens: int, seconds: float) -> None:
        """Note what prefilling so many tokens took: it decides what is restored, and is stored."""
        self._stats.add(tokens_prefilled=tokens)
        self._stats.last_prefill_ms = seconds * 1000
        self._pace.prefilled(tokens, seconds)

    def keep(
        self, token_ids: Sequence[int], caches: C, prefill_ms: float = 0.0, *, turn: Turn | None = None
    ) -> bool:
        """Publish caches that were filled elsewhere, as by generating an answer; only new rows are sent.

        Args:
            token_ids: The tokens that they hold.
            caches: Caches as of `get_or_prefill`; they are read only.
            prefill_ms: What it takes to compute them; 0 takes it from what has been measured.
            turn: What `claim` returned; given back once they are published.

        Returns:
            Whether they are stored now, or wait to be; `stats` says why not.
        """
        try:
            return self._keep(token_ids_of(token_ids), caches, prefill_ms, turn)
        finally:
            if turn is not None:
                turn.give_back()

    def _keep(self, ids: list[int], caches: C, prefill_ms: float, turn: Turn | None) -> bool:
        shape = self.shape
        if shape is None or len(ids) < self._publish_after:
            return False
        if not prefill_ms and self._pace.prefill:
            prefill_ms = len(ids) / self._pace.prefill * 1000
        whole, model = shape.whole, self.model_digest

        def parent(lane: Lane, deadline: Deadline) -> Found | None:
            return find(lane, deadline, model, ids, whole=whole)

        return self._publish(shape, ids, caches, self._publisher.known(ids), parent, prefill_ms, turn)

    def _publish(
        self,
        shape: Shape,
        ids: list[int],
        caches: C,
        known: int,
        parent: Work[Found | None],
        prefill_ms: float,
        turn: Turn | None,
    ) -> bool:
        try:
            filled = self._filled(shape, caches, len(ids))
        except UnsupportedModel as error:
            self._stats.last_unpublished = str(error)
            return False
        return self._publisher.publish_tokens(self.model_digest, filled, ids, known, parent, prefill_ms, turn)

    def stats(self) -> dict[str, int | float | str | None]:
        """Counters, milliseconds, bytes moved, and why the last miss or failed publication came about."""
        report = self._stats.report(
            self._traffic(),
            connections=self._route.used,
            stores_waiting=self._publisher.waiting,
            prefill_tokens_per_second=self._pace.prefill,
            link_bytes_per_second=self._pace.link,
        )
        route = self._route
        return {**report, "bytes_mapped": route.mapped_bytes, "last_not_mapped": route.not_mapped}

    def flush(self, timeout: float | None = None) -> bool:
        """Wait, for so many seconds at most, until nothing waits to be published; whether it came to that."""
        return self._publisher.flush(timeout)

    def interrupt(self) -> None:
        """End what another thread asks the server, and its wait for others: connections are closed.

        It restores nothing then, and prefills: only a progress callback that raises ends that. Publications
        in the background go on.
        """
        self._claims.interrupt()
        self._claims_link.interrupt()
        self._link.interrupt()

    def close(self) -> None:
        """Publish what waits to be, within the deadline, and close the connections.

        What is not published by then is given up, and counted as skipped. Used again, it connects again.
        """
        self._publisher.close()
        self._link.close()
        self._claims_link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _by_tokens(self, shape: Shape, ids: list[int], progress: Progress | None) -> C:
        """Caches that hold the tokens: restored as far as stored, the rest computed by one, and published."""
        model = self.model_digest
        self._publisher.wait_for(ids)
        parent, caches, miss = self._longest(shape, ids)
        turn = self._turn(names_of(model, ids, tokens_of(parent)))
        while self._is_wanted(shape, ids, parent, miss) and not turn.hit and turn.wait():
            parent, caches, miss = self._longest(shape, ids)
            if not turn.hit:
                turn = turn.again(names_of(model, ids, tokens_of(parent)))
        known = tokens_of(parent)
        done = 0 if caches is None else self._held(shape, caches, known)
        self._stats.add(tokens_restored=done, fetches_cut=0 < done < known)
        self._publisher.remember(ids[:known])
        if caches is not None and done == len(ids):
            turn.give_back()
            return caches
        try:
            caches, milliseconds = self.prefill(ids, both(turn.renew, progress), caches, done)
            milliseconds *= len(ids) / (len(ids) - done)
            self._publish(shape, ids, caches, known, lambda *_: parent, milliseconds, turn)
            return caches
        finally:
            turn.give_back()

    def _longest(
        self, shape: Shape, ids: list[int], beyond: int = 0
    ) -> tuple[Found | None, C | None, Exception | None]:
        """What is stored of the tokens, caches that hold it, or why there are none."""
        pace = None if self._always_fetch else self._pace

        def work(lane: Lane, deadline: Deadline) -> tuple[Found, C]:
            return self._fetch(lane, deadline, shape, ids, pace, beyond)

        restored, miss = self._restored(work)
        if isinstance(miss, Declined):
            self._stats.add(fetches_declined=1)
            return miss.found, None, miss
        return (None, None, miss) if restored is None else (*restored, None)

    def _restored(self, work: Work[T]) -> tuple[T | None, Exception | None]:
        """Ask for rows: what came of it, or why none did."""
        begin = self._clock()
        found, miss = self.exchange(work)
        milliseconds = (self._clock() - begin) * 1000
        self._stats.add(fetch_ms_total=milliseconds, hits=found is not None, misses=found is None)
        if miss is not None:
            self._stats.last_miss = reason(miss)
        return found, miss

    def prefill(
        self, ids: list[int], progress: Progress | None, caches: C | None = None, done: int = 0
    ) -> tuple[C, float]:
        """Have the model compute tokens after the first `done`, which `caches` hold; milliseconds it took."""
        begin = self._clock()
        caches = self._compute(ids, progress, caches, done)
        seconds = self._clock() - begin
        self.prefilled(len(ids) - done, seconds)
        return caches, seconds * 1000

    def _turn(self, names: Sequence[tuple[str, int]], after: Turn | None = None) -> Turn:
        return self._claims.turn(names, self._wait) if after is None else after.again(names)

    def _is_wanted(self, shape: Shape, ids: list[int], parent: Found | None, miss: Exception | None) -> bool:
        """Whether what is missing would be restored if somebody published it, and is enough to be."""
        answered = miss is None or (isinstance(miss, NotStored) and not isinstance(miss, Declined))
        return answered and self._is_worth(shape, len(ids) - tokens_of(parent))

    def _is_worth(self, shape: Shape, missing: int) -> bool:
        """Whether so many tokens are enough to be published, and would be fetched sooner than computed."""
        fetched = self._always_fetch or self._pace.pays(missing, shape.plan.bytes(missing))
        return missing >= self._publish_after and fetched

    def exchange(self, work: Work[T]) -> tuple[T | None, Exception | None]:
        """Ask the server: what came of it, or what went wrong, which is counted and never raised."""
        return attempt(self._link, self._stats, work)

    def _claiming(self, work: Work[T]) -> tuple[T | None, Exception | None]:
        return attempt(self._claims_link, self._stats, work)

    def _traffic(self) -> Traffic:
        return self._link.traffic + self._claims_link.traffic + self._publisher.traffic

"""What the server's commands ask of the tier. Nothing here fails: no answer is as if there were no tier.

Consistency: a prefix that the tier holds as it is here carries a mark with the tier's version. A lookup asks
for the version when it has not been asked for `check` seconds; with another one the copy here is read anew or
goes. What was changed here and is not yet written stands, and is written.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pionkv.storage import (
    BOUNDARY_TOKENS,
    ClaimAnswer,
    Listing,
    Match,
    NameLimit,
    StorageError,
    Store,
    UnknownNamespace,
    boundaries,
    tenant_of,
)

from ..logs import logger
from .context import Context, Mark
from .guard import Guard
from .index import Index
from .interface import NO_VERSION, Head, PieceGone, Tier, TierError
from .patience import Patience
from .publisher import SETTLE_SECONDS, Publisher
from .reader import EXPIRED, Reader
from .record import BadRecord, decode

REMEMBERED = 65_536
"""Names of which it is known when they were last asked about."""
MISS_SECONDS = 0.05
"""A name that the tier did not have is not asked about again for so long."""
ENTRIES_TRIED = 3
"""Entries of the index that a MATCH looks at when those with the most tokens lead nowhere."""
FETCH_CLAIM = b"\0tier\0"
"""Before the name of a prefix that a worker is reading, among the claims of the store."""
FETCH_LEASE = 30.0
POLL_SECONDS = 0.01
DRAIN_SECONDS = 5.0
DROPS = 32
"""Drops that the tier is told of at the same time."""
DROP_DEADLINES = 3
"""A DROP waits for the tier at most so many deadlines."""

T = TypeVar("T")


class TierLink:
    """The tier as the commands see it. Make it inside a running event loop.

    Args:
        tier: The tier.
        context: The parts that its two directions share.
        check: Seconds for which a version is believed.
        queue_bytes: Bytes that may wait to be written.
        owner: Names this worker among the claims of the store; None when it is the only one.
        sweeps: Whether this worker looks for prefixes that the tier does not hold.
    """

    def __init__(
        self,
        tier: Tier,
        context: Context,
        *,
        check: float,
        queue_bytes: int,
        owner: bytes | None,
        sweeps: bool,
    ) -> None:
        self._tier = tier
        self._context = context
        self._check = check
        self._owner = owner
        self._sweeps = sweeps
        self._loop = asyncio.get_running_loop()
        self._asked: tuple[OrderedDict[bytes, float], ...] = (OrderedDict(), OrderedDict())
        """When a name that is here, or is not, may be asked about again."""
        self._bringing: dict[bytes, tuple[asyncio.Task[None], Patience]] = {}
        """Reads on their way, and how long each may take."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._dropping: set[bytes] = set()
        self._droppers = asyncio.Semaphore(DROPS)
        self._held: dict[bytes, bytes] = {}
        """Claims on prefixes that are still being written: name and owner."""
        self._index = Index(context.guard, context.counts)
        self._reader = Reader(context)
        self._publisher = Publisher(context, self._index, queue_bytes, self._written)

    @property
    def _store(self) -> Store:
        return self._context.store

    @property
    def _guard(self) -> Guard:
        return self._context.guard

    @property
    def _counts(self) -> Counter[str]:
        return self._context.counts

    # Reading

    def wants(self, name: bytes, *, check: bool) -> bool:
        """Whether `bring` has anything to ask: without this, no request costs more than a look.

        Args:
            name: The prefix.
            check: Whether the version of a prefix that is here is to be asked for.
        """
        missing = self._is_missing(name)
        if not (check or missing) or self._guard.is_away(name):
            return False
        return self._loop.time() >= self._asked[missing].get(name, 0.0)

    def _is_missing(self, name: bytes) -> bool:
        try:
            return bool(self._store.miss_reason(name))
        except StorageError:
            return False

    async def bring(self, name: bytes, prefill_us: int | None = None, began: float | None = None) -> None:
        """Have here what the tier holds of a prefix, if that is newer and worth it.

        Args:
            name: The prefix.
            prefill_us: How long computing it takes, as the request says.
            began: When the request began to ask the tier; now, unless it has asked for something else before.
        """
        now = self._loop.time()
        mine = Patience(now if began is None else began, self._guard.deadline, prefill_us)
        reading = self._bringing.get(name)
        if reading is None:
            task = self._loop.create_task(self._bring(name, mine))
            self._bringing[name] = task, mine
            task.add_done_callback(lambda done: self._brought(name, done))
            # Not awaited itself: it goes on for others when who waits is cancelled.
            await asyncio.wait((task,))
            return
        task, others = reading
        # It may be on its way for somebody who has more time.
        while not task.done() and (left := mine.of_joiner(others) - self._loop.time()) > 0:
            await asyncio.wait((task,), timeout=left)

    def _brought(self, name: bytes, task: asyncio.Task[None]) -> None:
        del self._bringing[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger().error("prefix not read from the tier", exc_info=error)

    async def _bring(self, name: bytes, patience: Patience) -> None:
        try:
            reason = await self._once(name, patience)
        except TierError as error:
            reason = error.reason
        except BadRecord as error:
            reason = "unreadable"
            logger().warning("record of the tier not read", error=str(error))
        except (StorageError, OSError) as error:
            reason = "not stored"
            logger().warning("prefix not read from the tier", error=str(error))
        if reason:
            self._counts[f"miss:{reason}"] += 1

    async def _once(self, name: bytes, patience: Patience) -> str:
        """Ask, read if need be; why there is nothing, in a word."""
        store, guard = self._store, self._guard
        if store.untold_of(name) is not None:
            return "dropped"
        missing = self._is_missing(name)
        note = None if missing else store.mark(name)
        mark = Mark.of(note)
        if not missing and mark is None:
            return ""
        seconds = patience.question(self._loop.time())
        state = await guard.ask(name, lambda: guard.tier.state(name), seconds)
        if mark is not None and state.version == mark.version:
            self._remember(name)
            return ""
        if state.version == NO_VERSION:
            return self._without_record(name, mark, dropped=state.dropped)
        if missing and self._is_partial(name):
            return "being stored"
        try:
            reason = await self._alone(name, patience)
        except BaseException:
            self._let_go(name, mark)
            raise
        if reason:
            self._let_go(name, mark)
        else:
            self._counts["refreshes" if mark is not None else "hits"] += 1
        self._remember(name)
        return reason

    def _without_record(self, name: bytes, mark: Mark | None, *, dropped: bool) -> str:
        if mark is None or dropped:
            self._let_go(name, mark)
            self._remember(name)
            return "dropped" if dropped else "absent"
        # The tier has lost it: it is written again.
        self._store.unmark(name)
        self._publisher.changed(name)
        return ""

    def _let_go(self, name: bytes, mark: Mark | None) -> None:
        """What is here is known to be old: it must not be served, unless it has changed meanwhile."""
        if mark is not None and Mark.of(self._store.mark(name)) == mark:
            self._store.evict(name)
            self._counts["let_go"] += 1

    def _is_partial(self, name: bytes) -> bool:
        """Whether somebody is storing rows of it, outside a transaction."""
        try:
            record = self._store.namespace(name)
        except UnknownNamespace:
            return False
        return self._store.miss_reason(name) == "incomplete" and (record.bytes > 0)

    async def _alone(self, name: bytes, patience: Patience) -> str:
        """Read it, unless another worker is doing so: then wait for that."""
        if self._owner is None:
            return await self._read(name, patience)
        token = FETCH_CLAIM + name
        try:
            if self._store.claim(token, self._owner, FETCH_LEASE) is ClaimAnswer.CLAIMED:
                try:
                    return await self._read(name, patience)
                finally:
                    self._store.release_claim(token, self._owner)
        except NameLimit:
            return await self._read(name, patience)
        head = await self._head(name, patience)
        if head is None:
            return "absent"
        patience.known(self._reader.decide(decode(head.record, name), patience.prefill_us).allowed)
        while self._store.is_claimed(token):
            patience.left(self._loop.time())
            await asyncio.sleep(POLL_SECONDS)
        return "not read by another worker" if self._is_missing(name) else ""

    async def _read(self, name: bytes, patience: Patience) -> str:
        for last in (False, True):
            began = self._loop.time()
            head = await self._head(name, patience)
            if head is None:
                return "absent"
            self._context.down.answered(self._loop.time() - began)
            try:
                reason = await self._reader.take(name, head, patience)
                if reason == EXPIRED:
                    self._start(self._forget(name, head))
                return reason
            except PieceGone:
                if last:
                    self._start(self._forget(name, head))
                    raise
        raise AssertionError("unreachable")

    async def _head(self, name: bytes, patience: Patience) -> Head | None:
        guard = self._guard
        return await guard.ask(name, lambda: guard.tier.head(name), patience.question(self._loop.time()))

    async def _forget(self, name: bytes, head: Head) -> None:
        """Its time is over, or pieces of it are gone: nobody else shall try."""
        pieces = [piece.id for piece in decode(head.record, name).pieces()]
        with suppress(TierError):
            await self._guard.ask(name, lambda: self._tier.forget(name, head.version, pieces))

    def _remember(self, name: bytes) -> None:
        """It was asked about just now."""
        missing = self._is_missing(name)
        asked = self._asked[missing]
        asked.pop(name, None)
        asked[name] = self._loop.time() + (min(MISS_SECONDS, self._check) if missing else self._check)
        if len(asked) > REMEMBERED:
            asked.popitem(last=False)

    # By token ids

    async def bring_match(self, ids: NDArray[np.uint32], model: bytes, listing: Listing) -> None:
        """Have here the prefix of the tier that begins with the most of these tokens, if it is longer."""
        await self._loop.create_task(self._bring_match(ids, model, listing))

    async def _bring_match(self, ids: NDArray[np.uint32], model: bytes, listing: Listing) -> None:
        began = self._loop.time()
        found = self._store.match(ids, model, listing=listing)
        known = b"" if found is None else found.record.namespace
        newer = self._start(self.bring(known)) if known and self.wants(known, check=True) else None
        held = 0 if found is None else found.tokens
        step = self._tier.index_step // BOUNDARY_TOKENS
        hashes = boundaries(model, ids, tenant_of(listing.tag))
        keys = [hashes[level] for level in range(step, len(hashes), step) if level * BOUNDARY_TOKENS > held]
        enough = partial(self._holds_more, ids, model, held, listing)
        patience = Patience(began, self._guard.deadline)
        try:
            tried: set[bytes] = set()
            for _ in range(ENTRIES_TRIED):
                key, names = await self._index.deepest(keys, tried, patience)
                if not names or await self._bring_one_of(names, key, listing, enough, began):
                    break
                tried.update(names)
        except TierError as error:
            self._counts[f"miss:{error.reason}"] += 1
        if newer is not None:
            await asyncio.wait((newer,))

    async def _bring_one_of(
        self, names: list[bytes], key: bytes, listing: Listing, done: Callable[[], bool], began: float
    ) -> bool:
        """Bring names of an entry of the index until that is enough; whether it was."""
        for name in names:
            if not listing.holds(name):
                continue
            if self.wants(name, check=False):
                await self.bring(name, began=began)
            if done():
                return True
            self._start(self._index.unnote(key, name))
        return False

    def _holds_more(self, ids: NDArray[np.uint32], model: bytes, held: int, listing: Listing) -> bool:
        found: Match | None = self._store.match(ids, model, listing=listing)
        return found is not None and found.tokens > held

    # Writing

    def changed(self, name: bytes, *, whole: bool) -> None:
        """A prefix has changed here.

        Args:
            name: The prefix.
            whole: In one step; else more may follow at once.
        """
        self._publisher.changed(name, 0.0 if whole else SETTLE_SECONDS)

    async def drop(self, names: list[bytes]) -> set[bytes]:
        """Tell the tier that these were dropped, now or, if it does not answer, later; those that it held."""
        for name in names:
            if (reading := self._bringing.get(name)) is not None:
                reading[0].cancel()
        tasks = {self._start(self._drop(name)): name for name in names}
        done, _ = await asyncio.wait(tasks, timeout=DROP_DEADLINES * self._guard.deadline)
        return {tasks[task] for task in done if task.result()}

    async def _drop(self, name: bytes) -> bool:
        self._dropping.add(name)
        try:
            async with self._droppers:
                return await self._publisher.drop(name)
        except TierError as error:
            self._counts[f"undropped:{error.reason}"] += 1
            return False
        except StorageError as error:
            logger().warning("a drop is told to the tier again", error=str(error))
            return False
        finally:
            self._dropping.discard(name)

    def tick(self) -> None:
        """What is due about once a second."""
        for untold in self._store.untold() if self._sweeps else ():
            name = untold.namespace
            if name not in self._dropping and not self._guard.is_away(name):
                self._start(self._drop(name))
        if self._sweeps:
            self._publisher.sweep()

    # Claims

    async def claim(self, name: bytes, owner: bytes, lease: float) -> bool:
        """Take a claim for all servers; when the tier does not answer it is for this server alone."""
        return await self._loop.create_task(self._claim(name, owner, lease))

    async def _claim(self, name: bytes, owner: bytes, lease: float) -> bool:
        guard = self._guard
        try:
            return await guard.ask(name, lambda: guard.tier.claim(name, owner, int(lease * 1000)))
        except TierError as error:
            self._counts[f"claim:{error.reason}"] += 1
            return True

    def release(self, name: bytes, owner: bytes) -> None:
        """Give a claim back; while the prefix is being written it stays, so that others wait for it."""
        if self._publisher.is_pending(name):
            self._held[name] = owner
        else:
            self._start(self._release(name, owner))

    async def is_claimed(self, name: bytes) -> bool:
        """Whether somebody on any server has the right to compute a prefix."""
        return await self._loop.create_task(self._is_claimed(name))

    async def _is_claimed(self, name: bytes) -> bool:
        guard = self._guard
        try:
            return await guard.ask(name, lambda: guard.tier.is_claimed(name))
        except TierError:
            return False

    def _written(self, name: bytes) -> None:
        """A prefix is not waiting any more: who waits for it elsewhere can have it."""
        owner = self._held.pop(name, None)
        if owner is not None:
            self._start(self._release(name, owner))

    async def _release(self, name: bytes, owner: bytes) -> None:
        guard = self._guard
        try:
            await guard.ask(name, lambda: guard.tier.release(name, owner))
        except TierError as error:
            self._counts[f"claim:{error.reason}"] += 1

    # What it tells

    async def explain(self, name: bytes) -> dict[str, object]:
        """Where a prefix is, and whether it would be read."""
        return await self._loop.create_task(self._explain(name))

    async def _explain(self, name: bytes) -> dict[str, object]:
        here = not self._is_missing(name)
        fields: dict[str, object] = {"where": "here" if here else "nowhere"}
        guard = self._guard
        try:
            head = await guard.ask(name, lambda: guard.tier.head(name))
            record = None if head is None else decode(head.record, name)
        except (TierError, BadRecord) as error:
            return fields | {"tier": str(error)}
        if head is None or record is None:
            waits = self._publisher.is_pending(name)
            return fields | {"tier": "waiting to be written" if waits else "absent"}
        mark = Mark.of(self._store.mark(name)) if here else None
        decision = self._reader.decide(record, None)
        worth = "read" if decision.worth_it else "not read"
        return fields | {
            "where": "here and in the tier" if here else "in the tier",
            "tier": "the same" if mark is not None and mark.version == head.version else "another version",
            "tier_version": head.version,
            "tier_bytes": record.nbytes,
            "tier_tokens": record.tokens,
            "tier_origin": record.origin,
            "tier_decision": worth,
            "tier_read_ms": round(decision.seconds * 1000, 1),
            "tier_allowed_ms": round(decision.allowed * 1000, 1),
        }

    def gauges(self) -> Mapping[str, int]:
        """What is true now."""
        return {
            "tier_queued": self._publisher.queued,
            "tier_queued_bytes": self._publisher.queued_bytes,
            "tier_away": len(self._guard.away),
        }

    @property
    def bandwidth(self) -> tuple[int, int]:
        """Bytes a second from the tier and to it, as this worker has measured; 0 when it has not."""
        return int(self._context.down.bytes_per_second), int(self._context.up.bytes_per_second)

    @property
    def address(self) -> str:
        """Where the tier is, without passwords."""
        return self._tier.address

    @property
    def away(self) -> list[str]:
        """Shards that are not asked now."""
        return self._guard.away

    async def close(self) -> None:
        """Write what waits, for a few seconds at most, and let the tier go."""
        await self._publisher.drain(DRAIN_SECONDS)
        self._publisher.close()
        self._reader.close()
        self._guard.close()
        for task in [*self._tasks, *(task for task, _ in self._bringing.values())]:
            task.cancel()
        await self._tier.close()

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger().error("tier", exc_info=error)

"""Write-behind: what was published here is written to the tier, beside the requests.

The queue holds names, not bytes, and is bounded by both their number and the bytes that they stand for. What
does not fit, or fails, is found again by the sweep: the catalog knows which prefixes the tier does not hold,
also after a crash.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

import xxhash
from pionkv.storage import Image, Rows, StaleGeneration, StorageError, StoredRuns, UnknownNamespace

from ..logs import logger
from .context import MEASURED_BYTES, WINDOW, Context, Mark
from .index import Index
from .interface import NO_VERSION, Commit, Head, Moved, PieceGone, TierAway, TierError, TierFull
from .record import (
    PIECE_BYTES,
    SEGMENTS,
    BadRecord,
    GroupedLayer,
    Piece,
    Record,
    Run,
    Segment,
    decode,
    described,
    runs_of,
)

QUEUED = 4096
"""Names that wait at most."""
WRITERS = 2
SETTLE_SECONDS = 0.25
"""Rows stored outside a transaction come layer by layer: they are written when no more come."""
ATTEMPTS = 3
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0
SWEPT = 256
"""Namespaces that one sweep looks at."""
READ_BYTES = 1 << 20
SIDES = (b"_pk", b"_pv")


@dataclass(slots=True)
class Waiting:
    """A prefix in the queue: when it is due, and how many bytes it has."""

    due: float
    nbytes: int


class Changed(Exception):
    """The prefix changed while it was being written."""


class Publisher:
    """Writes prefixes to the tier.

    Args:
        context: What is shared with the reader.
        index: Where prefixes are found by their token ids.
        limit: Bytes that may wait.
        settled: Told of each prefix that no longer waits.
    """

    def __init__(self, context: Context, index: Index, limit: int, settled: Callable[[bytes], None]) -> None:
        self._context = context
        self._index = index
        self._limit = limit
        self._settled = settled
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[bytes, Waiting] = {}
        self._busy: set[bytes] = set()
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._retries: dict[bytes, tuple[float, float]] = {}
        """Names that failed: when to try again, and the pause after that."""
        self._wake = asyncio.Event()
        self._swept: bytes | None = None
        self._seen: dict[bytes, int] = {}
        self._seen_before: dict[bytes, int] = {}
        """What the sweeps have found in this round through the names, and in the one before."""
        self._tasks = [self._loop.create_task(self._run()) for _ in range(WRITERS)]
        self._overflowed = False

    @property
    def queued(self) -> int:
        """Prefixes that wait or are being written."""
        return len(self._waiting) + len(self._busy)

    @property
    def queued_bytes(self) -> int:
        """Bytes of those that wait."""
        return sum(item.nbytes for item in self._waiting.values())

    def is_pending(self, name: bytes) -> bool:
        """Whether a prefix waits or is being written."""
        return name in self._waiting or name in self._busy

    def changed(self, name: bytes, settle: float = 0.0) -> None:
        """A prefix may have become one that the tier does not hold as it is here."""
        due = self._loop.time() + settle
        found = self._waiting.get(name)
        if found is not None:
            found.due = due
            return
        try:
            record = self._context.store.namespace(name)
        except (UnknownNamespace, StorageError):
            return
        if not settle and (not record.is_hit or self._context.store.mark(name) is not None):
            return
        counts = self._context.counts
        if len(self._waiting) >= QUEUED or self.queued_bytes + record.bytes > max(self._limit, record.bytes):
            counts["overflow"] += 1
            if not self._overflowed:
                logger().warning("tier's queue is full", prefixes=len(self._waiting), limit=self._limit)
            self._overflowed = True
            return
        self._waiting[name] = Waiting(due, record.bytes)
        self._wake.set()

    def sweep(self) -> None:
        """Look for prefixes that the tier does not hold; they are queued when two rounds have found them."""
        found, self._swept = self._context.store.unmarked(self._swept, SWEPT)
        now = self._loop.time()
        for name, generation in found:
            due, _ = self._retries.get(name, (0.0, 0.0))
            if not self.is_pending(name) and self._seen_before.get(name) == generation and due <= now:
                self.changed(name)
            elif len(self._seen) < QUEUED:
                self._seen[name] = generation
        if self._swept is None:
            self._seen_before, self._seen = self._seen, {}
            # Those that are gone by now are tried no more.
            late = now - LONGEST_RETRY
            self._retries = {name: retry for name, retry in self._retries.items() if retry[0] > late}

    async def drain(self, seconds: float) -> None:
        """Wait until everything is written, or the time is over."""
        end = self._loop.time() + seconds
        while self.queued and not self._context.guard.away and self._loop.time() < end:
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """Write no more."""
        for task in self._tasks:
            task.cancel()

    async def _run(self) -> None:
        while True:
            name = self._next()
            if name is None:
                self._wake.clear()
                with_timeout = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait((with_timeout,), timeout=self._pause())
                with_timeout.cancel()
                continue
            self._busy.add(name)
            try:
                await self._attempt(name)
            except Exception as error:
                logger().error("prefix not written to the tier", exc_info=error)
            finally:
                self._busy.discard(name)
                if not self.is_pending(name):
                    self._settled(name)

    def _next(self) -> bytes | None:
        now, guard = self._loop.time(), self._context.guard
        for name, item in self._waiting.items():
            if item.due <= now and name not in self._busy and not guard.is_away(name):
                del self._waiting[name]
                self._overflowed = False
                return name
        return None

    def _pause(self) -> float:
        if not self._waiting:
            return 3600.0
        first = min(item.due for item in self._waiting.values())
        return min(max(first - self._loop.time(), 0.02), 0.5)

    async def _attempt(self, name: bytes) -> None:
        """Write one prefix; what fails is tried again later."""
        counts = self._context.counts
        try:
            await self.publish(name)
            self._retries.pop(name, None)
            return
        except TierAway:
            counts["unwritten:away"] += 1
            self.changed(name)
            return
        except TierFull:
            counts["unwritten:full"] += 1
        except Changed:
            self.changed(name)
            return
        except TierError as error:
            counts[f"unwritten:{error.reason}"] += 1
            logger().warning("prefix not written to the tier", error=str(error))
        except StorageError as error:
            counts["unwritten:storage"] += 1
            logger().warning("prefix not written to the tier", error=str(error))
        except Exception as error:
            counts["unwritten:error"] += 1
            logger().error("prefix not written to the tier", exc_info=error)
        _, pause = self._retries.get(name, (0.0, FIRST_RETRY))
        if len(self._retries) < QUEUED:
            self._retries[name] = self._loop.time() + pause, min(pause * 2, LONGEST_RETRY)

    # One prefix

    async def publish(self, name: bytes) -> None:
        """Have the tier hold a prefix as it is here.

        Raises:
            TierError: It could not be written.
            Changed: It is no longer as it was.
        """
        async with self._lock(name):
            await self._tell_drop(name)
            for _ in range(ATTEMPTS):
                image = self._context.store.image(name)
                if image is None or image.mark is not None:
                    return
                try:
                    await self._write(name, image)
                    return
                except (Moved, PieceGone):
                    self._context.counts["write_retries"] += 1
        raise Moved("other servers write it, too")

    async def drop(self, name: bytes) -> bool:
        """Have the tier drop a prefix, if that is still to be told; whether it held one."""
        async with self._lock(name):
            return await self._tell_drop(name)

    def _lock(self, name: bytes) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _tell_drop(self, name: bytes) -> bool:
        store, guard = self._context.store, self._context.guard
        untold = store.untold_of(name)
        if untold is None:
            return False
        for _ in range(ATTEMPTS):
            head = await guard.ask(name, lambda: guard.tier.head(name))
            if head is None:
                store.told(untold)
                return False
            pieces, version = _ids(head, name), head.version
            try:
                await guard.ask(name, lambda: guard.tier.drop(name, version, pieces))  # noqa: B023
            except Moved:
                continue
            store.told(untold)
            self._context.counts["dropped"] += 1
            return True
        raise Moved("other servers write it, too")

    async def _write(self, name: bytes, image: Image) -> None:
        context, guard = self._context, self._context.guard
        head = await guard.ask(name, lambda: guard.tier.head(name))
        old = _record_of(head, name)
        after = head.version if head is not None else NO_VERSION
        record = replace(described(image, context.origin), groups=await self._groups(image))
        kept = await self._kept(image, old, record.groups)
        segments, states = [*kept], tuple[Piece, ...]()
        if image.schemas is not None and image.layers and record.tokens > (kept[-1].end if kept else 0):
            start = kept[-1].end if kept else 0
            rows = self._pieces(image, runs_of(image.schemas, image.layers, start, record.tokens))
            segments.append(Segment(start, record.tokens, tuple([piece async for piece in rows])))
        if image.states:
            states = tuple([piece async for piece in self._state_pieces(image)])
        record = replace(record, segments=tuple(segments), state_pieces=states)
        if old is None or not record.same(old):
            after = await self._commit(name, record, old, head)
            await self._index.note(record, old)
        await self._mark(name, image, Mark(after, record.content))

    async def _commit(self, name: bytes, record: Record, old: Record | None, head: Head | None) -> int:
        guard = self._context.guard
        ids = [piece.id for piece in record.pieces()]
        before = [] if old is None else [piece.id for piece in old.pieces()]
        named = set(ids)
        commit = Commit(
            record.encode(),
            ids,
            [piece for piece in before if piece not in named],
            head.version if head is not None else NO_VERSION,
            record.expires,
        )
        seconds = self._context.up.limit(len(commit.record), guard.deadline)
        version = await guard.ask(name, lambda: guard.tier.commit(name, commit), seconds)
        self._context.counts["written"] += 1
        return version

    async def _mark(self, name: bytes, image: Image, mark: Mark) -> None:
        """Note that the tier holds it; if it went meanwhile the tier is told, if it changed it is written."""
        store = self._context.store
        found, note = image.record, mark.encode()
        manifest = image.manifest
        if store.set_mark(name, found.generation, note, expires=found.expires, manifest=manifest):
            return
        gone = store.gone(name)
        if gone is not None and gone.why == "dropped":
            store.tell(name)
            await self._tell_drop(name)
        else:
            self.changed(name)

    async def _kept(
        self, image: Image, old: Record | None, groups: tuple[GroupedLayer, ...]
    ) -> list[Segment]:
        """The segments of the record before whose bytes are the same here."""
        if old is None or image.schemas is None or (old.layers, old.groups) != (image.layers, groups):
            return []
        if old.schemas != (image.schemas[0].encode(), image.schemas[1].encode()):
            return []
        kept: list[Segment] = []
        for segment in old.segments:
            if segment.end > image.record.tokens or not await self._holds(image, segment):
                break
            kept.append(segment)
        return kept if len(kept) < SEGMENTS else []

    async def _holds(self, image: Image, segment: Segment) -> bool:
        assert image.schemas is not None
        pieces = list(segment.pieces)
        views = self._rows(image, runs_of(image.schemas, image.layers, segment.start, segment.end))
        for data in _cut(views):
            if not pieces or pieces.pop(0)[1:] != (len(data), xxhash.xxh3_128_digest(data)):
                return False
            await asyncio.sleep(0)
        return not pieces

    async def _pieces(self, image: Image, runs: Iterator[Run]) -> AsyncIterator[Piece]:
        """Write rows, and say in which pieces they are."""
        async for piece in self._put(image.record.namespace, _cut(self._rows(image, runs))):
            yield piece

    async def _state_pieces(self, image: Image) -> AsyncIterator[Piece]:
        async for piece in self._put(image.record.namespace, _cut(self._states(image))):
            yield piece

    async def _put(self, name: bytes, parts: Iterator[bytes]) -> AsyncIterator[Piece]:
        """Write pieces, a few at a time, and yield them in order."""
        uid = secrets.token_bytes(8)
        tasks: list[asyncio.Task[Piece]] = []
        began, total = self._loop.time(), 0
        try:
            for number, data in enumerate(parts):
                total += len(data)
                tasks.append(self._loop.create_task(self._put_one(name, uid, number, data)))
                if len(tasks) == WINDOW:
                    yield await tasks.pop(0)
            while tasks:
                yield await tasks.pop(0)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if total >= MEASURED_BYTES:
            self._context.up.transferred(total, self._loop.time() - began)

    async def _put_one(self, name: bytes, uid: bytes, number: int, data: bytes) -> Piece:
        context, guard = self._context, self._context.guard
        piece = Piece(uid + number.to_bytes(4, "big"), len(data), xxhash.xxh3_128_digest(data))
        seconds = context.up.limit(len(data) * WINDOW, guard.deadline)
        try:
            await guard.ask(name, lambda: guard.tier.put_piece(name, piece.id, data), seconds)
        except TierAway:
            context.up.missed()
            raise
        context.counts["bytes_out"] += len(data)
        return piece

    async def _groups(self, image: Image) -> tuple[GroupedLayer, ...]:
        """How the layers that code groups are stored."""
        found: list[GroupedLayer] = []
        if image.schemas is None or all(schema.wire is schema for schema in image.schemas):
            return ()
        for run in runs_of(image.schemas, image.layers, 0, image.record.tokens):
            if image.schemas[run.side].layer(run.layer).details.grouped:
                stored = StoredRuns.of(self._rows_of(image, run, run.start, run.end).runs)
                found.append(GroupedLayer(run.layer, run.side, *stored))
                await asyncio.sleep(0)
        return tuple(found)

    def _rows(self, image: Image, runs: Iterator[Run]) -> Iterator[memoryview]:
        assert image.schemas is not None
        for run in runs:
            step = max(1, READ_BYTES // run.row_bytes)
            if image.schemas[run.side].layer(run.layer).details.grouped:
                # A group is not parted.
                step = run.end - run.start
            for start in range(run.start, run.end, step):
                yield from self._rows_of(image, run, start, min(run.end, start + step)).parts

    def _rows_of(self, image: Image, run: Run, start: int, end: int) -> Rows:
        """Rows of a layer and side. Raises `Changed`."""
        record = image.record
        sid = record.namespace + SIDES[run.side]
        try:
            rows = self._context.store.rows(sid, run.layer, start, end, at=record.generation)
        except (StaleGeneration, StorageError) as error:
            raise Changed from error
        if rows is None:
            raise Changed
        return rows

    def _states(self, image: Image) -> Iterator[memoryview]:
        for number, length in image.states:
            view = self._context.store.state(image.record.namespace, number)
            if view is None or len(view) != length:
                raise Changed
            yield view


def _cut(views: Iterator[memoryview]) -> Iterator[bytes]:
    """The same bytes in pieces."""
    parts: list[memoryview] = []
    size = 0
    for view in views:
        while view:
            part = view[: PIECE_BYTES - size]
            parts.append(part)
            size += len(part)
            view = view[len(part) :]
            if size == PIECE_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _record_of(head: Head | None, name: bytes) -> Record | None:
    """The record, if this build can read it; what it cannot read is replaced."""
    if head is None:
        return None
    try:
        return decode(head.record, name)
    except BadRecord:
        return None


def _ids(head: Head, name: bytes) -> list[bytes]:
    record = _record_of(head, name)
    return [] if record is None else [piece.id for piece in record.pieces()]

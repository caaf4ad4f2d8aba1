"""Read-through: a prefix that the tier holds is laid into the store by an ordinary transaction."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import xxhash
from pionkv.kernels import LayerSpec
from pionkv.storage import (
    Image,
    NoHandles,
    NoSpace,
    OutOfBudget,
    PrefixPlan,
    Schema,
    StorageError,
    Transaction,
)
from pionkv.storage.filling import Pending

from ..logs import logger
from .context import MEASURED_BYTES, WINDOW, Context, Mark
from .interface import Head, PieceGone, TierAway, TierError, TierLate
from .patience import MILLION, Overdue, Patience
from .record import BadRecord, Piece, Record, decode, runs_of

ESTIMATE_US_PER_TOKEN = 555
"""Time to compute a token whose prefill nobody measured, as the receipt and eviction assume."""
EXPIRED = "expired"
STEP_BYTES = 1 << 20
"""Bytes laid into pages before others have their turn."""
_ANY = Schema.uniform(LayerSpec("fp16", 1))
"""Stands for the schema of a prefix that has no sessions."""
SIDES = (b"_pk", b"_pv")


class Decision(NamedTuple):
    """Whether a prefix is read.

    Attributes:
        worth_it: It is.
        seconds: How long that should take; 0 when nothing was measured.
        allowed: How long it may take: the prefill that it saves, or the deadline if that is longer.
    """

    worth_it: bool
    seconds: float
    allowed: float


class Slow(TierError):
    """Going on would take longer than to compute the rows."""

    reason = "slow"


class Damaged(TierError):
    """A piece is not what the record says."""

    reason = "damaged"


class Reader:
    """Reads prefixes from the tier.

    Args:
        context: What is shared with the publisher.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._measuring: asyncio.Task[None] | None = None

    def decide(self, record: Record, prefill_us: int | None) -> Decision:
        """Whether reading a prefix should take less time than computing it."""
        down, guard = self._context.down, self._context.guard
        saved = prefill_us or record.prefill_us or record.tokens * ESTIMATE_US_PER_TOKEN
        allowed = max(saved / MILLION, guard.deadline)
        seconds = down.round_trip + down.seconds(record.nbytes)
        return Decision(seconds <= allowed, seconds, allowed)

    async def take(self, name: bytes, head: Head, patience: Patience) -> str:
        """Have the store hold this version of a prefix; why not in a word, or nothing.

        Args:
            name: The prefix.
            head: Its record and version.
            patience: How long the read may take; the record is made known to it.

        Raises:
            TierError: It could not be read; what was here is as it was.
        """
        record = decode(head.record, name)
        if 0 < record.expires <= time.time() * 1000:
            return EXPIRED
        decision = self.decide(record, patience.prefill_us)
        patience.known(decision.allowed)
        image = self._context.store.image(name)
        mark = None if image is None else Mark.of(image.mark)
        if image is not None and mark is not None and mark.content == record.content:
            generation = self._describe(record, image)
        else:
            if not decision.worth_it:
                self._measure(name, record)
                return "slower than prefill"
            generation = await self._fetch(record, decision, patience)
        if generation:
            note = Mark(head.version, record.content).encode()
            expires = record.expires / 1000
            self._context.store.set_mark(name, generation, note, expires=expires, manifest=record.manifest)
        return ""

    def close(self) -> None:
        """Measure no more."""
        if self._measuring is not None:
            self._measuring.cancel()

    def _describe(self, record: Record, image: Image) -> int:
        """The rows are the same; what else is said about them is taken over. As `_fetch`."""
        store, name = self._context.store, record.name
        schemas = record.decoded_schemas()
        known = (image.blocks, image.record.prefill_us)
        moves = schemas is not None and (record.blocks, record.prefill_us) != known
        if schemas is not None and moves:
            self._register(record, schemas)
        if record.manifest is not None and record.manifest != image.manifest:
            store.set_manifest(name, record.manifest)
        if record.expires != round(image.record.expires * 1000):
            store.expire(name, record.expires / 1000)
        return 0 if moves else image.record.generation

    def _register(self, record: Record, schemas: tuple[Schema, Schema]) -> None:
        blocks = record.blocks
        self._context.store.register(
            record.name,
            *schemas,
            blocks=None if blocks is None else blocks[:2],
            prefill_us=record.prefill_us or None,
            model=b"" if blocks is None else blocks[2],
        )

    def _measure(self, name: bytes, record: Record) -> None:
        """Measure the bandwidth again, beside the request, when the last time is long ago."""
        piece = next(record.pieces(), None)
        stale = self._loop.time() - self._context.down.measured_at > MEASURE_SECONDS
        if piece is not None and stale:
            self._context.down.measured_at = self._loop.time()
            self._measuring = self._loop.create_task(self._measure_piece(name, piece))

    async def _measure_piece(self, name: bytes, piece: Piece) -> None:
        began = self._loop.time()
        try:
            await self._get(name, piece)
        except TierError:
            return
        self._context.down.transferred(piece.length, self._loop.time() - began)

    async def _fetch(self, record: Record, decision: Decision, patience: Patience) -> int:
        """Lay a prefix down in time; its generation, or 0 when that has to be found out by the publisher."""
        store = self._context.store
        schemas = record.decoded_schemas()
        try:
            transaction = store.begin_transaction(secrets.token_hex(16).encode(), _plan(record, schemas))
            filler = Filler(transaction, record)
            try:
                await self._fill(record, filler, decision, patience)
                filler.finish()
                generation = transaction.publish().generation
            finally:
                filler.close()
                transaction.abort("the tier's copy could not be read")
            if schemas is not None and not record.layers:
                self._register(record, schemas)
                generation = 0
            if record.expires:
                store.expire(record.name, record.expires / 1000)
            return generation
        except (OutOfBudget, NoSpace, NoHandles) as error:
            raise NoRoom(str(error)) from error
        except StorageError as error:
            raise Refused(str(error)) from error

    async def _fill(self, record: Record, filler: Filler, decision: Decision, patience: Patience) -> None:
        """Get the pieces, a few at a time, and lay them down in order."""
        total, got = record.nbytes, 0
        began = self._loop.time()
        ahead: deque[asyncio.Task[memoryview]] = deque()
        pieces = record.pieces()
        try:
            while True:
                while len(ahead) < WINDOW and (piece := next(pieces, None)) is not None:
                    ahead.append(self._loop.create_task(self._get(record.name, piece, patience)))
                if not ahead:
                    break
                data = await ahead.popleft()
                got += len(data)
                elapsed = self._loop.time() - began
                if elapsed * total / got > decision.allowed and elapsed > self._context.guard.deadline:
                    self._context.down.transferred(got, elapsed)
                    raise Slow(f"{total} bytes would take {elapsed * total / got:.3g} s")
                for start in range(0, len(data), STEP_BYTES):
                    filler.feed(data[start : start + STEP_BYTES])
                    await asyncio.sleep(0)
        except Overdue:
            self._context.down.missed(total / decision.allowed)
            raise
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)
        if total >= MEASURED_BYTES:
            self._context.down.transferred(total, self._loop.time() - began)

    async def _get(self, name: bytes, piece: Piece, patience: Patience | None = None) -> memoryview:
        """A piece, if it comes in time."""
        context, guard = self._context, self._context.guard
        seconds = context.down.limit(piece.length * WINDOW, guard.deadline)
        left = seconds if patience is None else patience.left(self._loop.time())
        try:
            data = await guard.ask(name, lambda: guard.tier.get_piece(name, piece.id), min(seconds, left))
        except TierAway as error:
            if isinstance(error, TierLate) and left < seconds:
                raise Overdue(str(error)) from error
            context.down.missed()
            raise
        if len(data) != piece.length or xxhash.xxh3_128_digest(data) != piece.digest:
            logger().error("a piece of the tier is damaged", piece=piece.id.hex())
            raise Damaged(f"piece {piece.id.hex()} fails its digest")
        context.counts["bytes_in"] += len(data)
        return memoryview(data)


class NoRoom(TierError):
    """There is no room for it here."""

    reason = "no room"


class Refused(TierError):
    """The store does not take it, or it changed meanwhile."""

    reason = "not stored"


MEASURE_SECONDS = 10.0
"""A bandwidth that keeps prefixes from being read is measured again after this."""


class Filler:
    """Lays bytes into a transaction: rows in the order of the record, then states.

    Args:
        transaction: Begun for the record.
        record: What it is about.
    """

    def __init__(self, transaction: Transaction, record: Record) -> None:
        self._transaction = transaction
        self._record = record
        self._begins = self._all()
        self._write: Pending | None = None
        self._room = memoryview(b"")

    def feed(self, data: memoryview) -> None:
        """The next bytes. Raises `Damaged` for more than there are rows."""
        while data:
            if not self._room:
                self._room = self._next_room()
            count = min(len(self._room), len(data))
            self._room[:count] = data[:count]
            self._room, data = self._room[count:], data[count:]

    def finish(self) -> None:
        """All bytes were given. Raises `Damaged` when some are missing."""
        if self._room:
            raise Damaged("the pieces hold fewer bytes than the record says")
        self._end_write()
        if next(self._begins, None) is not None:
            raise Damaged("the pieces hold fewer bytes than the record says")

    def close(self) -> None:
        """Give up what is not finished."""
        if self._write is not None:
            self._write.abort()

    def _all(self) -> Iterator[Callable[[], Pending]]:
        record, transaction = self._record, self._transaction
        schemas = record.decoded_schemas()
        groups = {(each.layer, each.side): each.runs for each in record.groups}
        for segment in record.segments if schemas is not None else ():
            assert schemas is not None
            for run in runs_of(schemas, record.layers, segment.start, segment.end):
                sid = record.name + SIDES[run.side]
                if schemas[run.side].layer(run.layer).details.grouped:
                    stored = groups.get((run.layer, run.side))
                    if stored is None or stored.rows != run.end - run.start:
                        raise Damaged("the record does not say how groups of rows are stored")
                    yield partial(transaction.begin_stored, sid, run.layer, stored)
                    continue
                yield partial(transaction.begin_write, sid, run.layer, run.start, run.end - run.start)
        for number, length in record.states:
            yield partial(transaction.begin_state, number, length)

    def _next_room(self) -> memoryview:
        while True:
            room = None if self._write is None else self._write.next_segment()
            if room is not None:
                return room
            self._end_write()
            begin = next(self._begins, None)
            if begin is None:
                raise Damaged("the pieces hold more bytes than the record says")
            self._write = begin()

    def _end_write(self) -> None:
        write, self._write = self._write, None
        if write is not None:
            write.commit()


def _plan(record: Record, schemas: tuple[Schema, Schema] | None) -> PrefixPlan:
    blocks = record.blocks
    return PrefixPlan(
        namespace=record.name,
        schemas=schemas or (_ANY, _ANY),
        layers=max(record.layers) + 1 if record.layers else 0,
        tokens=record.tokens if record.layers else None,
        blocks=None if blocks is None else blocks[:2],
        model=b"" if blocks is None else blocks[2],
        manifest=record.manifest,
        prefill_us=record.prefill_us or None,
        fresh=True,
        only=record.layers,
    )


__all__ = [
    "BadRecord",
    "Damaged",
    "Decision",
    "Filler",
    "NoRoom",
    "Overdue",
    "PieceGone",
    "Reader",
    "Refused",
    "Slow",
]

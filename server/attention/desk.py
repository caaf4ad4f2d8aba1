"""Who computes attention when: one thread does, and queries that wait for the same rows go together.

While the thread is at work, queries gather. When it is free, it takes the one that has waited longest, and
with it every other that asks the same layer of the same prefix in the same way: one pass over the rows does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from pionkv.kernels.attention import (
    Attended,
    AttentionError,
    Engine,
    HeadMap,
    PackedLayer,
    Query,
    ResidentRows,
    load_engine,
)
from pionkv.storage import Stale, StorageError

from ..logs import logger
from .residents import Marks, Place, Residents
from .sources import find, read

if TYPE_CHECKING:
    from ..service import Service

T = TypeVar("T")

TOGETHER = 1024
"""Queries of a head that are answered together, unless one caller alone has more."""
LOOKED_AT = 32
"""Places whose rows are compared with the store at each tick."""
PART_OF_BUDGET = 4
"""Rows kept ready take at most this part of the byte budget."""
ATTEMPTS = 3
"""How often rows are read anew when they change meanwhile."""

Work: TypeAlias = Callable[[Engine, ResidentRows], Attended | None]
"""What is done with the rows, in the thread."""


class RowsGone(Exception):
    """The rows that a query was about are not there any more."""


@dataclass(frozen=True, slots=True)
class Manner:
    """What queries that go together have in common.

    Attributes:
        place: The rows.
        head_map: The key/value head of each query head.
        window: How many of the last rows are seen; 0 for all.
    """

    place: Place
    head_map: HeadMap
    window: int


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """What goes with nothing else.

    Attributes:
        place: The rows.
        work: What is done with them.
    """

    place: Place
    work: Work


@dataclass(frozen=True, slots=True)
class _Asked:
    """Who waits, and for what; there is no query where the key says what is done."""

    query: Query | None
    answer: asyncio.Future[Attended | None]

    @property
    def weight(self) -> int:
        return self.query.count if self.query is not None else TOGETHER


class Desk:
    """Where attention is asked for. Belongs to the event loop.

    Args:
        service: What all connections share.

    Attributes:
        residents: The rows that are kept ready.
        storing: How many ATTEND.PREFIX.STORE are under way for a prefix.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="attend")
        self._loading: asyncio.Future[Engine | None] | None = None
        self._waiting: dict[Manner | Alone, list[_Asked]] = {}
        self._busy: asyncio.Task[None] | None = None
        self.storing: Counter[bytes] = Counter()
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self.residents = Residents(lambda: service.metrics, self._limit, service.share_budget)

    def turn(self, namespace: bytes) -> asyncio.Lock:
        """Held by whoever adds rows to a prefix: one after the other in this process."""
        return self._turns.setdefault(namespace, asyncio.Lock())

    async def engine(self) -> Engine | None:
        """The engine of this machine, loaded when it is first asked for; None when there is none."""
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._run(load_engine))
        return await asyncio.shield(self._loading)

    async def attend(self, manner: Manner, query: Query) -> Attended:
        """Attention over all rows that the window holds.

        Raises:
            RowsGone: There are no such rows.
            AttentionError: The query does not fit them.
            StorageError: As `Store.rows`.
        """
        answer = await self._ask(manner, query)
        assert answer is not None
        return answer

    async def work(self, place: Place, work: Work) -> Attended | None:
        """What `work` makes of rows, in the thread. Raises as `attend`."""
        return await self._ask(Alone(place, work), None)

    async def warm(self, place: Place) -> None:
        """Have rows ready, if they may be kept. Raises as `attend`."""
        await self.work(place, lambda engine, rows: None)

    def tick(self) -> None:
        """What is due about once a second."""
        self.residents.look(self._is_current, LOOKED_AT)

    def close(self) -> None:
        """Wait for the thread and let it go."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _ask(self, key: Manner | Alone, query: Query | None) -> Attended | None:
        asked = _Asked(query, self._service.loop.create_future())
        self._waiting.setdefault(key, []).append(asked)
        self._go_on()
        return await asked.answer

    def _go_on(self) -> None:
        if self._busy is None and self._waiting:
            self._busy = self._service.loop.create_task(self._serve(*self._take()))
            self._busy.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._busy = None
        if not task.cancelled():
            self._go_on()

    def _take(self) -> tuple[Manner | Alone, list[_Asked]]:
        """The queries that have waited longest, and others in the same manner, up to a limit."""
        key = next(iter(self._waiting))
        asked, weight = self._waiting.pop(key), 0
        for count, one in enumerate(asked):
            weight += one.weight
            if count and weight > TOGETHER:
                self._waiting[key] = asked[count:]
                return key, asked[:count]
        return key, asked

    async def _serve(self, key: Manner | Alone, asked: list[_Asked]) -> None:
        self._service.metrics.attend_passes += 1
        try:
            answers = await self._with_rows(key.place, partial(_answers, key=key, asked=asked))
        except Exception as error:
            for one in asked:
                if not one.answer.done():
                    one.answer.set_exception(error)
            return
        for one, answer in zip(asked, answers, strict=True):
            if one.answer.done():
                continue
            if isinstance(answer, AttentionError):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)

    async def _with_rows(self, place: Place, work: Callable[[Engine, ResidentRows], T]) -> T:
        engine = await self.engine()
        assert engine is not None, "asked without an engine"
        for attempt in range(ATTEMPTS):
            source = find(self._service.store, place[0], place[1])
            if source is None:
                break
            rows = self.residents.get(place, source.marks)
            if rows is not None:
                self._service.store.touch(source.namespace + b"_pk")
                return await self._run(lambda held=rows: work(engine, held))  # type: ignore[misc]
            try:
                packed = await read(self._service.store, source, place[2])
            except Stale:
                if attempt < ATTEMPTS - 1:
                    continue
                raise
            return await self._load_and(place, source.marks, engine, packed, work)
        raise RowsGone

    async def _load_and(
        self,
        place: Place,
        marks: Marks,
        engine: Engine,
        packed: PackedLayer,
        work: Callable[[Engine, ResidentRows], T],
    ) -> T:
        """Load rows and work on them; those that are too many to be kept are decoded as they are needed."""
        fits = self.residents.make_room(engine.resident_bytes(packed))

        def load_and_work() -> tuple[ResidentRows, T]:
            rows = engine.load(packed) if fits else engine.stream(packed)
            return rows, work(engine, rows)

        rows, result = await self._run(load_and_work)
        if fits:
            self.residents.put(place, marks, rows)
        return result

    async def _run(self, call: Callable[[], T]) -> T:
        return await self._service.loop.run_in_executor(self._thread, call)

    def _limit(self) -> int:
        """Bytes that this worker may keep ready."""
        settings = self._service.settings
        limit = settings.attend_bytes
        if settings.max_bytes:
            limit = min(limit, settings.max_bytes // PART_OF_BUDGET)
        return limit // self._service.place.workers

    def _is_current(self, place: Place, marks: Marks) -> bool:
        try:
            source = find(self._service.store, place[0], place[1])
        except StorageError as error:
            logger().debug("rows let go", namespace=place[0], reason=str(error))
            return False
        return source is not None and source.marks == marks


def _answers(
    engine: Engine, rows: ResidentRows, key: Manner | Alone, asked: Sequence[_Asked]
) -> Sequence[Attended | None | AttentionError]:
    """The answers in order; when one query spoils a pass, each is asked alone."""
    if isinstance(key, Alone):
        return [key.work(engine, rows)]
    queries = [one.query for one in asked if one.query is not None]
    try:
        return engine.attend(rows, queries, key.head_map, key.window)
    except AttentionError:
        return [_alone(engine, rows, key, query) for query in queries]


def _alone(engine: Engine, rows: ResidentRows, key: Manner, query: Query) -> Attended | AttentionError:
    try:
        return engine.attend(rows, [query], key.head_map, key.window)[0]
    except AttentionError as error:
        return error

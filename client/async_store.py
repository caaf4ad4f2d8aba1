"""`AsyncStoreClient`: the store's commands as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pionkv.kernels.formats import LayerSpec
from pionkv.protocol.request import Word

from . import asking
from .asking import Fetch, FetchForm, Question, Rows, StoreForm
from .async_lane import AsyncLane
from .deadline import Deadline
from .errors import ConnectionLost, ServerRefused, Unavailable
from .local import WORTH_BYTES, async_unix_twin
from .requests import Found, Name, SessionInfo
from .store_options import StoreOptions

T = TypeVar("T")


class AsyncStoreClient(StoreOptions):
    """`StoreClient` for asyncio: the same methods, awaited.

    Calls take turns on one connection, in the order in which they were made. A call that is cancelled, or
    runs into its time limit, closes the connection; the next one opens another. Made and used in one event
    loop.

    Attributes:
        endpoint: Where the server is.
        buffers: The memory that fetched rows come in.
        files: What came out of the server's files, and why the rest did not.
    """

    def _prepare(self, timeout: float, silence: float, connect: float, prefer_unix: bool) -> None:
        self._may_change = prefer_unix and self.endpoint.may_have_unix_twin
        self._given = self.endpoint
        self._moved = 0
        self._timeout = timeout
        self._silence = silence
        self._connect = connect
        self._turns = asyncio.Lock()
        self._lane: AsyncLane | None = None

    async def ping(self) -> None:
        """See that the server answers.

        Raises:
            Unavailable: It does not. Every method raises this.
        """
        await self._ask(asking.ping())

    async def execute(self, *command: Word) -> object:
        """Any command: its reply, with bulk strings as bytes.

        Raises:
            ServerRefused: The server answered with an error. Every method raises this.
        """
        return await self._ask(Question(command, lambda reply: reply))

    # Sessions

    async def create(self, sid: Name, specs: LayerSpec | Sequence[LayerSpec]) -> int:
        """Make a session; see `StoreClient.create`."""
        return await self._ask(asking.create(sid, specs))

    async def store(
        self, sid: Name, layer: int, start: int, rows: Rows, form: StoreForm | None = None
    ) -> None:
        """Write rows; see `StoreClient.store`. They are not to be changed before it returns."""
        await self._ask(asking.store(sid, layer, start, rows, form))
        self._moved += rows.nbytes

    async def fetch(self, sid: Name, layer: int, ids: Sequence[int]) -> Rows:
        """Rows by id; see `StoreClient.fetch`."""
        (rows,) = await self._fetch(asking.fetch(sid, layer, ids))
        return rows

    async def fetch_range(self, sid: Name, layer: int, start: int, end: int, form: FetchForm = "F32") -> Rows:
        """Rows `start` to `end - 1` of one layer; see `StoreClient.fetch_range`."""
        (rows,) = await self._fetch(asking.fetch_range(sid, layer, start, end, form))
        return rows

    async def fetch_batch(
        self, sid: Name, start: int, end: int, layers: int | None = None, form: FetchForm = "F32"
    ) -> list[Rows]:
        """Rows of several layers; see `StoreClient.fetch_batch`."""
        return await self._fetch(asking.fetch_batch(sid, start, end, layers, form))

    async def info(self, sid: Name) -> SessionInfo:
        """Formats and rows of a session's layers; see `StoreClient.info`."""
        return await self._ask(asking.info(sid))

    async def drop(self, *sids: Name) -> int:
        """Remove sessions; returns how many there were."""
        return await self._ask(asking.drop(*sids))

    # Prefixes

    async def register(
        self,
        namespace: Name,
        keys: LayerSpec | Sequence[LayerSpec],
        values: Sequence[LayerSpec] | None = None,
        prefill_ms: int | None = None,
    ) -> None:
        """Make the two sessions of a prefix; see `StoreClient.register`."""
        await self._ask(asking.register(namespace, keys, values, prefill_ms))

    async def lookup(self, namespace: Name) -> bool:
        """Whether a prefix is stored; see `StoreClient.lookup`."""
        return await self._ask(asking.lookup(namespace))

    async def match(self, ids: Sequence[int], model: str = "", *, whole: bool = False) -> Found | None:
        """The longest stored prefix of some tokens; see `StoreClient.match`."""
        return await self._ask(asking.match(ids, model, whole=whole))

    async def fetch_all(
        self, namespace: Name, start: int, end: int, form: FetchForm = "F32"
    ) -> list[tuple[Rows, Rows]]:
        """Keys and values of every layer; see `StoreClient.fetch_all`."""
        return asking.by_layer(await self._fetch(asking.fetch_all(namespace, start, end, form)))

    async def drop_prefix(self, *namespaces: Name) -> int:
        """Remove prefixes; returns how many there were."""
        return await self._ask(asking.drop_prefix(*namespaces))

    async def prefix_info(self) -> dict[str, str]:
        """The server's figures about all prefixes."""
        return await self._ask(asking.prefix_info())

    # The object

    async def close(self) -> None:
        """Close the connection and give back the memory that is kept, once the calls made before have ended.

        A later call opens another.
        """
        async with self._turns:
            self._drop()
            self.buffers.release()

    async def __aenter__(self) -> AsyncStoreClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, question: Question[T]) -> T:
        async def work(lane: AsyncLane, deadline: Deadline) -> object:
            await lane.send(question.command, deadline)
            return await lane.receive(deadline)

        return question.read(await self._exchange(work))

    async def _fetch(self, fetch: Fetch) -> list[Rows]:
        async def work(lane: AsyncLane, deadline: Deadline) -> None:
            fetch.begin(self.buffers)
            question = self.files.question(fetch)
            if question is not None:
                await lane.send(question, deadline)
                answer = await lane.receive_any(deadline)
                # It is a copy of many bytes, in which the event loop has no part.
                if await asyncio.to_thread(self.files.take, fetch, answer):
                    return
            await lane.send(fetch.command, deadline)
            await lane.receive_rows(fetch.place, deadline)
            self.files.came(fetch)
            self._moved += fetch.nbytes

        await self._exchange(work)
        return fetch.result()

    async def _exchange(self, work: Callable[[AsyncLane, Deadline], Awaitable[T]]) -> T:
        """Run `work`, once more on a new connection if a kept one turns out to have ended."""
        async with self._turns:
            deadline = Deadline(self._timeout, self._silence)
            if self._may_change and self._moved >= WORTH_BYTES:
                await self._change_to_unix()
            if self._lane is not None and not self._lane.closed:
                try:
                    return await self._run(work, self._lane, deadline)
                except ConnectionLost:
                    pass
            try:
                self._lane = await self._connected(deadline)
            except ServerRefused as error:
                raise Unavailable(f"{self.endpoint} refuses this client: {error}") from error
            return await self._run(work, self._lane, deadline)

    async def _connected(self, deadline: Deadline) -> AsyncLane:
        if self.endpoint is not self._given:
            try:
                return await AsyncLane.open(self.endpoint, deadline.within(self._connect))
            except Unavailable:
                # The server that had the Unix socket is gone; the one at the address given may be another.
                self.endpoint, self._may_change = self._given, True
        return await AsyncLane.open(self.endpoint, deadline.within(self._connect))

    async def _change_to_unix(self) -> None:
        """Use the server's Unix socket from now on, if it has one; asked once."""
        lane, self._may_change = self._lane, False
        if lane is None or lane.closed:
            return
        try:
            found = await async_unix_twin(lane, self.endpoint, Deadline(self._connect, self._connect))
        except Unavailable:
            found = None
        finally:
            if lane.pending:
                self._drop()
        if found is not None:
            lane.close()
            self.endpoint, self._lane = found

    async def _run(
        self, work: Callable[[AsyncLane, Deadline], Awaitable[T]], lane: AsyncLane, deadline: Deadline
    ) -> T:
        try:
            return await work(lane, deadline)
        finally:
            # With a reply outstanding, the next call would take it for its own.
            if lane.pending:
                self._drop()

    def _drop(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()

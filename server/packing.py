"""Rows on their way in: from the socket, through a kernel if need be, into the segments of a write.

What a blob's elements are is declared after it (`FMT`), so its length on the header decides how it arrives:

- the bytes may be stored as they come: the socket writes into the segments (`Landing`);
- they can only be one element type: two chunks take turns, one fills while the other is packed (`Packing`);
- they may be fp16 or bf16: the same with a guess, and the bytes are kept until it is declared (`Spooling`).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from pionkv.kernels import Element, LayerSpec, NonFinite, Overflow, Refused, pack
from pionkv.storage import RowsWrite, StateWrite, Write

from .buffers import CHUNK_BYTES
from .receiving import Receiver

if TYPE_CHECKING:
    from .service import Service

CHUNKS = 2
"""Chunks of one connection: one fills while another is packed."""


class Input(Enum):
    """What the FMT of a V.STOREBATCH may say."""

    F32 = Element.F32
    F16 = Element.F16
    BF16 = Element.BF16
    RAW = None

    def row_bytes(self, spec: LayerSpec) -> int:
        """Bytes of one row on the wire."""
        return spec.row_bytes if self.value is None else spec.dim * self.value.itemsize

    def lands(self, spec: LayerSpec) -> bool:
        """Whether the bytes are stored as they come."""
        return self.value is None or self.value is spec.verbatim_element


INPUTS = {kind.name: kind for kind in Input}


class Fit(NamedTuple):
    """What a blob can be, by its length.

    Attributes:
        kinds: Its elements, whichever it will be declared to have.
        landing: Those of them that are stored as they come.
    """

    kinds: tuple[Input, ...]
    landing: tuple[Input, ...]


@lru_cache(maxsize=1024)
def fit_of(spec: LayerSpec, count: int, length: int) -> Fit:
    """What a blob of `length` bytes for `count` rows can be."""
    kinds = tuple(kind for kind in Input if kind.row_bytes(spec) * count == length)
    return Fit(kinds, tuple(kind for kind in kinds if kind.lands(spec)))


class Filler:
    """Fills the segments of a write from pieces of whole rows. Any one thread at a time."""

    def __init__(self, write: RowsWrite, kind: Input) -> None:
        self._write = write
        self._spec = write.spec
        self._element = None if kind.lands(write.spec) else kind.value
        self._source_size = kind.row_bytes(write.spec)
        self._size = write.spec.row_bytes
        self._segment = memoryview(b"")
        self._rows = 0

    def fill(self, source: memoryview) -> None:
        """Store all rows of `source`.

        Raises:
            NonFinite, Overflow: A value cannot be stored; the error names its row in the layer.
            NoSpace: The file system takes no more.
        """
        while source.nbytes:
            if not self._segment.nbytes:
                segment = self._write.next_segment()
                assert segment is not None, "more rows than the write was begun for"
                self._segment = segment
            rows = min(source.nbytes // self._source_size, self._segment.nbytes // self._size)
            self._store(source[: rows * self._source_size], rows, self._segment[: rows * self._size])
            source = source[rows * self._source_size :]
            self._segment = self._segment[rows * self._size :]
            self._rows += rows
        if self._rows == self._write.count:
            # Writes the last segment in this thread; the commit would do so in the event loop.
            self._write.next_segment()

    def _store(self, source: memoryview, rows: int, out: memoryview) -> None:
        if self._element is None:
            out[:] = source
            return
        try:
            pack(self._spec, source, self._element, rows, out)
        except Refused as error:
            raise moved(error, self._write.start + self._rows) from None


def moved(error: Refused, rows: int) -> Refused:
    """The same refusal with `rows` added to its row."""
    if isinstance(error, Overflow):
        return Overflow(error.row + rows, error.element, error.value, error.limit)
    return NonFinite(error.row + rows, error.element, error.value)


class StateReceiver(Receiver):
    """Receives a state blob: the socket writes into the segments."""

    def __init__(self, write: StateWrite, length: int) -> None:
        self.length = length
        self._write = write

    def next_buffer(self, remaining: int) -> memoryview | None:
        """The next segment."""
        return self._write.next_segment()

    def commit(self) -> None:
        """Make the state visible."""
        self._write.commit()

    def close(self) -> None:
        """Undo what was not committed."""
        self._write.abort()


class StoreReceiver(Receiver):
    """Receives the blob of one V.STOREBATCH; `finish` makes its rows visible.

    Attributes:
        stored: Format and dim of the layer when the blob began; where that changes, nothing is published.
        fit: What the blob can be, by its length.
        target: Where the rows go, as it was when the blob began.
    """

    fit: Fit
    target: object = None

    def __init__(self, service: Service, write: RowsWrite, stored: LayerSpec, length: int, fit: Fit) -> None:
        self.length = length
        self.stored = stored
        self.fit = fit
        self._service = service
        self._write = write

    @property
    def rows(self) -> int:
        """How many rows it is for."""
        return self._write.count

    def finish_now(self, declared: Input) -> bool:
        """Publish the rows if nothing is left to be done with them; whether so. Raises as `finish`."""
        return False

    @abstractmethod
    async def _complete(self, declared: Input) -> None:
        """The body is complete and was declared: have all rows in the write."""

    async def finish(self, declared: Input) -> None:
        """Publish the rows. `declared` fits the length.

        Raises:
            NonFinite, Overflow: A value cannot be stored; nothing is published.
            StorageError: The write cannot be committed any more.
        """
        await self._complete(declared)
        self._write.commit()

    def close(self) -> None:
        """Undo what was not committed."""
        self._write.abort()

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await self._service.loop.run_in_executor(self._service.threads, work)


class Landing(StoreReceiver):
    """The socket writes into the segments. If the declaration differs, rows are recoded before the commit."""

    _write: Write

    def __init__(self, service: Service, write: Write, length: int, fit: Fit) -> None:
        super().__init__(service, write, write.spec, length, fit)

    def next_buffer(self, remaining: int) -> memoryview | None:
        """The next segment."""
        return self._write.next_segment()

    def finish_now(self, declared: Input) -> bool:
        """As `StoreReceiver`: they are stored as they came, unless the declaration differs."""
        if declared not in self.fit.landing:
            return False
        self._write.commit()
        return True

    async def _complete(self, declared: Input) -> None:
        if declared not in self.fit.landing:
            await self._in_thread(lambda: self._recode(declared))

    def _recode(self, declared: Input) -> None:
        """Rows as they came and rows as they are stored have one size here."""
        element, spec, start = declared.value, self._write.spec, self._write.start
        assert element is not None

        def recode(first: int, rows: memoryview) -> None:
            try:
                pack(spec, bytes(rows), element, rows.nbytes // spec.row_bytes, rows)
            except Refused as error:
                raise moved(error, start + first) from None

        self._write.rewrite(recode)


class Packing(StoreReceiver):
    """Chunks take turns between the socket and a packing thread, which packs them in order."""

    def __init__(
        self,
        service: Service,
        write: RowsWrite,
        stored: LayerSpec,
        length: int,
        fit: Fit,
        kind: Input,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(service, write, stored, length, fit)
        self._kind = kind
        self._wake = wake
        self._filler = Filler(write, kind)
        self._row_size = kind.row_bytes(write.spec)
        self._filling: memoryview | None = None
        self._filled: deque[memoryview] = deque()
        self._job: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._closed = False
        self._free: list[memoryview] = []
        self._may_take = CHUNKS

    def _take(self) -> memoryview:
        """A chunk more; the second one only when the first is not packed in time."""
        return self._service.chunks.take()

    def _give_all(self) -> None:
        for chunk in self._free:
            self._service.chunks.give(chunk)

    def next_buffer(self, remaining: int) -> memoryview | None:
        """A chunk for whole rows; None while all of them wait for the thread."""
        self._submit()
        if not self._free:
            if not self._may_take:
                return None
            self._may_take -= 1
            self._free.append(self._take())
        self._filling = self._cut(self._free.pop(), remaining)
        return self._filling

    def _cut(self, chunk: memoryview, remaining: int) -> memoryview:
        return chunk[: min(remaining, chunk.nbytes // self._row_size * self._row_size)]

    def _submit(self) -> None:
        """Queue the chunk that the socket has filled."""
        if self._filling is not None:
            self._filled.append(self._filling)
            self._filling = None
            self._start()

    def _start(self) -> None:
        """Have the thread pack the next chunk, if it is idle; after an error chunks are only drained."""
        while self._job is None and self._filled:
            if self._error is not None:
                self._free_again(self._filled.popleft())
                continue
            service = self._service
            self._job = service.loop.run_in_executor(service.threads, self._filler.fill, self._filled[0])
            self._job.add_done_callback(self._packed)

    def _packed(self, job: asyncio.Future[None]) -> None:
        self._job = None
        self._error = self._error or job.exception()
        self._free_again(self._filled.popleft())
        if self._closed:
            self._release()
            return
        self._start()
        self._wake()

    def _free_again(self, chunk: memoryview) -> None:
        self._free.append(memoryview(chunk.obj))

    async def _all_packed(self) -> None:
        self._submit()
        while self._job is not None:
            await asyncio.wait((self._job,))

    async def _complete(self, declared: Input) -> None:
        await self._all_packed()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Undo what was not committed, once the thread does not write to it any more."""
        self._closed = True
        if self._job is None:
            self._release()

    def _release(self) -> None:
        if self._filling is not None:
            self._free_again(self._filling)
        while self._filled:
            self._free_again(self._filled.popleft())
        self._give_all()
        self._write.abort()


class Spooling(Packing):
    """Elements of two bytes: packed as one type while they arrive, and kept in case it is the other."""

    def __init__(
        self,
        service: Service,
        write: RowsWrite,
        begin: Callable[[], RowsWrite],
        stored: LayerSpec,
        length: int,
        fit: Fit,
        guess: Input,
        wake: Callable[[], None],
    ) -> None:
        self._spool = service.spools.take(length)
        self._spooled = 0
        self._begin = begin
        super().__init__(service, write, stored, length, fit, guess, wake)

    def _take(self) -> memoryview:
        return memoryview(b"")

    def _give_all(self) -> None:
        self._service.spools.give(self._spool)

    def _free_again(self, chunk: memoryview) -> None:
        self._free.append(memoryview(b""))

    def _cut(self, chunk: memoryview, remaining: int) -> memoryview:
        """The next piece of the spool; the free chunks only limit how many pieces wait for the thread."""
        start = self._spooled
        self._spooled += min(remaining, CHUNK_BYTES // self._row_size * self._row_size)
        return self._spool[start : self._spooled]

    async def _complete(self, declared: Input) -> None:
        if declared is self._kind:
            await super()._complete(declared)
            return
        await self._all_packed()
        self._write.abort()
        self._write = self._begin()
        filler = Filler(self._write, declared)
        await self._in_thread(lambda: filler.fill(self._spool[: self.length]))

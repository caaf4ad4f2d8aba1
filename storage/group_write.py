"""Writing rows of a layer whose format codes groups of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
from pionkv.kernels import Element, LayerSpec, NonFinite, pack
from pionkv.kernels.formats import GROUP_TOKENS

from .buffers import WINDOW_BYTES
from .catalog import Writer
from .engine import Engine
from .errors import Stale, WriteClosed
from .extents import Extent, Extents, cut
from .filling import PageWrite, Pending
from .grouping import closing
from .open_pages import OpenPage
from .records import SessionRecord
from .runs import View, runs_of
from .units import live_session, replace_session

PageFor = Callable[[int, bool], OpenPage]
"""(rows, whether they are not coded yet) -> an open page with room for them."""

_EXPONENT = np.uint16(0x7C00)


class _Part(PageWrite):
    """The rows of a write that go into one region."""

    _room_left = memoryview(b"")

    def put(self, data: memoryview) -> None:
        """Go on with these bytes of whole rows."""
        while data.nbytes:
            if not self._room_left.nbytes:
                segment = self.next_segment()
                assert segment is not None, "more rows than there is room for"
                self._room_left = segment
            size = min(data.nbytes, self._room_left.nbytes)
            self._room_left[:size], data = data[:size], data[size:]
            self._room_left = self._room_left[size:]

    @property
    def run(self) -> Extent:
        """Where the rows are."""
        return self._page.number, self._page_row, self.count

    def _check(self, writer: Writer) -> None:
        """The write as a whole is checked."""

    def _name_rows(self, writer: Writer) -> int:
        """The write as a whole is named."""
        return writer.generation


class PartedWrite(Pending):
    """Rows on their way into a layer that codes groups: closed groups, and the tail in a page of its own.

    Attributes:
        sid: The session.
        layer: The layer.
        start: First row.
        count: Number of rows.
    """

    def __init__(
        self, engine: Engine, session: SessionRecord, layer: int, start: int, count: int, held: Extents
    ) -> None:
        self._engine = engine
        self._unit = session.unit
        self._session = session
        self._held = held
        self._coded: _Part | None = None
        self._tail: _Part | None = None
        self.sid = session.sid
        self.layer = layer
        self.start = start
        self.count = count

    @property
    def pages(self) -> tuple[OpenPage, ...]:
        """The pages it writes to."""
        return tuple(page for part in self._parts() for page in part.pages)

    @property
    @abstractmethod
    def result(self) -> Extents:
        """The layer's extents with the rows."""

    def to_disk(self) -> None:
        """As `PageWrite.to_disk`."""
        self._finish()

    def keep_tails(self) -> None:
        """Let the next rows go on with the last digest pieces."""
        for part in self._parts():
            part.keep_tails()

    def _finish(self) -> None:
        self.seal()
        for part in self._parts():
            part.to_disk()

    def _publish(self, writer: Writer) -> int:
        session = live_session(writer, self.sid, self._session.slot, self.layer, self.start)
        if session.extents_of(self.layer) != self._held:
            raise Stale(self.sid)
        self._engine.check_quarantine(writer, self._unit)
        self._account(writer)
        replace_session(writer, session, session.with_layer(self.layer, self.result, writer.generation))
        return writer.generation

    def _account(self, writer: Writer) -> None:
        for part in self._parts():
            part._account(writer)

    def _published(self) -> None:
        for part in self._parts():
            part._published()
        self._close()

    def _undo(self) -> None:
        for part in self._parts():
            part.abort()

    def _make_parts(self, page_for: PageFor, coded: int, tail: int) -> None:
        """Find room for so many rows of groups, and so many after them."""
        try:
            self._coded = self._part(page_for, coded, tail=False) if coded else None
            self._tail = self._part(page_for, tail, tail=True) if tail else None
        except BaseException:
            self._undo()
            raise

    def _part(self, page_for: PageFor, count: int, *, tail: bool) -> _Part:
        session = self._session
        page = page_for(count, tail)
        return _Part(self._engine, session.unit, session.sid, page, self.layer, session.side, count)

    def _parts(self) -> tuple[_Part, ...]:
        return tuple(part for part in (self._coded, self._tail) if part is not None)


class GroupWrite(PartedWrite):
    """Rows on their way into a layer that codes groups; filled as fp16 rows. See `Write`.

    Attributes:
        spec: Format and dim of the rows as they are filled.
        nbytes: Bytes of all segments together.
    """

    def __init__(
        self,
        engine: Engine,
        session: SessionRecord,
        layer: int,
        start: int,
        count: int,
        held: Extents,
        page_for: PageFor,
        view: View,
        *,
        last: bool = False,
    ) -> None:
        super().__init__(engine, session, layer, start, count, held)
        self._coded_spec: LayerSpec = session.schema.layer(layer)
        self.spec: LayerSpec = self._coded_spec.wire
        self.nbytes = count * self.spec.row_bytes
        base = cut(held, start) if last else held
        self._closing = closing(self._coded_spec, base, layer, start, count)
        self._open_rows = b""
        self._left_to_code = self._closing.coded
        self._again = runs_of(self._coded_spec, self._closing.reread, view)
        self._make_parts(page_for, self._closing.coded, count - self._closing.new)
        self._window = engine.windows.take()
        self._filling = self._done = 0
        self._sealed = False

    def next_segment(self) -> memoryview | None:
        """As `PageWrite.next_segment`.

        Raises:
            NonFinite: A value filled into the segment before is no number.
        """
        if not self._open:
            raise WriteClosed
        self._flush()
        size = self.spec.row_bytes
        rows = min(self.count - self._done, WINDOW_BYTES // size)
        if not rows:
            return None
        self._filling = rows
        return memoryview(self._window)[: rows * size]

    def seal(self) -> None:
        """As `PageWrite.seal`. Raises `NonFinite`, too."""
        if not self._open:
            raise WriteClosed
        self._flush()
        if self._done != self.count:
            raise WriteClosed
        for part in self._parts():
            part.seal()
        if not self._sealed:
            self._sealed = True
            self._engine.windows.give_back(self._window)

    @property
    def result(self) -> Extents:
        """The layer's extents with the rows."""
        coded, tail = (None if part is None else part.run for part in (self._coded, self._tail))
        return self._closing.result(coded, tail)

    def _flush(self) -> None:
        """Take over the rows that were filled."""
        rows, self._filling = self._filling, 0
        if rows:
            data = memoryview(self._window)[: rows * self.spec.row_bytes]
            self._check_finite(data)
            self._take(data)
            self._done += rows

    def _take(self, data: memoryview) -> None:
        for run in self._again:
            self._code(run.data)
        self._again = []
        size = min(data.nbytes, self._left_to_code * self.spec.row_bytes)
        self._code(data[:size])
        if self._tail is not None:
            self._tail.put(data[size:])

    def _code(self, data: memoryview) -> None:
        """Code the groups that these fp16 rows complete."""
        if not data.nbytes or self._coded is None:
            return
        size = self.spec.row_bytes
        self._left_to_code -= data.nbytes // size
        ready = self._open_rows + data
        rows = len(ready) // size // GROUP_TOKENS * GROUP_TOKENS
        packed = memoryview(bytearray(rows * self._coded_spec.row_bytes))
        pack(self._coded_spec, ready, Element.F16, rows, packed)
        self._coded.put(packed)
        self._open_rows = ready[rows * size :]

    def _check_finite(self, data: memoryview) -> None:
        words = np.frombuffer(data, "<u2")
        bad = (words & _EXPONENT) == _EXPONENT
        if bad.any():
            row, element = divmod(int(bad.argmax()), self.spec.dim)
            value = float(words.view("<f2")[row * self.spec.dim + element])
            raise NonFinite(self.start + self._done + row, element, value)

    def _close(self) -> None:
        self._open = False
        if not self._sealed:
            self._engine.windows.give_back(self._window)

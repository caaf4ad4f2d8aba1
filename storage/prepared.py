"""What is on its way into a transaction: rows and states, which nobody else sees when they are committed."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import xxhash

from .errors import TransactionDead
from .extents import Extents
from .filling import Pending
from .group_write import GroupWrite, PageFor
from .open_pages import OpenPage, Tail
from .records import SessionRecord
from .runs import View
from .states import StateWrite
from .stored_write import StoredRuns, StoredWrite
from .write import Write

if TYPE_CHECKING:
    from .transactions import Transaction

Place = tuple[int, int]
"""Layer and side, which sort as k0 v0 k1 v1 …"""


class _Prepared(Pending):
    """On its way into a transaction: `commit` makes it a part of that, for nobody else to see."""

    _transaction: Transaction
    _prepared = False

    def to_disk(self) -> None:
        """Nothing: the transaction brings its pages to the disk before it is published."""

    def commit(self) -> int:
        """Add it to the transaction; the generation that is bound to.

        Raises:
            TransactionDead: It has ended meanwhile; the write is aborted.
            WriteClosed: Not all rows were filled.
        """
        if self._transaction.reason:
            self.abort()
            raise TransactionDead(self._transaction.reason)
        self.seal()
        self._prepared = True
        # The pages are the transaction's own: the next rows may go on with the last pieces.
        self.keep_tails()
        self._add()
        return self._transaction.base.generation

    def abort(self) -> None:
        """Give everything back, unless it is a part of the transaction: then it ends with that."""
        if not self._prepared:
            super().abort()

    def discard(self) -> None:
        """The transaction has ended."""
        super().abort()

    @abstractmethod
    def _add(self) -> None:
        """Hand it to the transaction."""


class PreparedWrite(_Prepared, Write):
    """Rows on their way into a transaction."""

    def __init__(
        self,
        transaction: Transaction,
        session: SessionRecord,
        page: OpenPage,
        layer: int,
        start: int,
        count: int,
    ) -> None:
        self._transaction = transaction
        self.place: Place = (layer, session.side)
        self.hasher = xxhash.xxh3_64()
        super().__init__(transaction.engine, session, page, layer, start, count)

    def _add(self) -> None:
        self._transaction.add(self, (self._page.number, self._page_row, self.count))

    def _first_tail(self) -> Tail:
        """The rows are filled from the first one on, maybe anew."""
        self.hasher = self._transaction.hashers[self.place].copy()
        return super()._first_tail()

    def _flush(self) -> None:
        self.hasher.update(memoryview(self._window)[: self._filling * self._row_bytes])
        super()._flush()


class PreparedGroupWrite(_Prepared, GroupWrite):
    """Rows on their way into a layer of a transaction that codes groups."""

    def __init__(
        self,
        transaction: Transaction,
        session: SessionRecord,
        layer: int,
        start: int,
        count: int,
        held: Extents,
        page_for: PageFor,
        view: View,
    ) -> None:
        self._transaction = transaction
        self.place: Place = (layer, session.side)
        self.hasher = transaction.hashers[self.place].copy()
        super().__init__(transaction.engine, session, layer, start, count, held, page_for, view)

    def _add(self) -> None:
        self._transaction.replace(self, self.result)

    def _take(self, data: memoryview) -> None:
        self.hasher.update(data)
        super()._take(data)


class PreparedStored(_Prepared, StoredWrite):
    """A whole layer of a transaction on its way, as it was stored elsewhere."""

    def __init__(
        self,
        transaction: Transaction,
        session: SessionRecord,
        layer: int,
        runs: StoredRuns,
        page_for: PageFor,
    ) -> None:
        self._transaction = transaction
        self.place: Place = (layer, session.side)
        self.hasher = xxhash.xxh3_64()
        self._filled = memoryview(b"")
        super().__init__(transaction.engine, session, layer, runs, page_for)

    def next_segment(self) -> memoryview | None:
        """As `PageWrite.next_segment`."""
        self._hash()
        segment = super().next_segment()
        if segment is not None:
            self._filled = segment
        return segment

    def seal(self) -> None:
        """As `PageWrite.seal`."""
        self._hash()
        super().seal()

    def _hash(self) -> None:
        self.hasher.update(self._filled)
        self._filled = memoryview(b"")

    def _add(self) -> None:
        self._transaction.replace(self, self.result)


class PreparedState(_Prepared, StateWrite):
    """A state on its way into a transaction."""

    def __init__(self, transaction: Transaction, page: OpenPage, number: int, length: int) -> None:
        self._transaction = transaction
        self.number = number
        super().__init__(transaction.engine, transaction.plan.namespace, page, number, length)

    def _add(self) -> None:
        self._transaction.add_state(self)

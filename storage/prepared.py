"""What is on its way into a transaction: rows and states, which nobody else sees when they are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from .errors import TransactionDead
from .open_pages import OpenPage, Tail
from .records import SessionRecord
from .states import StateWrite
from .write import Write

if TYPE_CHECKING:
    from .transactions import Transaction

Place = tuple[int, int]
"""Layer and side, which sort as k0 v0 k1 v1 …"""


class PreparedWrite(Write):
    """Rows on their way into a transaction: `commit` makes them part of it, for nobody else to see."""

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
        self._place = (layer, session.side)
        self._prepared = False
        self.hasher = xxhash.xxh3_64()
        super().__init__(transaction.engine, session, page, layer, start, count)

    @property
    def place(self) -> Place:
        """Layer and side."""
        return self._place

    def to_disk(self) -> None:
        """Nothing: the transaction brings its pages to the disk before it is published."""

    def commit(self) -> int:
        """Add the rows to the transaction; the generation it is bound to.

        Raises:
            TransactionDead: It has ended meanwhile; the write is aborted.
            WriteClosed: Not all rows were filled.
        """
        _seal(self, self._transaction)
        self._prepared = True
        # The page is the transaction's own: the next rows may go on with the last piece.
        self._page.tails[self._region] = self._tail
        self._transaction.add(self, (self._page.number, self._page_row, self.count))
        return self._transaction.base.generation

    def abort(self) -> None:
        """Give everything back, unless the rows are part of the transaction: then they end with it."""
        if not self._prepared:
            super().abort()

    def discard(self) -> None:
        """The transaction has ended."""
        super().abort()

    def _first_tail(self) -> Tail:
        """The rows are filled from the first one on, maybe anew."""
        self.hasher = self._transaction.hashers[self._place].copy()
        return super()._first_tail()

    def _flush(self) -> None:
        self.hasher.update(memoryview(self._window)[: self._filling * self._row_bytes])
        super()._flush()


class PreparedState(StateWrite):
    """A state on its way into a transaction. See `PreparedWrite`."""

    def __init__(self, transaction: Transaction, page: OpenPage, number: int, length: int) -> None:
        self._transaction = transaction
        self._prepared = False
        self.number = number
        super().__init__(transaction.engine, transaction.plan.namespace, page, number, length)

    def commit(self) -> int:
        """Add the state to the transaction; the generation it is bound to. Raises as `PreparedWrite`."""
        _seal(self, self._transaction)
        self._prepared = True
        self._transaction.add_state(self)
        return self._transaction.base.generation

    def abort(self) -> None:
        """Give everything back, unless the state is part of the transaction."""
        if not self._prepared:
            super().abort()

    def discard(self) -> None:
        """The transaction has ended."""
        super().abort()


def _seal(write: PreparedWrite | PreparedState, transaction: Transaction) -> None:
    if transaction.reason:
        write.abort()
        raise TransactionDead(transaction.reason)
    write.seal()

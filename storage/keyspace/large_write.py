"""Large strings on their way in."""

from __future__ import annotations

from .. import refs
from ..accounts import tenant_of
from ..catalog import Writer
from ..digest import encode_piece
from ..engine import Engine
from ..filling import PageWrite
from ..options import Durability
from ..page import PageKind, PageLayout
from . import large
from .access import KeyWriter
from .entry import Entry


class LargeWrite(PageWrite):
    """A large string on its way in: fill the segments in order, then give it to `strings.put`; or `abort`.

    Attributes:
        nbytes: Its length.
    """

    def __init__(self, engine: Engine, place: bytes, length: int, tenant: bytes) -> None:
        page = engine.pages.create(place, PageLayout(PageKind.STATE, length, {}))
        try:
            super().__init__(engine, place, place, page, 0, 0, length, tenant)
        except BaseException:
            engine.pages.discard(page)
            raise

    @property
    def page(self) -> int:
        """The number of its page."""
        return self._page.number

    @property
    def reserved(self) -> int:
        """Bytes it has reserved of the budget."""
        return self._reserved

    def fill(self, value: bytes | memoryview) -> None:
        """Take the whole value from memory. Raises `NoSpace`."""
        source = memoryview(value)
        while (segment := self.next_segment()) is not None:
            segment[:] = source[: len(segment)]
            source = source[len(segment) :]

    def read_back(self) -> bytes:
        """The value, from a page that no transaction has named yet."""
        data = bytearray(self.nbytes)
        self._page.read(memoryview(data), self._base)
        return bytes(data)

    def finish(self) -> None:
        """Have every byte in the page. Raises `NoSpace`, `WriteClosed`."""
        self._finish()

    def name(self, writer: Writer) -> None:
        """Make the page part of the catalog, with one reference. Raises `OutOfBudget`."""
        self._charge_page(writer, writer.page(self.page), self._page.base + self._charge)
        if self._engine.options.durability is not Durability.ALWAYS:
            writer.mark_unsynced(self.page)
        for piece in self._pieces:
            writer.put("digests", *encode_piece(self.page, self._region, piece))
        refs.acquire(writer, self.page)

    def committed(self) -> None:
        """The transaction that named the page stands."""
        self._published()

    def _check(self, writer: Writer) -> None:
        """A value replaces whatever there is."""

    def _name_rows(self, writer: Writer) -> int:
        self.name(writer)
        return writer.generation


def store(keys: KeyWriter, entry: Entry, value: bytes | memoryview | LargeWrite) -> None:
    """Make a large string the value of a key that has none.

    Raises:
        OutOfBudget: There is no room for it. The transaction has to be given up.
        NoSpace: The file system takes no more.
    """
    if not isinstance(value, LargeWrite):
        write = LargeWrite(keys.engine, entry.place, len(value), tenant_of(entry.name))
        keys.made.append(write)
        keys.writer.changes += 1
        write.fill(value)
        write.finish()
        value = write
    value.name(keys.writer)
    keys.named.append(value)
    large.put(keys.writer, entry, value.page)

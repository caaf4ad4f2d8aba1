"""Large strings: each in a page of its own, so that neither the catalog nor a process' memory carries it.

A string of `LARGE_BYTES` or more has a record in the table `large` instead of bytes in `values`. Its page
is written once and never changed: a new value is a new page, a copy is one reference more. Pages count in
the budget by themselves, a key's `cost` leaves them out.

A checkpoint may have to be returned to after a machine crash, and its pages must still be there then. So a
page that one may name is not let go of at once: it is noted in `dead` until a later checkpoint stands.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from typing import NamedTuple, Self

from .. import refs
from ..catalog import CHECKPOINT_BEGUN, Reader, Writer
from ..page import PageKind, PageLayout, align
from .entry import PLACE_BYTES, Entry, Kind

LARGE_BYTES = 64 << 10

_RECORD = struct.Struct(f">QQ{PLACE_BYTES}s")
RECORD_BYTES = _RECORD.size


class LargeValue(NamedTuple):
    """Where a large string is: its page, the transaction that made it, and the place of its key."""

    page: int
    born: int
    place: bytes

    def encode(self) -> bytes:
        """The stored form."""
        return _RECORD.pack(*self)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """The record of a stored form."""
        return cls(*_RECORD.unpack(raw))


def disk_bytes(length: int) -> int:
    """Bytes of disk that a large string takes."""
    layout = PageLayout(PageKind.STATE, length, {})
    return layout.header_bytes + align(length)


def is_large(entry: Entry) -> bool:
    """Whether a key's value is in a page."""
    return entry.kind is Kind.STRING and entry.count >= LARGE_BYTES


def find(reader: Reader, entry: Entry) -> LargeValue:
    """Where the large string of a key is."""
    raw = reader.get("large", entry.key)
    assert raw is not None
    return LargeValue.decode(raw)


def put(writer: Writer, entry: Entry, page: int) -> None:
    """Let a page that has a reference for it be the value of a key."""
    place = entry.place
    writer.put("large", entry.key, LargeValue(page, int(writer.txn.id()), place).encode())


def share(writer: Writer, entry: Entry, twin: Entry) -> None:
    """Let a key have the value of another."""
    page = find(writer, entry).page
    refs.acquire(writer, page)
    put(writer, twin, page)


def move(writer: Writer, entry: Entry) -> None:
    """The key has another place."""
    writer.put("large", entry.key, find(writer, entry)._replace(place=entry.place).encode())


def release(writer: Writer, key: bytes) -> None:
    """Let go of the large string with this id."""
    raw = writer.get("large", key)
    assert raw is not None
    value = LargeValue.decode(raw)
    writer.delete("large", key)
    begun = writer.get("meta", CHECKPOINT_BEGUN)
    if begun is None or value.born > int.from_bytes(begun, "big"):
        refs.release(writer, value.page)
    else:
        died = int(writer.txn.id()).to_bytes(8, "big")
        writer.put("dead", died + key, value.page.to_bytes(8, "big"))


def dead(reader: Reader, checkpoint: int) -> Iterator[tuple[bytes, int]]:
    """Keys and pages of values that no checkpoint from this one on names."""
    for key, page in reader.scan("dead"):
        if int.from_bytes(key[:8], "big") > checkpoint:
            return
        yield key, int.from_bytes(page, "big")


def places_of(reader: Reader, pages: Container[int]) -> list[bytes]:
    """The places of keys whose value is in one of these pages."""
    values = (LargeValue.decode(raw) for _, raw in reader.scan("large"))
    return [value.place for value in values if value.page in pages]

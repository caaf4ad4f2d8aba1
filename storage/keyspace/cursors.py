"""Cursors beyond what a `Reader` offers: backwards, over keys alone, and through whole tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ..catalog import Reader, Writer


def scan_back(reader: Reader, table: str, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values below `end`, from the greatest down."""
    with reader.txn.cursor(db=reader.catalog.tables[table]) as cursor:
        there = cursor.prev() if cursor.set_range(end) else cursor.last()
        while there:
            yield cursor.item()
            there = cursor.prev()


def scan_keys(reader: Reader, table: str, start: bytes, end: bytes) -> Iterator[bytes]:
    """Keys from `start` on, below `end`, in order."""
    with reader.txn.cursor(db=reader.catalog.tables[table]) as cursor:
        if cursor.set_range(start):
            for key in cursor.iternext(keys=True, values=False):
                if key >= end:
                    return
                yield key


def delete_some(writer: Writer, table: str, prefix: bytes, most: int) -> int:
    """Remove up to `most` keys that begin with the eight bytes `prefix`; how many it was."""
    end = (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
    gone = list(islice(scan_keys(writer, table, prefix, end), most))
    for key in gone:
        writer.delete(table, key)
    return len(gone)


def empty(writer: Writer, table: str) -> None:
    """Remove every key of a table."""
    writer.txn.drop(writer.catalog.tables[table], delete=False)

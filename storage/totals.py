"""Numbers about a whole store."""

from __future__ import annotations

from dataclasses import dataclass

from .engine import Engine


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """Store-wide numbers, those of all processes.

    Attributes:
        sessions: Sessions.
        namespaces: Units of eviction: prefixes and single sessions.
        pages: Page files.
        rows: Rows of all layers of all sessions.
        bytes: Disk taken by pages.
        max_bytes: The budget, or None.
        catalog_bytes: Size of the catalog's file.
        evictions: Units evicted since the directory was made.
        quarantined: Units quarantined since then.
    """

    sessions: int
    namespaces: int
    pages: int
    rows: int
    bytes: int
    max_bytes: int | None
    catalog_bytes: int
    evictions: int
    quarantined: int


def store_info(engine: Engine) -> StoreInfo:
    """See `Store.info`."""
    catalog = engine.catalog
    with catalog.snapshot() as reader:
        totals = reader.counters()
        counts = [reader.entries(table) for table in ("sessions", "namespaces", "pages")]
    return StoreInfo(
        sessions=counts[0],
        namespaces=counts[1],
        pages=counts[2],
        rows=totals.rows,
        bytes=totals.bytes,
        max_bytes=engine.options.max_bytes,
        catalog_bytes=catalog.file_bytes,
        evictions=totals.evictions,
        quarantined=totals.quarantined,
    )

"""Settings of a store. Every limit has its one place here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Durability(Enum):
    """What a machine crash may cost. A killed process loses nothing acknowledged in any of them."""

    NONE = "none"
    """Nothing is synced: after a machine crash the directory starts empty."""
    EVERYSEC = "everysec"
    """Synced by `Store.tick`: after a machine crash the store is as it was at the last sync."""
    ALWAYS = "always"
    """Synced before a call returns: after a machine crash everything acknowledged is there."""


MAP_BYTES = 1 << 38
"""Address space for the catalog. Memory and disk are taken as it grows, so this may be far more than there is
of both. It cannot be changed later: LMDB's binding ends every read transaction of the process then, and what
a machine crash falls back to is held by one (see checkpoint.py).
"""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings of a store; the defaults suit a server.

    Attributes:
        max_bytes: Budget of page bytes, all namespaces together; None for no budget.
        durability: What a machine crash may cost. All processes on a directory must agree.
        max_rows: Rows a layer may hold.
        max_layers: Layers a session may hold.
        max_name_bytes: Length of a session or namespace name.
        max_snapshots: Snapshots a session may hold at a time.
        catalog_map_bytes: Address space reserved for the catalog, which cannot grow beyond it; less where a
            process may not have so much.
        max_maps: Page maps (and so file handles) a process keeps for reading.
        max_open_pages: Pages a process keeps open for writing.
        worker: Number of this process among those that serve the directory; noted in what it publishes.
        tiered: Whether another tier holds prefixes, too: what it has goes first when room is needed, and it
            is to be told of drops.
    """

    max_bytes: int | None = None
    durability: Durability = Durability.EVERYSEC
    max_rows: int = 4_194_304
    max_layers: int = 1024
    max_name_bytes: int = 520
    max_snapshots: int = 16
    catalog_map_bytes: int = MAP_BYTES
    max_maps: int = 1024
    max_open_pages: int = 256
    worker: int = 0
    tiered: bool = False

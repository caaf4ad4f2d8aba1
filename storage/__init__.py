"""Schema, pages, catalog, eviction: where rows live and what is visible."""

from .errors import (
    BadRange,
    CatalogCorrupt,
    DirectoryError,
    Gap,
    LayerLimit,
    NameLimit,
    NamespaceExists,
    NoHandles,
    NoSpace,
    OutOfBudget,
    Quarantined,
    RowLimit,
    RowsNotStored,
    SchemaMismatch,
    SnapshotLimit,
    Stale,
    StorageError,
    StoreClosed,
    UnknownNamespace,
    UnknownSession,
    UnknownSnapshot,
    WriteClosed,
)
from .namespaces import SessionView
from .options import Durability, StoreOptions
from .prompts import MODEL_BYTES, Match
from .read import Location, Rows
from .records import NamespaceRecord
from .schema import Schema
from .states import StateWrite
from .store import Store, StoreInfo
from .write import Write

__all__ = [
    "BadRange",
    "CatalogCorrupt",
    "DirectoryError",
    "Durability",
    "Gap",
    "LayerLimit",
    "MODEL_BYTES",
    "Match",
    "Location",
    "NameLimit",
    "NamespaceExists",
    "NamespaceRecord",
    "NoHandles",
    "NoSpace",
    "OutOfBudget",
    "Quarantined",
    "RowLimit",
    "Rows",
    "RowsNotStored",
    "Schema",
    "SchemaMismatch",
    "SessionView",
    "SnapshotLimit",
    "Stale",
    "StateWrite",
    "StorageError",
    "Store",
    "StoreClosed",
    "StoreInfo",
    "StoreOptions",
    "UnknownNamespace",
    "UnknownSession",
    "UnknownSnapshot",
    "Write",
    "WriteClosed",
]

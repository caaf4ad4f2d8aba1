"""Schema, pages, catalog, eviction: where rows live and what is visible."""

from .errors import (
    BadRange,
    BeyondTokens,
    CatalogCorrupt,
    DirectoryError,
    Expired,
    Gap,
    Incomplete,
    LayerLimit,
    NameLimit,
    NamespaceExists,
    NoHandles,
    NoSpace,
    OutOfBudget,
    Overlap,
    Quarantined,
    RowLimit,
    RowsNotStored,
    SchemaMismatch,
    SnapshotLimit,
    Stale,
    StaleGeneration,
    StorageError,
    StoreClosed,
    TransactionDead,
    Uneven,
    UnknownNamespace,
    UnknownSession,
    UnknownSnapshot,
    WriteClosed,
)
from .namespaces import SessionView
from .options import Durability, StoreOptions
from .prompts import MODEL_BYTES, Match
from .read import Location, Rows
from .receipts import Receipt
from .records import NamespaceRecord
from .schema import Schema
from .states import StateWrite
from .store import Store, StoreInfo
from .transactions import PrefixPlan, Transaction
from .write import Write

__all__ = [
    "BadRange",
    "BeyondTokens",
    "CatalogCorrupt",
    "DirectoryError",
    "Durability",
    "Expired",
    "Gap",
    "Incomplete",
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
    "Overlap",
    "PrefixPlan",
    "Quarantined",
    "Receipt",
    "RowLimit",
    "Rows",
    "RowsNotStored",
    "Schema",
    "SchemaMismatch",
    "SessionView",
    "SnapshotLimit",
    "Stale",
    "StaleGeneration",
    "StateWrite",
    "StorageError",
    "Store",
    "StoreClosed",
    "StoreInfo",
    "StoreOptions",
    "Transaction",
    "TransactionDead",
    "Uneven",
    "UnknownNamespace",
    "UnknownSession",
    "UnknownSnapshot",
    "Write",
    "WriteClosed",
]

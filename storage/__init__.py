"""Schema, pages, catalog, eviction: where rows live and what is visible."""

from .accounts import EVERYTHING, LONGEST_TENANT, Account, Listing, tag_of, tenant_of
from .bases import PrefixPlan
from .claims import Answer as ClaimAnswer
from .errors import (
    BadOrder,
    BadRange,
    BeyondTokens,
    CatalogCorrupt,
    ClosedGroup,
    DirectoryError,
    Expired,
    Gap,
    Grouped,
    Immutable,
    Incompatible,
    Incomplete,
    LayerLimit,
    NameLimit,
    NamespaceExists,
    NoHandles,
    NoSpace,
    NothingPrepared,
    OutOfBudget,
    Overlap,
    OverQuota,
    Quarantined,
    RowLimit,
    RowsNotStored,
    SaveBusy,
    SaveExists,
    SchemaMismatch,
    SnapshotLimit,
    Stale,
    StaleGeneration,
    StateTwice,
    StorageError,
    StoreClosed,
    TransactionDead,
    Uneven,
    UnknownNamespace,
    UnknownSession,
    UnknownSnapshot,
    WriteClosed,
)
from .manifests import Admission
from .namespaces import SessionView
from .options import Durability, StoreOptions
from .places import Located, Location, Mapped
from .prompts import BLOCK as BOUNDARY_TOKENS
from .prompts import MODEL_BYTES, Match, boundaries
from .read import LayerState, Rows
from .receipts import Receipt
from .records import NamespaceRecord
from .runs import Run
from .save import Save
from .schema import Schema
from .states import StateWrite
from .states import fill as fill_state
from .store import Store
from .stored_write import StoredRuns
from .tier_calls import Image, Untold
from .totals import StoreInfo
from .transactions import Transaction
from .write import RowsWrite, Write

__all__ = [
    "Account",
    "Admission",
    "BOUNDARY_TOKENS",
    "boundaries",
    "BadOrder",
    "BadRange",
    "BeyondTokens",
    "CatalogCorrupt",
    "ClaimAnswer",
    "ClosedGroup",
    "DirectoryError",
    "Durability",
    "EVERYTHING",
    "Expired",
    "fill_state",
    "Gap",
    "Grouped",
    "Image",
    "Immutable",
    "Incompatible",
    "Incomplete",
    "LayerLimit",
    "LayerState",
    "Listing",
    "Located",
    "Location",
    "LONGEST_TENANT",
    "Mapped",
    "Match",
    "MODEL_BYTES",
    "NameLimit",
    "NamespaceExists",
    "NamespaceRecord",
    "NoHandles",
    "NoSpace",
    "NothingPrepared",
    "OutOfBudget",
    "Overlap",
    "OverQuota",
    "PrefixPlan",
    "Quarantined",
    "Receipt",
    "RowLimit",
    "Rows",
    "RowsWrite",
    "Run",
    "RowsNotStored",
    "Save",
    "SaveBusy",
    "SaveExists",
    "Schema",
    "SchemaMismatch",
    "SessionView",
    "SnapshotLimit",
    "Stale",
    "StaleGeneration",
    "StateTwice",
    "StateWrite",
    "StorageError",
    "StoredRuns",
    "Store",
    "StoreClosed",
    "StoreInfo",
    "StoreOptions",
    "tag_of",
    "tenant_of",
    "Transaction",
    "TransactionDead",
    "Uneven",
    "UnknownNamespace",
    "UnknownSession",
    "UnknownSnapshot",
    "Untold",
    "Write",
    "WriteClosed",
]

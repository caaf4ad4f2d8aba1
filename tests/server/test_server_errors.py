"""The one place where errors become replies."""

from __future__ import annotations

import inspect

import pytest
from pionkv import kernels
from pionkv.protocol.errors import CommandError
from pionkv.server.errors import describe
from pionkv.storage import errors as storage

TEXTS = [
    (CommandError("X", "y"), "X y"),
    (storage.UnknownSession(b"s"), "ERR session not found"),
    (storage.UnknownNamespace(b"n"), "ERR namespace not found"),
    (storage.NamespaceExists(b"n"), "ERR CMD: the namespace exists"),
    (storage.SchemaMismatch("dim", "1", "2"), "SCHEMAMISMATCH dim: stored 1, asked 2"),
    (storage.NameLimit(600, 512), "ERR CMD: name of 600 bytes (want 1..512)"),
    (storage.LayerLimit(9, 4), "ERR CMD: layer_id exceeds MAX_VS_LAYERS (9 is not within 0..3)"),
    (storage.RowLimit(9, 4), "ERR CMD failed (rows would end at 9, limit 4)"),
    (storage.BadRange(2, 1), "ERR CMD invalid range: end must exceed start (>=0)"),
    (storage.Gap(0, 3, 5), "ERR CMD: gap (layer holds 3 rows, start is 5)"),
    (
        storage.RowsNotStored(1, 2, 9, 3),
        "ERR CMD: rows 2..9 of layer 1 are not stored (layer holds 3)",
    ),
    (
        storage.OutOfBudget(10, 5),
        "OOM command not allowed when used memory > 'maxmemory' (10 bytes needed, budget 5).",
    ),
    (
        storage.OverQuota(b"team", 10, 3, 5),
        "OOM quota of tenant team exceeded (10 bytes needed beside 3 stored, max-bytes 5).",
    ),
    (storage.NoSpace("page 1"), "OOM no space left for page 1"),
    (storage.SaveBusy(), "BUSY CMD: another copy is being made"),
    (storage.SaveExists("a"), "ERR CMD: there is a copy 'a' already"),
    (storage.DirectoryError("/d", "why"), "ERR CMD failed (data directory /d: why)"),
    (storage.NoHandles(), "BUSY the server may open no more files"),
    (storage.StaleGeneration(b"n", 2, 1), "STALE CMD: generation is 2, asked 1"),
    (storage.Uneven(b"n"), "ERR CMD: the layers of the namespace do not hold the same rows"),
    (
        storage.ClosedGroup(1, 3, 64),
        "ERR CMD: rows 3..64 of layer 1 are in closed groups: truncate to 3, or write all that follow, too",
    ),
    (
        storage.Grouped("kivi4"),
        "ERR CMD: kivi4 codes rows in groups, which are no rows in a file: fetch them",
    ),
    (storage.Overlap(1, 4, 2), "ERR CMD: layer 1 has 4 rows already, start is 2"),
    (storage.StateTwice(3), "ERR CMD: the transaction has a state 3 already"),
    (storage.BeyondTokens(5, 4), "ERR CMD: 5 rows for 4 tokens"),
    (storage.Incomplete("K", 1, 2, 3), "ERR CMD: layer 1 of the K side has 2 of 3 rows"),
    (storage.NothingPrepared(), "ERR CMD: it has neither rows nor states"),
    (storage.BadOrder("why"), "ERR CMD: why"),
    (storage.Incompatible("dtype", "a", "b"), "INCOMPATIBLE dtype: stored a, asked b"),
    (storage.Immutable(b"n"), "ERR CMD: the namespace is immutable (fork it and change the fork)"),
    (storage.TransactionDead("why"), "TXNDEAD CMD: why"),
    (storage.Expired(b"n"), "EXPIRED CMD: the namespace has expired"),
    (storage.Stale(b"s"), "STALE CMD: the session changed meanwhile"),
    (storage.Quarantined(b"n", "digest"), "QUARANTINED CMD: digest"),
    (storage.UnknownSnapshot(b"s", 1), "ERR CMD: unknown snap_id for this session"),
    (storage.SnapshotLimit(16), "ERR CMD: no free snapshot slot (max 16 per session)"),
    (kernels.NonFinite(1, 2, float("nan")), "ERR CMD: non-finite value at row 1, element 2"),
    (kernels.Overflow(1, 2, 70000.0, 65504.0), "ERR CMD: value 70000 at row 1, element 2 is beyond 65504"),
    (kernels.FormatError("fp8: dim 3"), "ERR CMD: fp8: dim 3"),
    (ZeroDivisionError("secret"), "ERR CMD: internal error (ZeroDivisionError)"),
]


@pytest.mark.parametrize("error, text", TEXTS, ids=[type(error).__name__ for error, _ in TEXTS])
def test_text(error, text) -> None:
    assert " ".join(describe(error, "CMD")) == text


INTERNAL = {"StorageError", "StoreClosed", "WriteClosed", "PageGone", "PageCorrupt",
            "CatalogCorrupt", "OtherVersion", "OlderCatalog"}  # fmt: skip
"""What no client causes, or what ends the server's start."""


def test_every_error_of_storage_has_a_text() -> None:
    kinds = [kind for _, kind in inspect.getmembers(storage, inspect.isclass) if issubclass(kind, Exception)]
    covered = {type(error).__name__ for error, _ in TEXTS}
    assert {kind.__name__ for kind in kinds} - INTERNAL - covered == set()

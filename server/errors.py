"""Every error that is not a `CommandError` already, and the reply it becomes. The only such place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pionkv.kernels import errors as kernels
from pionkv.kernels.attention import AttentionError
from pionkv.protocol.errors import CommandError
from pionkv.storage import errors as storage
from pionkv.storage.keyspace import errors as keyspace

from .logs import logger

Described = tuple[str, str]
"""The code and the text of an error reply."""

_MAPPING: dict[type[Exception], Callable[[str, Any], Described]] = {
    storage.UnknownSession: lambda command, e: ("ERR", "session not found"),
    storage.UnknownNamespace: lambda command, e: ("ERR", "namespace not found"),
    storage.NamespaceExists: lambda command, e: ("ERR", f"{command}: the namespace exists"),
    storage.SchemaMismatch: lambda command, e: (
        "SCHEMAMISMATCH",
        f"{e.field}: stored {e.stored}, asked {e.asked}",
    ),
    storage.NameLimit: lambda command, e: (
        "ERR",
        f"{command}: name of {e.length} bytes (want 1..{e.limit})",
    ),
    storage.LayerLimit: lambda command, e: (
        "ERR",
        f"{command}: layer_id exceeds MAX_VS_LAYERS ({e.layer} is not within 0..{e.limit - 1})",
    ),
    storage.RowLimit: lambda command, e: (
        "ERR",
        f"{command} failed (rows would end at {e.end}, limit {e.limit})",
    ),
    storage.BadRange: lambda command, e: ("ERR", f"{command} invalid range: end must exceed start (>=0)"),
    storage.Gap: lambda command, e: (
        "ERR",
        f"{command}: gap (layer holds {e.rows} rows, start is {e.start})",
    ),
    storage.RowsNotStored: lambda command, e: (
        "ERR",
        f"{command}: rows {e.start}..{e.end} of layer {e.layer} are not stored (layer holds {e.rows})",
    ),
    storage.OverQuota: lambda command, e: (
        "OOM",
        f"quota of tenant {e.tenant.decode(errors='replace')} exceeded ({e.needed} bytes needed beside "
        f"{e.stored} stored, max-bytes {e.limit}).",
    ),
    storage.OutOfBudget: lambda command, e: (
        "OOM",
        f"command not allowed when used memory > 'maxmemory' ({e.needed} bytes needed, budget {e.limit}).",
    ),
    storage.NoSpace: lambda command, e: ("OOM", f"no space left for {e.where}"),
    storage.SaveBusy: lambda command, e: ("BUSY", f"{command}: another copy is being made"),
    storage.SaveExists: lambda command, e: ("ERR", f"{command}: there is a copy '{e.name}' already"),
    storage.DirectoryError: lambda command, e: ("ERR", f"{command} failed ({e})"),
    storage.NoHandles: lambda command, e: ("BUSY", "the server may open no more files"),
    storage.StaleGeneration: lambda command, e: (
        "STALE",
        f"{command}: generation is {e.stored}, asked {e.asked}",
    ),
    storage.Uneven: lambda command, e: (
        "ERR",
        f"{command}: the layers of the namespace do not hold the same rows",
    ),
    storage.ClosedGroup: lambda command, e: ("ERR", f"{command}: {e}"),
    storage.Grouped: lambda command, e: ("ERR", f"{command}: {e}"),
    storage.Overlap: lambda command, e: (
        "ERR",
        f"{command}: layer {e.layer} has {e.rows} rows already, start is {e.start}",
    ),
    storage.StateTwice: lambda command, e: (
        "ERR",
        f"{command}: the transaction has a state {e.number} already",
    ),
    storage.BeyondTokens: lambda command, e: ("ERR", f"{command}: {e.rows} rows for {e.tokens} tokens"),
    storage.NothingPrepared: lambda command, e: ("ERR", f"{command}: {e}"),
    storage.Incomplete: lambda command, e: (
        "ERR",
        f"{command}: layer {e.layer} of the {e.side} side has {e.rows} of {e.wanted} rows",
    ),
    storage.BadOrder: lambda command, e: ("ERR", f"{command}: {e.reason}"),
    storage.Incompatible: lambda command, e: (
        "INCOMPATIBLE",
        f"{e.field}: stored {e.stored}, asked {e.asked}",
    ),
    storage.Immutable: lambda command, e: (
        "ERR",
        f"{command}: the namespace is immutable (fork it and change the fork)",
    ),
    storage.TransactionDead: lambda command, e: ("TXNDEAD", f"{command}: {e.reason}"),
    storage.Expired: lambda command, e: ("EXPIRED", f"{command}: the namespace has expired"),
    storage.Stale: lambda command, e: ("STALE", f"{command}: the session changed meanwhile"),
    storage.Quarantined: lambda command, e: ("QUARANTINED", f"{command}: {e.reason}"),
    storage.UnknownSnapshot: lambda command, e: ("ERR", f"{command}: unknown snap_id for this session"),
    storage.SnapshotLimit: lambda command, e: (
        "ERR",
        f"{command}: no free snapshot slot (max {e.limit} per session)",
    ),
    keyspace.WrongType: lambda command, e: ("WRONGTYPE", str(e)),
    keyspace.KeyspaceError: lambda command, e: ("ERR", str(e)),
    kernels.NonFinite: lambda command, e: (
        "ERR",
        f"{command}: non-finite value at row {e.row}, element {e.element}",
    ),
    kernels.Overflow: lambda command, e: (
        "ERR",
        f"{command}: value {e.value:g} at row {e.row}, element {e.element} is beyond {e.limit:g}",
    ),
    AttentionError: lambda command, e: ("ERR", f"{command} failed ({e})"),
    kernels.FormatError: lambda command, e: ("ERR", f"{command}: {e}"),
}


def describe(error: BaseException, command: str) -> Described:
    """The code and text that answer `error`; one that nobody foresaw is logged with its traceback.

    Args:
        error: What a handler raised.
        command: The command's name, which many texts begin with.
    """
    if isinstance(error, CommandError):
        return error.code, error.message
    for kind in type(error).__mro__:
        if (text := _MAPPING.get(kind)) is not None:
            return text(command, error)
    logger().error("command failed", command=command, exc_info=error)
    return "ERR", f"{command}: internal error ({type(error).__name__})"

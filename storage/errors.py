"""What storage refuses, and why: every error carries its numbers as attributes."""

from __future__ import annotations


class StorageError(Exception):
    """Base of everything this package raises on purpose."""


class StoreClosed(StorageError):
    """The store was used after `close`."""

    def __init__(self) -> None:
        super().__init__("the store is closed")


class DirectoryError(StorageError):
    """The data directory cannot be used: missing rights, a foreign or newer layout, no file handles."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"data directory {path}: {reason}")
        self.path = path
        self.reason = reason


class OlderCatalog(DirectoryError):
    """An older build made the catalog: a table is not in it yet, and who only reads cannot add it."""

    def __init__(self, path: str, table: str) -> None:
        super().__init__(path, f"an older pionkv made it, and its table '{table}' is not there yet")


class UnknownSession(StorageError):
    """No session of this name."""

    def __init__(self, sid: bytes) -> None:
        super().__init__(f"session {sid!r} not found")
        self.sid = sid


class UnknownNamespace(StorageError):
    """No namespace of this name."""

    def __init__(self, namespace: bytes) -> None:
        super().__init__(f"namespace {namespace!r} not found")
        self.namespace = namespace


class NamespaceExists(StorageError):
    """A namespace that must be new is there already."""

    def __init__(self, namespace: bytes) -> None:
        super().__init__(f"namespace {namespace!r} exists")
        self.namespace = namespace


class SchemaMismatch(StorageError):
    """The session exists with another schema; `field` is the first one that differs."""

    def __init__(self, field: str, stored: str, asked: str) -> None:
        super().__init__(f"{field}: stored {stored}, asked {asked}")
        self.field = field
        self.stored = stored
        self.asked = asked


class NameLimit(StorageError):
    """A name is empty or too long."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"name of {length} bytes (1..{limit})")
        self.length = length
        self.limit = limit


class LayerLimit(StorageError):
    """A layer number lies outside the schema or the setting; `limit` is the number of layers allowed."""

    def __init__(self, layer: int, limit: int) -> None:
        super().__init__(f"layer {layer} is outside 0..{limit - 1}")
        self.layer = layer
        self.limit = limit


class RowLimit(StorageError):
    """A layer would hold more rows than the setting allows."""

    def __init__(self, end: int, limit: int) -> None:
        super().__init__(f"rows would end at {end} (limit {limit})")
        self.end = end
        self.limit = limit


class BadRange(StorageError):
    """A range is empty, reversed or negative."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(f"rows {start}..{end} are no range")
        self.start = start
        self.end = end


class Gap(StorageError):
    """A write would leave rows between the layer's end and its start unwritten."""

    def __init__(self, layer: int, rows: int, start: int) -> None:
        super().__init__(f"layer {layer} holds {rows} rows, start is {start}")
        self.layer = layer
        self.rows = rows
        self.start = start


class RowsNotStored(StorageError):
    """A read asks for rows that no write has published."""

    def __init__(self, layer: int, start: int, end: int, rows: int) -> None:
        super().__init__(f"rows {start}..{end} of layer {layer} are not stored (layer holds {rows})")
        self.layer = layer
        self.start = start
        self.end = end
        self.rows = rows


class ClosedGroup(StorageError):
    """Rows that were coded together with others, which would stay, are to be overwritten."""

    def __init__(self, layer: int, start: int, closed: int) -> None:
        super().__init__(
            f"rows {start}..{closed} of layer {layer} are in closed groups: truncate to {start}, "
            "or write all that follow, too"
        )
        self.layer = layer
        self.start = start
        self.closed = closed


class Grouped(StorageError):
    """Rows that are coded in groups are wanted as rows."""

    def __init__(self, format: str) -> None:
        super().__init__(f"{format} codes rows in groups, which are no rows in a file: fetch them")
        self.format = format


class OutOfBudget(StorageError):
    """The byte budget cannot be met, even by evicting everything that may go."""

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(f"{needed} bytes do not fit a budget of {limit}")
        self.needed = needed
        self.limit = limit


class OverQuota(OutOfBudget):
    """A tenant would have more stored than it may, even if all of its own that may go went."""

    def __init__(self, tenant: bytes, needed: int, stored: int, quota: int) -> None:
        super().__init__(needed, quota)
        self.tenant = tenant
        self.stored = stored


class NoSpace(StorageError):
    """The file system refused to take more bytes (full, quota or file size limit)."""

    def __init__(self, where: str) -> None:
        super().__init__(f"no space left for {where}")
        self.where = where


class Stale(StorageError):
    """The session was dropped, replaced or cut while a write to it was under way."""

    def __init__(self, sid: bytes) -> None:
        super().__init__(f"session {sid!r} changed under the write")
        self.sid = sid


class StaleGeneration(Stale):
    """The namespace has another generation than the one asked for; 0 when it is not there."""

    def __init__(self, namespace: bytes, stored: int, asked: int) -> None:
        super().__init__(namespace)
        self.namespace = namespace
        self.stored = stored
        self.asked = asked


class Uneven(StorageError):
    """The sides or layers of a namespace hold different rows, so that nothing can follow them."""

    def __init__(self, namespace: bytes) -> None:
        super().__init__(f"the layers of namespace {namespace!r} do not hold the same rows")
        self.namespace = namespace


class Overlap(StorageError):
    """A transaction was given rows of a layer that it has already, or that were published before it began."""

    def __init__(self, layer: int, rows: int, start: int) -> None:
        super().__init__(f"layer {layer} has {rows} rows already, start is {start}")
        self.layer = layer
        self.rows = rows
        self.start = start


class StateTwice(StorageError):
    """A transaction was given a state of a number of which it has one."""

    def __init__(self, number: int) -> None:
        super().__init__(f"state {number} was stored already")
        self.number = number


class BeyondTokens(StorageError):
    """A transaction was given more rows, or is based on more, than the tokens it is about."""

    def __init__(self, rows: int, tokens: int) -> None:
        super().__init__(f"{rows} rows for {tokens} tokens")
        self.rows = rows
        self.tokens = tokens


class Incomplete(StorageError):
    """A transaction cannot be published yet: a layer of a side does not have all its rows."""

    def __init__(self, side: str, layer: int, rows: int, wanted: int) -> None:
        super().__init__(f"layer {layer} of the {side} side has {rows} of {wanted} rows")
        self.side = side
        self.layer = layer
        self.rows = rows
        self.wanted = wanted


class NothingPrepared(Incomplete):
    """A transaction of a prefix without rows has no states either."""

    def __init__(self) -> None:
        super().__init__("K", 0, 0, 1)
        self.args = ("it has neither rows nor states",)


class BadOrder(StorageError):
    """Sessions cannot be put into this order."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Incompatible(StorageError):
    """Stored rows are not what was asked about; `field` is the first one that differs."""

    def __init__(self, field: str, stored: str, asked: str) -> None:
        super().__init__(f"{field}: stored {stored}, asked {asked}")
        self.field = field
        self.stored = stored
        self.asked = asked


class Immutable(StorageError):
    """The manifest of the namespace says that its rows never change: a fork of it may."""

    def __init__(self, namespace: bytes) -> None:
        super().__init__(f"namespace {namespace!r} is immutable")
        self.namespace = namespace


class TransactionDead(StorageError):
    """The transaction has ended without being published."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the transaction is dead: {reason}")
        self.reason = reason


class Expired(StorageError):
    """The namespace has reached its time to live."""

    def __init__(self, namespace: bytes) -> None:
        super().__init__(f"namespace {namespace!r} has expired")
        self.namespace = namespace


class Quarantined(StorageError):
    """Stored bytes failed their check: the namespace is a miss until it is dropped or written anew."""

    def __init__(self, namespace: bytes, reason: str) -> None:
        super().__init__(f"namespace {namespace!r} is quarantined: {reason}")
        self.namespace = namespace
        self.reason = reason


class UnknownSnapshot(StorageError):
    """No snapshot of this number in this session."""

    def __init__(self, sid: bytes, snapshot: int) -> None:
        super().__init__(f"session {sid!r} has no snapshot {snapshot}")
        self.sid = sid
        self.snapshot = snapshot


class SnapshotLimit(StorageError):
    """A session holds as many snapshots as the setting allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a session holds at most {limit} snapshots")
        self.limit = limit


class WriteClosed(StorageError):
    """A write was filled or committed after it was committed, aborted or had failed."""

    def __init__(self) -> None:
        super().__init__("the write is closed")


class CatalogCorrupt(StorageError):
    """A record of the catalog is not what was written."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the catalog is damaged: {reason}")
        self.reason = reason


class OtherVersion(StorageError):
    """The catalog was written by a build that stores records in another form."""

    def __init__(self, found: int, read: int) -> None:
        super().__init__(f"the catalog is of version {found}, this build reads {read}")
        self.found = found
        self.read = read


class PageCorrupt(StorageError):
    """A page file is not what the catalog says it is. Callers see `Quarantined` instead."""

    def __init__(self, page: int, reason: str) -> None:
        super().__init__(f"page {page:016x}: {reason}")
        self.page = page
        self.reason = reason


class PageGone(StorageError):
    """A page file vanished between reading the catalog and opening it: read the catalog again."""

    def __init__(self, page: int) -> None:
        super().__init__(f"page {page:016x} is gone")
        self.page = page


class SaveBusy(StorageError):
    """Another copy of the store is being made."""

    def __init__(self) -> None:
        super().__init__("another copy is being made")


class SaveExists(StorageError):
    """There is a copy of this name.

    Attributes:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} exists")
        self.name = name


class NoHandles(StorageError):
    """The process may open no more files."""

    def __init__(self) -> None:
        super().__init__("no file handles left")

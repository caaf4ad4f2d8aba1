"""The catalog: one LMDB environment that all processes on a data directory share.

Everything that makes rows visible or invisible is one `write`. A `snapshot` lives for one decode, never for
a reply: LMDB cannot reuse pages that a reader may see. The databases are listed in docs/catalog.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import lmdb

from .errors import CatalogCorrupt, DirectoryError, NoSpace, OlderCatalog, StoreClosed
from .files import FULL
from .known import DecodedSessions
from .names import key_of
from .records import Counters, NamespaceRecord, PageRecord, SessionRecord
from .reserve import FILE as RESERVE
from .reserve import Reserve
from .spares import Freed

T = TypeVar("T")

TABLES = (
    "meta",
    "sessions",
    "namespaces",
    "pages",
    "digests",
    "queue",
    "expiry",
    "snapshots",
    "states",
    "blocks",
    "models",
    "prompts",
    "manifests",
    "claims",
    "immutable",
    "receipts",
    "unsynced",
    "quarantine",
    "gone",
    "marks",
    "untold",
    "accounts",
    # Plain keys; see keyspace/entry.py.
    "keys",
    "values",
    "fields",
    "scores",
    "deadlines",
    "leftovers",
    "large",
    "dead",
)
_SPARE_TABLES = 32
_MAX_READERS = 1024
_LEAST_MAP_BYTES = 1 << 30
"""Where a process may not have as much address space as is asked for, it is halved down to this."""
_COUNTERS = b"counters"
CHECKPOINT_BEGUN = b"checkpoint begun"
"""In `meta`: the transaction that the last checkpoint begun has pinned, u64, big-endian like the marks."""

EXPIRING = b"expiring"
"""In `meta`: there as long as some unit is to end by itself."""


class Reader:
    """Typed reads within one transaction. As a context manager it ends the transaction."""

    __slots__ = ("catalog", "tables", "txn")

    def __init__(self, catalog: Catalog, txn: Any) -> None:
        self.catalog = catalog
        self.tables = catalog.tables
        self.txn = txn

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the transaction."""
        self.txn.abort()

    @property
    def state(self) -> int:
        """The number of the transaction that made what this one sees."""
        number: int = self.txn.id()
        return number

    @property
    def anything_ends(self) -> bool:
        """Whether some unit is to end by itself."""
        return self.get("meta", EXPIRING) is not None

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        # Arguments by name would cost as much again as finding a record does.
        value: bytes | None = self.txn.get(key, None, self.tables[table])
        return value

    def session(self, sid: bytes) -> SessionRecord | None:
        """The session of this name; a shared object, not to be changed."""
        # LMDB knows no empty key: it calls one an error.
        raw = self.get("sessions", key_of(sid)) if sid else None
        if raw is None:
            return None
        return self.catalog.decoded.get(sid, raw)

    def namespace(self, unit: bytes) -> NamespaceRecord | None:
        """The unit of this name, decoded anew."""
        raw = self.get("namespaces", key_of(unit))
        return None if raw is None else NamespaceRecord.decode(raw)

    def page(self, page: int) -> PageRecord | None:
        """The record of a page."""
        raw = self.get("pages", page.to_bytes(8, "big"))
        return None if raw is None else PageRecord.decode(raw)

    def names_page(self, page: int) -> bool:
        """Whether there is a record of a page."""
        return self.get("pages", page.to_bytes(8, "big")) is not None

    def counters(self) -> Counters:
        """The store-wide numbers; a shared object, not to be changed."""
        raw = self.get("meta", _COUNTERS)
        if raw is None:
            return Counters()
        known = self.catalog.counted
        if known[0] != raw:
            known = self.catalog.counted = raw, Counters.decode(raw)
        return known[1]

    def scan(self, table: str, start: bytes = b"", prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start` on, in order, while keys begin with `prefix`."""
        with self.txn.cursor(db=self.tables[table]) as cursor:
            if not cursor.set_range(max(start, prefix)):
                return
            for key, value in cursor:
                if not key.startswith(prefix):
                    return
                yield key, value

    def at_or_before(self, table: str, key: bytes) -> bytes | None:
        """The greatest key that is not above `key`."""
        with self.txn.cursor(db=self.tables[table]) as cursor:
            if cursor.set_range(key) and cursor.key() == key:
                return key
            found: bytes | None = cursor.key() if cursor.prev() else None
            return found

    def entries(self, table: str) -> int:
        """Number of keys of a table."""
        count: int = self.txn.stat(self.tables[table])["entries"]
        return count


class Writer(Reader):
    """Typed changes within the one write transaction.

    Attributes:
        totals: The store-wide numbers; stored when the transaction commits.
        changes: Moves with every change.
        freed: Pages that nothing names any more: their files go once the transaction is committed.
        id: Number of the transaction.
    """

    __slots__ = ("_sessions", "changes", "freed", "held", "id", "totals")

    def __init__(self, catalog: Catalog, txn: Any) -> None:
        super().__init__(catalog, txn)
        self.totals = self.counters().copy()
        self.changes = 0
        self.freed: list[Freed] = []
        self.id: int = txn.id()
        self._sessions: dict[bytes, SessionRecord] = {}
        """Those read or stored so far, as they are in this transaction."""
        self.held: dict[bytes, SessionRecord] = {}
        """Those known to be there, and to be writable, when it began: they are not read from the catalog."""

    @property
    def generation(self) -> int:
        """The generation that this transaction gives to what it changes."""
        return self.totals.generation_base + self.id

    def session(self, sid: bytes) -> SessionRecord | None:
        """As `Reader.session`; the catalog is asked once."""
        found = self._sessions.get(sid)
        if found is None and (found := self.held.get(sid) or super().session(sid)) is not None:
            self._sessions[sid] = found
        return found

    def take_held(self) -> dict[bytes, SessionRecord]:
        """`held` as this transaction has left it."""
        self.held.update((sid, session) for sid, session in self._sessions.items() if sid in self.held)
        return self.held

    def put(self, table: str, key: bytes, value: bytes | memoryview) -> None:
        """Set the value of a key."""
        self.changes += 1
        self.txn.put(key, value, True, True, False, self.tables[table])

    def delete(self, table: str, key: bytes) -> bool:
        """Remove a key; whether it was there."""
        self.changes += 1
        if table == "sessions":
            self._sessions.clear()
            self.held = {}
        gone: bool = self.txn.delete(key, b"", self.tables[table])
        return gone

    def put_session(self, record: SessionRecord) -> None:
        """Store a session."""
        raw = record.encode()
        self.put("sessions", key_of(record.sid), raw)
        self._sessions[record.sid] = record
        self.catalog.decoded.put(raw, record)

    def put_namespace(self, record: NamespaceRecord) -> None:
        """Store a unit."""
        self.put("namespaces", key_of(record.unit), record.encode())

    def put_page(self, page: int, record: PageRecord) -> None:
        """Store a page's record."""
        self.put("pages", page.to_bytes(8, "big"), record.encode())

    def mark_unsynced(self, page: int) -> None:
        """The page was written to: the next checkpoint has to sync its file.

        A mark that no checkpoint has read yet is left as it is: that saves appends a dirty page of the
        catalog.
        """
        key = page.to_bytes(8, "big")
        mark, begun = self.get("unsynced", key), self.get("meta", CHECKPOINT_BEGUN)
        if mark is None or (begun is not None and mark < begun):
            self.put("unsynced", key, self.id.to_bytes(8, "big"))

    def new_serial(self) -> int:
        """A number never given before."""
        serial = self.totals.next_serial
        self.totals.next_serial += 1
        return serial

    def new_writer(self) -> int:
        """A writer number never given before."""
        number = self.totals.next_writer
        self.totals.next_writer += 1
        return number

    def finish(self) -> None:
        """Store the numbers; the last act before the commit."""
        raw = self.totals.encode()
        self.put("meta", _COUNTERS, raw)
        self.catalog.counted = raw, self.totals


class Catalog:
    """The shared environment, its tables, and the cache of decoded sessions.

    Args:
        path: The environment's directory; made when missing.
        map_bytes: Address space reserved, if there is so much.
        synced: Whether each commit reaches the disk before it returns.
        release: Called after a commit with the pages it freed, and `reuse`.
        worker: The number that this process writes into what it changes.
        read_only: Whether nothing may be changed, nor made.
    """

    def __init__(
        self,
        path: Path,
        map_bytes: int,
        *,
        synced: bool,
        release: Callable[[list[Freed], bool], None],
        worker: int = 0,
        read_only: bool = False,
    ) -> None:
        self.worker = worker
        self._read_only = read_only
        self._path = path
        self._data = path / "data.mdb"
        self._synced = synced
        self._release = release
        self.commits = 0
        """Transactions that changed something, those of checkpoints apart."""
        self.decoded = DecodedSessions()
        self.counted: tuple[bytes, Counters] = (b"", Counters())
        """The store-wide numbers and the stored form that they were last read or written as."""
        self.reserve = Reserve(path.parent / RESERVE)
        self._open(map_bytes)

    @classmethod
    def for_reading(cls, path: Path, map_bytes: int) -> Self:
        """A catalog that is looked at and not changed; others may have it open."""
        return cls(path, map_bytes, synced=False, release=lambda freed, reuse: None, read_only=True)

    def _open(self, map_bytes: int) -> None:
        self._env: Any = None
        try:
            self._env = env = self._map(map_bytes)
            pages, page_bytes = env.info()["last_pgno"] + 1, env.stat()["psize"]
            if self._data.stat().st_size < pages * page_bytes:
                raise CatalogCorrupt("its file is shorter than its contents")
            self.tables = {name: self._table(name) for name in TABLES}
        except BaseException as error:
            self.close()
            if isinstance(error, lmdb.Error | OSError):
                raise DirectoryError(str(self._path), f"the catalog cannot be opened: {error}") from error
            raise

    def _map(self, map_bytes: int) -> Any:
        change = not self._read_only
        try:
            return lmdb.open(
                str(self._path),
                readonly=not change,
                create=change,
                # Without a lock file readers and writers do not see each other: only where none can be made.
                lock=change or os.access(self._path, os.W_OK),
                map_size=map_bytes,
                max_dbs=_SPARE_TABLES,
                max_readers=_MAX_READERS,
                sync=self._synced,
                metasync=self._synced,
                mode=0o600,
                readahead=False,
                max_spare_txns=4,
            )
        except lmdb.MemoryError:
            if map_bytes // 2 < _LEAST_MAP_BYTES:
                raise
            return self._map(map_bytes // 2)

    def _table(self, name: str) -> Any:
        try:
            return self._env.open_db(name.encode(), create=not self._read_only)
        except lmdb.NotFoundError as error:
            raise OlderCatalog(str(self._path), name) from error

    def snapshot(self) -> Reader:
        """`with catalog.snapshot() as reader`: a consistent view, left once its records are decoded."""
        if self._env is None:
            raise StoreClosed
        try:
            return Reader(self, self._env.begin())
        except lmdb.MapResizedError as error:
            raise self._outgrown() from error
        except lmdb.Error as error:
            raise CatalogCorrupt(str(error)) from error

    @property
    def state(self) -> int:
        """The number of the last transaction of any process."""
        # As `snapshot` does, without what nobody asks: this is looked at before what is known is used.
        if self._env is None:
            raise StoreClosed
        try:
            txn = self._env.begin()
            number: int = txn.id()
            txn.abort()
        except lmdb.Error:
            with self.snapshot() as reader:
                return reader.state
        return number

    def write(self, change: Callable[[Writer], T], *, reuse: bool = False, counts: bool = True) -> T:
        """Run `change` in the write transaction and commit.

        `change` may run more than once (when room is made for it), so it must not touch anything but its
        writer. An exception from it aborts the transaction.

        Args:
            change: Makes the changes.
            reuse: Whether pages that this frees are likely to be wanted for the next write.
            counts: Whether it is one of `commits`.

        Raises:
            NoSpace: The file system is full, or the address space reserved; nothing changed.
            CatalogCorrupt: LMDB reports damage, or anything else it should not.
        """
        while True:
            if self._env is None:
                raise StoreClosed
            stored, writer = 0, None
            try:
                with self._env.begin(write=True) as txn:
                    writer = Writer(self, txn)
                    stored = writer.totals.bytes
                    result = change(writer)
                    writer.finish()
            except lmdb.MapFullError as error:
                raise NoSpace("the catalog in the address space it has") from error
            except lmdb.MapResizedError as error:
                raise self._outgrown() from error
            except lmdb.Error as error:
                if is_full(error):
                    if writer is not None and writer.totals.bytes < stored and self.reserve.give_up():
                        continue
                    raise NoSpace("the catalog") from error
                raise CatalogCorrupt(str(error)) from error
            self.commits += counts
            if writer.freed:
                self._release(writer.freed, reuse)
            return result

    @property
    def is_open(self) -> bool:
        """Whether `close` has not been called."""
        return self._env is not None

    def _outgrown(self) -> DirectoryError:
        """Another process, which has more address space, has made the catalog larger than is seen here."""
        size = self._env.info()["map_size"]
        return DirectoryError(
            str(self._path),
            f"the catalog is larger than the address space this process has for it, {size} bytes",
        )

    def sync(self) -> None:
        """Bring everything committed to the disk."""
        self._env.sync(True)

    def pin(self) -> tuple[Any, bytes]:
        """A read transaction at what is committed now, and LMDB's two meta pages as they are then."""
        if self._env is None:
            raise StoreClosed
        # While we hold the write lock nobody commits, so transaction and meta pages belong together.
        with self._env.begin(write=True) as lock:
            pin = self._env.begin()
            with self._data.open("rb") as file:
                metas = file.read(2 * self._env.stat()["psize"])
            lock.abort()
        return pin, metas

    def hold(self) -> Any:
        """A read transaction at what is committed now."""
        if self._env is None:
            raise StoreClosed
        return self._env.begin()

    def check_readers(self) -> None:
        """Free the reader slots of processes that died."""
        self._env.reader_check()

    @property
    def data_path(self) -> Path:
        """LMDB's file."""
        return self._data

    @property
    def file_bytes(self) -> int:
        """Size of the environment's file."""
        return self._data.stat().st_size

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()
            self._env = None


def is_full(error: lmdb.Error) -> bool:
    """Whether LMDB says that the file system takes no more."""
    # Older releases of the binding give the system's text only.
    return getattr(error, "code", None) in FULL or any(os.strerror(code) in str(error) for code in FULL)

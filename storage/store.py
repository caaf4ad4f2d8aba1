"""The store: rows of K/V sessions on disk, shared by every process that opens the same directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from . import accounts, claims, namespaces, places, prompts, read, snapshots, states, write
from .accounts import EVERYTHING, Account, Listing
from .compact import compact
from .engine import Engine
from .errors import NoSpace
from .files import boot_id
from .filling import commit
from .keyspace.space import Keyspace
from .names import unit_of, unit_of_namespace
from .namespaces import SessionView
from .opening import close_engine, open_engine
from .options import Durability, StoreOptions
from .places import Located
from .prefixes import PrefixCalls
from .prompts import Match
from .read import LayerState, Rows
from .records import NamespaceRecord
from .save import Save
from .schema import Schema
from .states import StateWrite
from .tier_calls import TierCalls
from .totals import StoreInfo, store_info
from .usage import store_usage
from .write import RowsWrite, Suits

COMPACTED_PER_TICK = 32 << 20
"""Bytes of rows that one `tick` rewrites at most, or one piece more."""


class Store(PrefixCalls, TierCalls):
    """Rows of K/V sessions on disk, shared by every process that opens the same directory.

    Made by `Store.open`. Every call is synchronous and belongs to the thread that opened the store; only
    the segments of a write may be filled, and `Write.next_segment` called, in another one. Every call that
    changes something is one transaction: other processes see all of it or nothing.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._freed_seen = -1
        self._saves: list[Save] = []
        self.keyspace = Keyspace(engine)
        """Plain keys."""

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        options: StoreOptions | None = None,
        *,
        clock: Callable[[], float] = time.time,
        boot: str | None = None,
    ) -> Self:
        """Open a data directory, making it when it is missing; sweep what dead processes left in it.

        Args:
            path: The directory; made with mode 0700.
            options: Settings.
            clock: Seconds since the epoch.
            boot: Names this run of the machine; by default the operating system's own name for it.

        Raises:
            DirectoryError: The directory cannot be used; the text says why.
            CatalogCorrupt: The catalog is damaged.
        """
        boot = boot_id() if boot is None else boot
        return cls(open_engine(Path(path).absolute(), options or StoreOptions(), clock, boot))

    def close(self) -> None:
        """Write usage down, sync, and let the directory go. Views handed out stay valid."""
        if self._engine.catalog.is_open:
            for save in self._saves:
                save.close()
            try:
                self._flush_usage()
            finally:
                close_engine(self._engine)

    def tick(self) -> None:
        """What is due about once a second; takes milliseconds, syncing goes on in a thread of its own.

        On a full disk the steps that need room fail, and those that make some are done.

        Raises:
            NoSpace: The file system takes no more; the next tick tries again.
        """
        engine = self._engine
        steps: list[Callable[[], object]] = [
            self._flush_usage,
            lambda: namespaces.drop_expired(engine),
            self.keyspace.sweep,
            lambda: claims.sweep(engine),
            self._drop_freed_maps,
            self._compact,
            engine.pages.tick,
            engine.catalog.reserve.take,
        ]
        if engine.options.durability is Durability.EVERYSEC:
            steps.append(engine.checkpoints.tick)
        refused: NoSpace | None = None
        for step in steps:
            try:
                step()
            except NoSpace as error:
                refused = error
        if refused is not None:
            raise refused

    @property
    def commits(self) -> int:
        """Moves with every change that this process commits."""
        return self._engine.catalog.commits

    def sync(self) -> None:
        """Bring everything committed before the call to the disk, and wait for it."""
        for step in self.sync_steps():
            step()

    def sync_steps(self) -> Iterator[Callable[[], None]]:
        """The same for who must not wait: calls to be made in another thread, one after the other.

        Raises:
            NoSpace, DirectoryError: As `sync`.
        """
        engine = self._engine
        if engine.options.durability is not Durability.ALWAYS:
            yield from engine.checkpoints.steps()
        if engine.options.durability is Durability.NONE:
            # Nobody makes the next checkpoint: a pin would keep every page of the catalog from then on.
            engine.checkpoints.unpin()

    def create_session(self, sid: bytes, schema: Schema) -> int:
        """Make a session, or find it when it exists with the same schema; its slot number.

        Raises:
            SchemaMismatch: It exists with another schema.
            NameLimit: The name is empty or too long.
        """
        return namespaces.create_session(self._engine, sid, schema)

    def register(
        self,
        namespace: bytes,
        k_schema: Schema,
        v_schema: Schema,
        *,
        blocks: tuple[int, bytes] | None = None,
        prefill_us: int | None = None,
        model: bytes = b"",
    ) -> None:
        """Make the two sessions of a namespace, or find them when they exist with the same schemas.

        Args:
            namespace: Its name; the sessions are `<namespace>_pk` and `<namespace>_pv`.
            k_schema: Schema of the K side.
            v_schema: Schema of the V side.
            blocks: Tokens per block and the blocks' hashes (u64 LE each), kept for `blocks`.
            prefill_us: Measured time the rows took to compute, in microseconds.
            model: Names what computed the rows; `match` finds blocks of one token under it.

        Raises:
            SchemaMismatch: A session exists with another schema; nothing changed.
            NameLimit: The name is empty or too long.
        """
        namespaces.register(self._engine, namespace, k_schema, v_schema, blocks, prefill_us, model)

    def session(self, sid: bytes, at: int | None = None) -> SessionView:
        """A session as it is now, or as of generation `at` of its namespace. Raises as `rows`."""
        return namespaces.view_session(self._engine, sid, at)

    def layer(self, sid: bytes, layer: int) -> LayerState | None:
        """What a layer holds now; None when it holds no rows. Raises as `session`."""
        return read.layer_state(self._engine, sid, layer)

    def sessions(self, tag: bytes = b"") -> Iterator[SessionView]:
        """Sessions whose names begin so, in order. Changes made meanwhile may or may not be seen."""
        return namespaces.iter_sessions(self._engine, tag)

    def lookup(self, namespace: bytes) -> NamespaceRecord | None:
        """The namespace if it can be restored, else None; a shared object, not to be changed.

        It can when both sides hold the same number of rows (> 0) in the same layers, or when it holds state
        blobs and no rows at all; and it has not expired and is not quarantined.
        """
        return self.lookups((namespace,))[0]

    def lookups(self, names: Iterable[bytes]) -> list[NamespaceRecord | None]:
        """`lookup` of several namespaces, at one moment."""
        return namespaces.lookups(self._engine, names)

    def match(
        self,
        ids: NDArray[np.uint32],
        model: bytes = b"",
        *,
        fewest: int = 1,
        whole: bool = False,
        listing: Listing = EVERYTHING,
    ) -> Match | None:
        """The namespace that can be restored and whose tokens begin with the most of `ids`.

        Only namespaces are found that were registered with blocks of one token, whose hashes are token ids.

        Args:
            ids: Token ids.
            model: As given to `register`.
            fewest: Shorter matches do not count.
            whole: Find only namespaces all of whose tokens `ids` begins with.
            listing: Find only what is in it; a tenant's, as if there were no others.
        """
        return prompts.match(self._engine, ids, model, fewest, whole, listing)

    def models(self, tenant: bytes = b"") -> dict[bytes, int]:
        """The models that a tenant's namespaces were registered under, and how many each; see `match`."""
        return prompts.models(self._engine, tenant)

    def namespace(self, namespace: bytes) -> NamespaceRecord:
        """A namespace as it is now, restorable or not. Raises `UnknownNamespace`."""
        return namespaces.view_namespace(self._engine, namespace)

    def namespaces(self, tag: bytes = b"") -> Iterator[NamespaceRecord]:
        """Namespaces whose names begin so, in order. Changes made meanwhile may or may not be seen."""
        return namespaces.iter_namespaces(self._engine, tag)

    def begin_write(
        self,
        sid: bytes,
        layer: int,
        start: int,
        count: int,
        *,
        last: bool = False,
        follows: bool = False,
        suits: Suits | None = None,
    ) -> RowsWrite:
        """Begin to write rows [start, start + count) of a layer, over rows there are or right after.

        Where the layer's format codes groups they are filled as fp16 rows: `spec` of the write says so.

        Args:
            sid: The session.
            layer: The layer.
            start: First row.
            count: Number of rows.
            last: Whether the layer shall end with them: rows that it has after them go.
            follows: Whether publishing them shall be `Stale` when others have come there meanwhile.
            suits: Gets the layer's format and dim before anything else is looked at, and may raise.

        Raises:
            UnknownSession, Expired: No such session, or its time to live is over.
            Quarantined: Its bytes failed their check; make it anew first.
            BadRange: Negative start or no rows.
            LayerLimit: The schema or the settings do not have the layer.
            RowLimit: More rows than the settings allow.
            Gap: The layer ends before `start`.
            ClosedGroup: Rows that were coded in groups would be overwritten, and rows after them kept.
            OutOfBudget: The rows do not fit the budget, whatever is evicted; nothing was.
            NoSpace: The file system takes no more.
        """
        return write.begin(self._engine, sid, layer, start, count, last=last, follows=follows, suits=suits)

    def commit(self, writes: Sequence[RowsWrite | StateWrite]) -> list[int]:
        """Publish several writes in one step: readers see all of them or none; their generations.

        Cheaper than one commit each. When it raises, none is published and all are closed.

        Raises:
            StorageError: As `Write.commit`.
        """
        return commit(self._engine, writes)

    def rows(self, sid: bytes, layer: int, start: int, end: int, at: int | None = None) -> Rows | None:
        """Rows [start, end) of a layer; None when the layer holds none at all.

        Args:
            sid: The session.
            layer: The layer.
            start: First row.
            end: One past the last row.
            at: The generation its namespace must have; None for whatever it has.

        Raises:
            StaleGeneration: It has another generation.
            Expired: It has reached its time to live.
            UnknownSession: No such session.
            BadRange: The range is empty, reversed or negative.
            RowsNotStored: The layer holds fewer rows.
            Quarantined: The bytes fail their check, now or before.
            NoHandles: The process may open no more files.
        """
        return read.rows(self._engine, sid, layer, start, end, at)

    def rows_of_layers(
        self,
        sids: Sequence[bytes],
        layers: Sequence[int],
        start: int,
        end: int,
        *,
        generations: Sequence[int] | None = None,
        at: int | None = None,
    ) -> list[Rows | None]:
        """Rows [start, end) of several layers of several sessions, all as of one moment.

        Args:
            sids: The sessions.
            layers: The layers.
            start: First row.
            end: One past the last row.
            generations: The generation each session must still have; None for whatever it has now.
            at: The generation their namespace must have, as for `rows`.

        Returns:
            One element for each layer and, within it, each session; None where that layer holds no rows.

        Raises:
            Stale: A session has another generation.
            UnknownSession, StaleGeneration and others: As `rows`.
        """
        return read.rows_of_layers(self._engine, sids, layers, start, end, generations, at)

    def locate(self, sid: bytes, layers: range | None, start: int, end: int) -> Located:
        """Where rows [start, end) of layers lie in page files, for a client that maps them itself.

        All as of one moment, checked as `rows`; `layers` None: all. A file may be unlinked at any time; one
        that is open or mapped stays as it is.

        Raises:
            Grouped: Rows of a layer are coded in groups.
            UnknownSession and others: As `rows`.
        """
        return places.locate(self._engine, sid, layers, start, end)

    def locate_prefix(self, namespace: bytes) -> Located | None:
        """Where all rows of a prefix lie, as `locate`; None if it has none to restore."""
        return places.locate_prefix(self._engine, namespace)

    def rows_by_id(self, sid: bytes, layer: int, ids: Sequence[int], at: int | None = None) -> Rows | None:
        """Rows in the order asked, which may repeat; None when the layer holds none. Raises as `rows`."""
        return read.rows_by_id(self._engine, sid, layer, ids, at)

    def drop_sessions(self, sids: Iterable[bytes]) -> int:
        """Remove sessions in one step; how many there were."""
        return namespaces.drop_sessions(self._engine, sids)

    def drop_namespaces(self, names: Iterable[bytes]) -> int:
        """Remove namespaces with all they hold in one step; how many there were."""
        return namespaces.drop_namespaces(self._engine, names)

    def snapshot(self, sid: bytes) -> int:
        """Record the lengths of a session's layers; the snapshot's number.

        Raises:
            UnknownSession: No such session.
            SnapshotLimit: It holds as many as the settings allow.
        """
        return snapshots.take(self._engine, sid)

    def restore(self, sid: bytes, snapshot: int) -> None:
        """Cut layers that have grown since back to their recorded length; states go when rows do.

        Raises:
            UnknownSession: No such session.
            UnknownSnapshot: It has no such snapshot.
        """
        snapshots.restore(self._engine, sid, snapshot)

    def release_snapshot(self, sid: bytes, snapshot: int) -> bool:
        """Forget a snapshot; whether there was one. Raises `UnknownSession`."""
        return snapshots.release(self._engine, sid, snapshot)

    def begin_state(self, namespace: bytes, number: int, length: int) -> StateWrite:
        """Begin to write a state blob; committing replaces the one of this number, and makes the namespace.

        Raises:
            BadRange: The number is not a u32 or the length not positive.
            NameLimit, OutOfBudget, NoSpace, Quarantined: As `begin_write`.
        """
        return states.begin(self._engine, namespace, number, length)

    def put_state(self, namespace: bytes, number: int, blob: bytes | bytearray | memoryview) -> None:
        """Store a state blob that is in memory already. Raises as `begin_state`."""
        states.fill(self.begin_state(namespace, number, len(memoryview(blob).cast("B"))), blob)

    def state(self, namespace: bytes, number: int) -> memoryview | None:
        """A state blob, a read-only view that stays valid while it is referenced; None when there is none.

        Raises:
            Quarantined: The bytes fail their check, now or before.
            NoHandles: The process may open no more files.
        """
        return states.get(self._engine, namespace, number)

    def states(self, namespace: bytes) -> list[int]:
        """The numbers of a namespace's states, in order."""
        return states.numbers(self._engine, namespace)

    def drop_states(self, namespace: bytes, number: int | None = None) -> int:
        """Remove one state or all; how many there were."""
        return states.drop(self._engine, namespace, number)

    def set_budget(self, max_bytes: int | None) -> None:
        """Another budget for this process, from the next write on; None for none."""
        self._engine.options = replace(self._engine.options, max_bytes=max_bytes)

    def set_quotas(self, quotas: Mapping[bytes, int]) -> None:
        """What tenants may have stored, for this process and from the next write on; others have no limit."""
        self._engine.quotas = dict(quotas)

    def accounts(self) -> dict[bytes, Account]:
        """What each tenant has stored, as far as it has anything."""
        with self._engine.catalog.snapshot() as reader:
            return accounts.accounts(reader)

    def touch(self, sid: bytes) -> None:
        """Note a use of a session's unit; written down by `tick`."""
        self._engine.usage.note(unit_of(sid)[0], self._engine.clock())

    def credit_hit(self, namespace: bytes) -> None:
        """Note that rows of a namespace saved a prefill; written down by `tick`, and kept by eviction."""
        self._engine.usage.note(unit_of_namespace(namespace), self._engine.clock(), hits=1)

    def info(self) -> StoreInfo:
        """Store-wide numbers."""
        return store_info(self._engine)

    def begin_save(self, name: str) -> Save:
        """Begin to make a copy of the store, a data directory `saved/<name>` below this one. See `Save`.

        Raises:
            SaveBusy: Another copy is being made.
            SaveExists: There is something of this name.
            DirectoryError: The file system refuses.
        """
        self._saves[:] = [save for save in self._saves if not save.closed]
        directory = self._engine.directory
        self._saves.append(Save(directory.path, directory.pages, self._engine.catalog, name))
        return self._saves[-1]

    @property
    def workspace_bytes(self) -> int:
        """Bytes that writes of this process have taken in pages and not published."""
        return self._engine.reserved + sum(self._engine.late.values())

    def _flush_usage(self) -> None:
        seen = self._engine.usage.take()
        if seen:
            self._engine.catalog.write(lambda writer: store_usage(writer, seen))

    def _compact(self) -> None:
        left = COMPACTED_PER_TICK
        while left > 0 and self._engine.fragmented:
            left -= compact(self._engine, self._engine.fragmented.pop(), left)

    def _drop_freed_maps(self) -> None:
        """Let go of pages that other processes freed, so that their bytes really are."""
        engine = self._engine
        with engine.catalog.snapshot() as reader:
            freed = reader.counters().freed
            if freed == self._freed_seen:
                return
            gone = [page for page in engine.maps.numbers() if reader.page(page) is None]
        for page in gone:
            engine.maps.drop(page)
        self._freed_seen = freed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""What the operations of a store share: its catalog, pages, maps and settings, and the writes under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from .accounts import account_of
from .buffers import Windows
from .catalog import Catalog, Reader, Writer
from .checkpoint import Checkpointer
from .directory import Directory
from .errors import Expired, Immutable, NameLimit, OutOfBudget, Quarantined, StaleGeneration, UnknownSession
from .evict import make_room, make_tenant_room
from .known import Known
from .maps import PageMaps
from .names import key_of, unit_of
from .open_pages import OpenPages
from .options import StoreOptions
from .reaper import Reaper
from .records import NamespaceRecord, SessionRecord
from .usage import Usage

if TYPE_CHECKING:
    from .places import Located
    from .read import Rows

Asked: TypeAlias = tuple[bytes, int, int, int, int | None]
"""Session, layer, first row, the row after the last, and the generation that its unit was to have."""

AskedWhere: TypeAlias = tuple[bytes, range | None, int, int]
"""Session, layers, first row and the row after the last; of a whole prefix its unit."""

READS_KEPT = 1024
"""Ranges of rows of which it is known where they lie: a prefix has two for each layer."""
SESSIONS_HELD = 1024
"""Sessions that need not be looked at before each of their writes."""
RECORDS_KEPT = 8192
"""Namespaces whose records are kept decoded."""


@dataclass
class Engine:
    """The parts of an open store.

    Attributes:
        directory: The hold on the data directory.
        options: Its settings.
        clock: Seconds since the epoch.
        catalog: Who, what, which pages.
        pages: Pages open for writing.
        maps: Pages mapped for reading.
        checkpoints: Makes checkpoints.
        reaper: Frees large files and maps.
        windows: Buffers for writes.
        usage: Uses not yet written to the catalog.
        writing: Units with writes under way in this process; they are not evicted.
        fragmented: Sessions with a layer in many extents.
        reserved: Bytes of those writes, not yet in the catalog.
        late: Units for which room is made when they are published, since nobody knows what they will take,
            and the bytes they have so far.
        reserved_by: Those of them that are a tenant's.
        quotas: What a tenant may have stored.
        held: Sessions that may be written to, of units that never end and code no groups.
        lookups: Namespaces that can be restored, their deadlines aside; None for others.
        places: Where rows lie that clients map, as long as nothing is to end by itself.
        reads: Rows that were read, with their unit, as long as nothing is to end by itself. They keep maps
            alive, which must be able to go.
    """

    directory: Directory
    options: StoreOptions
    clock: Callable[[], float]
    catalog: Catalog
    pages: OpenPages
    maps: PageMaps
    checkpoints: Checkpointer
    reaper: Reaper
    windows: Windows = field(default_factory=Windows)
    usage: Usage = field(default_factory=Usage)
    writing: Counter[bytes] = field(default_factory=Counter)
    fragmented: set[bytes] = field(default_factory=set)
    reserved: int = 0
    late: dict[bytes, int] = field(default_factory=dict)
    reserved_by: Counter[bytes] = field(default_factory=Counter)
    quotas: Mapping[bytes, int] = field(default_factory=dict)
    places: Known[AskedWhere, Located] = field(default_factory=lambda: Known(READS_KEPT))
    reads: Known[Asked, tuple[Rows | None, bytes]] = field(default_factory=lambda: Known(READS_KEPT))
    held: Known[bytes, SessionRecord] = field(default_factory=lambda: Known(SESSIONS_HELD))
    lookups: Known[bytes, NamespaceRecord | None] = field(default_factory=lambda: Known(RECORDS_KEPT))

    def check_name(self, name: bytes) -> None:
        """Raises `NameLimit` for an empty or too long name."""
        if not 0 < len(name) <= self.options.max_name_bytes:
            raise NameLimit(len(name), self.options.max_name_bytes)

    def session(self, reader: Reader, sid: bytes) -> SessionRecord:
        """The session, checked for service. Raises `UnknownSession` or `Quarantined`."""
        record = reader.session(sid)
        if record is None:
            raise UnknownSession(sid)
        self.check_quarantine(reader, record.unit)
        return record

    def readable(self, reader: Reader, sid: bytes, at: int | None = None) -> SessionRecord:
        """The session, checked for reading.

        Raises:
            StaleGeneration: Its unit does not have the generation `at`.
            Expired: Its unit has reached its time to live.
            UnknownSession, Quarantined: As `session`.
        """
        # Where nothing ends by itself, reading a session does not cost its unit's record as well.
        if at is not None or reader.anything_ends:
            self._check_unit(reader, unit_of(sid)[0], at)
        return self.session(reader, sid)

    def _check_unit(self, reader: Reader, unit: bytes, at: int | None) -> None:
        record = reader.namespace(unit)
        if at is not None and (record is None or record.generation != at):
            raise StaleGeneration(unit[1:], record.generation if record is not None else 0, at)
        if record is not None and record.has_expired(self.clock()):
            raise Expired(unit[1:])

    def is_spent(self, reader: Reader, record: NamespaceRecord) -> bool:
        """Whether a unit has expired or its bytes failed their check: made anew, it starts empty."""
        quarantined = reader.get("quarantine", key_of(record.unit)) is not None
        return quarantined or record.has_expired(self.clock())

    def check_quarantine(self, reader: Reader, unit: bytes) -> None:
        """Raises `Quarantined` for a unit whose bytes failed their check."""
        reason = reader.get("quarantine", key_of(unit))
        if reason is not None:
            raise Quarantined(unit[1:], reason.decode())

    def check_mutable(self, reader: Reader, unit: bytes) -> None:
        """Raises `Immutable` for a unit whose manifest says that its rows never change."""
        if reader.get("immutable", key_of(unit)) is not None:
            raise Immutable(unit[1:])

    def begin_writing(self, unit: bytes, reserved: int, tenant: bytes = b"") -> None:
        """A write to the unit, for a tenant, has taken page rows."""
        self.writing[unit] = self.writing.get(unit, 0) + 1
        self._add_reserved(unit, reserved, tenant)

    def end_writing(self, unit: bytes, reserved: int, tenant: bytes = b"") -> None:
        """The write is over, one way or the other."""
        self._add_reserved(unit, -reserved, tenant)
        left = self.writing[unit] - 1
        if left:
            self.writing[unit] = left
        else:
            self.writing.pop(unit)
            self.late.pop(unit, None)

    def _add_reserved(self, unit: bytes, count: int, tenant: bytes) -> None:
        if unit in self.late:
            self.late[unit] += count
            return
        self.reserved += count
        if held := self.reserved_by.get(tenant, 0) + count:
            self.reserved_by[tenant] = held
        else:
            self.reserved_by.pop(tenant, None)

    def reserve(self, unit: bytes, needed: int, stored: int, tenant: bytes) -> None:
        """Make room for a write before it allocates; for a unit of `late` only see that it may have room.

        Args:
            unit: The unit to be written, which is kept.
            needed: Bytes the write will take.
            stored: Bytes in the catalog as just read.
            tenant: For whom.

        Raises:
            OutOfBudget: It cannot; nothing was evicted.
        """
        if unit not in self.late:
            self._reserve_for(tenant, unit, needed)
        limit = self.options.max_bytes
        if unit in self.late:
            needed += sum(self.late.values())
            if limit is not None and needed > limit:
                raise OutOfBudget(needed, limit)
            return
        if limit is None or stored + self.reserved + needed <= limit:
            return
        if needed > limit:
            raise OutOfBudget(needed, limit)
        reserved, keep = self.reserved, {unit, *self.writing}
        self.catalog.write(
            lambda writer: make_room(
                writer, reserved + needed, limit, keep, self.clock(), tiered=self.options.tiered
            ),
            reuse=True,
        )

    def _reserve_for(self, tenant: bytes, unit: bytes, needed: int) -> None:
        if tenant not in self.quotas:
            return
        needed += self.reserved_by[tenant]
        with self.catalog.snapshot() as reader:
            fits = account_of(reader, tenant).bytes + needed <= self.quotas[tenant]
        if not fits:
            self.catalog.write(lambda writer: self.make_tenant_room(writer, unit, needed, tenant), reuse=True)

    def make_tenant_room(self, writer: Writer, unit: bytes, needed: int, tenant: bytes) -> None:
        """Make room for so many bytes more of a tenant's, in the transaction that takes them."""
        quota = self.quotas.get(tenant)
        if quota is not None:
            make_tenant_room(writer, tenant, needed, quota, {unit, *self.writing}, self.clock())

    def make_room(self, writer: Writer, unit: bytes, needed: int) -> None:
        """The same within the transaction that publishes: other processes may have written meanwhile."""
        keep = {unit, *self.writing}
        make_room(writer, needed, self.options.max_bytes, keep, self.clock(), tiered=self.options.tiered)

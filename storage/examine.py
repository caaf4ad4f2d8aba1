"""Examination of a data directory: what is in it, what is wrong with it, and what can be put right.

Nothing is changed, and a server may have the directory open meanwhile. Every record and every stored byte is
read once; a record is read with its neighbors in one snapshot, a page file on its own, and what fails there
is looked at again, since it may have gone in the meantime.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import lmdb

from .accounts import accounts, owner_of_page, tenant_of
from .catalog import Catalog, Reader
from .checkpoint import FILE as CHECKPOINT
from .checkpoint import read_checkpoint
from .digest import KEY, filled_rows, pieces_of, pieces_over
from .directory import dead_writers, page_number
from .errors import CatalogCorrupt, DirectoryError, OlderCatalog, PageCorrupt, PageGone
from .files import boot_id
from .keyspace.entry import Entry
from .keyspace.large import LargeValue
from .maps import PageMaps
from .namespaces import discard
from .opening import close_engine, open_engine
from .options import MAP_BYTES, Durability, StoreOptions
from .page import region_key
from .reaper import Reaper
from .records import NamespaceRecord, SessionRecord, StateRecord
from .recovery import read_marker


class State(StrEnum):
    """How a data directory was found."""

    STOPPED = "stopped"
    """Nobody has it open, and the last to do so closed it."""
    KILLED = "killed"
    """Nobody has it open; who had was killed. Nothing is lost by that."""
    RUNNING = "running"
    """A server has it open."""
    CRASHED = "crashed"
    """The machine went down while it was open: the next start recovers what was synced."""


class Kind(StrEnum):
    """What is wrong."""

    RECOVERY = "recovery"
    CATALOG = "catalog"
    PAGE = "page"
    REFERENCE = "reference"
    COUNT = "count"
    QUARANTINE = "quarantine"
    LEFTOVER = "leftover"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: What is wrong.
        subject: The file or record.
        text: It in plain words, and what it costs.
        repair: What a repair does about it; empty when none is safe.
    """

    kind: Kind
    subject: str
    text: str
    repair: str = ""


@dataclass
class Report:
    """What an examination found.

    Attributes:
        path: The data directory.
        state: How it was found.
        durability: What the process that opened it promised; None when it was closed.
        findings: What is wrong.
        counts: Numbers of sessions, namespaces, pages, plain keys; bytes checked, accounted, on disk.
        units: Units that a repair drops.
        pages: Pages whose plain values a repair drops.
    """

    path: Path
    state: State
    durability: Durability | None
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    units: set[bytes] = field(default_factory=set)
    pages: set[int] = field(default_factory=set)

    def add(self, kind: Kind, subject: str, text: str, repair: str = "") -> None:
        """Something is wrong."""
        self.findings.append(Finding(kind, subject, text, repair))


@dataclass
class _Records:
    """What one snapshot of the catalog says.

    Attributes:
        pages: Bytes and references of each page.
        named: How many records name each page.
        users: Units, and names of plain keys, that name each page.
    """

    pages: dict[int, tuple[int, int]] = field(default_factory=dict)
    named: Counter[int] = field(default_factory=Counter)
    users: dict[int, set[bytes]] = field(default_factory=dict)


def examine(path: Path, *, boot: str | None = None) -> Report:
    """Examine a data directory.

    Args:
        path: The directory.
        boot: Names this run of the machine; by default the operating system's own name for it.

    Raises:
        DirectoryError: It is no data directory, or cannot be read.
    """
    path = path.absolute()
    report = _first_look(path, boot_id() if boot is None else boot)
    _check_checkpoint(report)
    if report.state is State.CRASHED:
        report.add(
            Kind.RECOVERY,
            "running",
            "the machine went down while the directory was open; it has to be recovered first",
            "recovers it as the next start would, and examines that",
        )
        return report
    try:
        with closing(Catalog.for_reading(path / "catalog", MAP_BYTES)) as catalog:
            _examine_contents(report, catalog)
    except (CatalogCorrupt, lmdb.Error) as error:
        _blame_catalog(report, str(error))
    except OlderCatalog as error:
        report.add(
            Kind.RECOVERY,
            "catalog/data.mdb",
            f"{error.reason}: the next start adds it, and until then the contents cannot be examined",
            "adds it as the next start would, and examines the contents",
        )
    except DirectoryError as error:
        _blame_catalog(report, error.reason)
    return report


def _first_look(path: Path, boot: str) -> Report:
    if not (path / "catalog" / "data.mdb").exists() or not (path / "pages").is_dir():
        raise DirectoryError(str(path), "no data directory of this store")
    try:
        running = _is_open(path)
        marker = read_marker(path)
    except OSError as error:
        raise DirectoryError(str(path), error.strerror or str(error)) from error
    if marker is None:
        return Report(path, State.RUNNING if running else State.STOPPED, None)
    last_boot, durability = marker
    lost = last_boot != boot and durability is not Durability.ALWAYS
    state = State.RUNNING if running else State.CRASHED if lost else State.KILLED
    return Report(path, state, durability)


def _is_open(path: Path) -> bool:
    """Whether a process has the directory open; asked as one that opens it asks."""
    handles = [os.open(path / name, os.O_RDONLY | os.O_CLOEXEC) for name in ("opening", "lock")]
    try:
        fcntl.flock(handles[0], fcntl.LOCK_EX)
        fcntl.flock(handles[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        for handle in reversed(handles):
            os.close(handle)
    return False


def _check_checkpoint(report: Report) -> None:
    if (report.path / CHECKPOINT).exists() and read_checkpoint(report.path) is None:
        report.add(
            Kind.RECOVERY,
            CHECKPOINT,
            "the checkpoint is damaged: if the machine went down now, nothing could be recovered",
            "makes a new one",
        )


def _blame_catalog(report: Report, reason: str) -> None:
    report.add(
        Kind.CATALOG,
        "catalog/data.mdb",
        f"{reason}; what it says cannot be trusted. Put a copy of the directory in its place, or begin with "
        "an empty one",
    )


def _examine_contents(report: Report, catalog: Catalog) -> None:
    with catalog.snapshot() as reader:
        records = _read_records(report, reader)
    # A page that nobody has only waits for a checkpoint to be forgotten.
    for number in sorted(records.users.keys() & records.pages.keys()):
        report.counts["bytes checked"] += _examine_page(report, catalog, records, number)
    _examine_files(report, catalog)
    _report_quarantine(report, catalog)


def _read_records(report: Report, reader: Reader) -> _Records:
    records, counts = _Records(), report.counts
    for key, _ in reader.scan("pages"):
        number = int.from_bytes(key, "big")
        record = reader.page(number)
        assert record is not None
        records.pages[number] = record.bytes, record.refs
    rows = 0
    for session in _sessions(reader):
        rows += sum(session.rows)
        counts["sessions"] += 1
        _name(records, session.pages, session.unit)
        _check_extents(report, reader, records, session)
    for number, unit in _states(reader):
        _name(records, (number,), unit)
    costs = 0
    owned: Counter[bytes] = Counter()
    for _, raw in reader.scan("keys"):
        counts["plain keys"] += 1
        entry = Entry.decode(raw)
        costs += entry.cost
        owned[tenant_of(entry.name)] += entry.cost
    for number, (size, _) in records.pages.items():
        owned[owner_of_page(reader, number)] += size
    for _, raw in reader.scan("large"):
        _name(records, (LargeValue.decode(raw).page,), b"")
    for _, raw in reader.scan("dead"):
        records.named[int.from_bytes(raw, "big")] += 1
    counts["namespaces"] = len([NamespaceRecord.decode(raw) for _, raw in reader.scan("namespaces")])
    counts["pages"] = len(records.pages)
    counts["bytes accounted"] = reader.counters().bytes
    held = sum(size for size, _ in records.pages.values())
    _compare(report, "bytes", reader.counters().bytes, held + costs)
    _compare(report, "rows", reader.counters().rows, rows)
    stored = accounts(reader)
    for tenant in sorted((owned.keys() | stored.keys()) - {b""}):
        count = stored[tenant].bytes if tenant in stored else 0
        _compare(report, f"bytes of tenant {_shown(tenant)}", count, owned[tenant])
    _compare_references(report, records)
    return records


def _sessions(reader: Reader) -> Iterator[SessionRecord]:
    for _, raw in reader.scan("sessions"):
        yield SessionRecord.decode(raw)


def _states(reader: Reader) -> Iterator[tuple[int, bytes]]:
    """The page of each state, and its unit."""
    pages = [(key[:8], StateRecord.decode(raw).page) for key, raw in reader.scan("states")]
    units: dict[bytes, bytes] = {}
    if pages:
        for _, raw in reader.scan("namespaces"):
            record = NamespaceRecord.decode(raw)
            units[record.uid.to_bytes(8, "big")] = record.unit
    for uid, page in pages:
        yield page, units.get(uid, b"")


def _name(records: _Records, pages: Iterable[int], user: bytes) -> None:
    for page in pages:
        records.named[page] += 1
        records.users.setdefault(page, set()).add(user)


def _check_extents(report: Report, reader: Reader, records: _Records, session: SessionRecord) -> None:
    """Every row that an extent names lies in a page that has a record, and under a digest."""
    for layer, extents in enumerate(session.layers):
        for page, row, count in extents:
            position, region = row, region_key(layer, session.side)
            for first, rows, _ in pieces_over(reader, page, region, row, row + count):
                if first > position:
                    break
                position = first + rows
            if page in records.pages and position >= row + count:
                continue
            report.units.add(session.unit)
            report.add(
                Kind.REFERENCE,
                _shown(session.sid),
                f"rows of layer {layer} are said to be in page {page:016x}, which does not have them",
                f"drops {_shown(session.unit[1:])}",
            )
            return


def _compare(report: Report, name: str, stored: int, found: int) -> None:
    if stored != found:
        report.add(Kind.COUNT, name, f"the store counts {stored} {name}, its records add up to {found}")


def _compare_references(report: Report, records: _Records) -> None:
    for number, (_, references) in records.pages.items():
        if references != records.named[number]:
            report.add(
                Kind.COUNT,
                f"page {number:016x}",
                f"has {references} references noted, {records.named[number]} records name it",
            )


def _examine_page(report: Report, catalog: Catalog, records: _Records, number: int) -> int:
    """Check a page file against its digests; the bytes that were right."""
    try:
        return _check_page(report.path / "pages", catalog, number)
    except (PageGone, PageCorrupt) as error:
        with catalog.snapshot() as reader:
            if reader.page(number) is None:
                return 0
        reason = "its file is missing" if isinstance(error, PageGone) else error.reason
    users = records.users.get(number, set())
    units = {user for user in users if user}
    report.units |= units
    report.pages.add(number)
    names = ", ".join(sorted(_shown(unit[1:]) for unit in units)) or "a plain key"
    report.add(
        Kind.PAGE,
        f"pages/{number:016x}",
        f"{reason}; {names} cannot be served, and is a miss",
        f"drops {names}",
    )
    return 0


def _check_page(pages: Path, catalog: Catalog, number: int) -> int:
    with catalog.snapshot() as reader:
        found = [KEY.unpack(key) for key, _ in reader.scan("digests", prefix=number.to_bytes(8, "big"))]
        filled = filled_rows(reader, number)
    with closing(PageMaps(pages, 1, pieces_of(catalog), Reaper(), ())) as maps:
        maps.check(number)
        checked = 0
        for region in {region for _, region, _ in found}:
            layer, side = divmod(region, 2)
            start = min(row for _, other, row in found if other == region)
            checked += len(maps.rows(number, layer, side, start, filled[region] - start))
    return checked


def _examine_files(report: Report, catalog: Catalog) -> None:
    """Files that nobody names and no living process is about to name."""
    dead = dead_writers(report.path / "writers")
    files = {entry.name: entry.path for entry in os.scandir(report.path / "pages")}
    with catalog.snapshot() as reader:
        unnamed = {
            name: number
            for name in files
            if (number := page_number(name)) is None or reader.page(number) is None
        }
    for name in sorted(files):
        with suppress(FileNotFoundError):
            size = os.stat(files[name]).st_blocks * 512
            if name not in unnamed:
                report.counts["bytes on disk"] += size
            else:
                _judge_unnamed(report, dead, name, unnamed[name], size)


def _judge_unnamed(report: Report, dead: set[int], name: str, number: int | None, size: int) -> None:
    if number is None:
        report.add(Kind.LEFTOVER, f"pages/{name}", "is no page file; nothing looks at it")
        return
    writer = number >> 32
    if writer in dead or not (report.path / "writers" / f"{writer:08x}").exists():
        report.add(
            Kind.LEFTOVER,
            f"pages/{name}",
            f"belongs to nobody: its writer died before it was published; it takes {size} bytes",
            "removes it, as the next start does",
        )


def _report_quarantine(report: Report, catalog: Catalog) -> None:
    with catalog.snapshot() as reader:
        marked = {key: raw.decode() for key, raw in reader.scan("quarantine")}
        if not marked:
            return
        for key, raw in reader.scan("namespaces"):
            if key in marked:
                unit = NamespaceRecord.decode(raw).unit
                name = _shown(unit[1:])
                report.units.add(unit)
                text = f"is not served: {marked[key]}"
                report.add(Kind.QUARANTINE, name, text, f"drops {name}")


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def repair(report: Report, *, boot: str | None = None) -> None:
    """Put right what is safe: recover, remove files of nobody, drop what cannot be served.

    Args:
        report: An examination of the directory.
        boot: As for `examine`.

    Raises:
        DirectoryError: A server has it open, or it cannot be opened.
        CatalogCorrupt: The catalog is damaged.
    """
    if report.state is State.RUNNING:
        raise DirectoryError(str(report.path), "a server has it open: stop it first")
    options = StoreOptions(durability=report.durability or Durability.EVERYSEC)
    engine = open_engine(report.path, options, time.time, boot_id() if boot is None else boot)
    try:
        discard(engine, report.units, report.pages)
    finally:
        close_engine(engine)

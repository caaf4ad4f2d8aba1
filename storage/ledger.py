"""Where the bytes are: each byte of a page is in exactly one term.

Physical terms count what page files take, a page once however many name it. Logical terms count what can be
read, for each that can read it: forks make them larger than the physical ones. Both split rows into codes,
scales and full precision as their formats do.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields

from pionkv.kernels.formats import LayerSpec

from .catalog import Reader
from .digest import written_rows
from .engine import Engine
from .errors import UnknownNamespace
from .extents import is_tail
from .names import unit_of_namespace
from .page import BLOCK, BadHeader, PageKind, PageLayout, page_path, parse_header
from .records import NamespaceRecord, SessionRecord
from .states import scan_states
from .units import sessions_of

BATCH = 64
"""Units, or pages, looked at in one step."""
FP16_BYTES = 2

Runs = dict[int, list[tuple[int, int]]]
"""Region of a page -> rows [start, end) that are named, in any order."""


@dataclass(slots=True)
class Terms:
    """What can be read, in bytes.

    Attributes:
        codes: Quantized elements.
        scales: Scales, minima, offsets and gains of them.
        full_precision: Elements that are not quantized.
        states: State blobs.
    """

    codes: int = 0
    scales: int = 0
    full_precision: int = 0
    states: int = 0

    def add_rows(self, spec: LayerSpec, count: int) -> None:
        """Enter rows of a layer."""
        parts = spec.row_parts
        self.codes += count * parts.codes
        self.scales += count * parts.scales
        self.full_precision += count * parts.full_precision

    @property
    def total(self) -> int:
        """All of them."""
        return self.codes + self.scales + self.full_precision + self.states


@dataclass(slots=True)
class Ledger:
    """The bytes of a session, a namespace or the whole store.

    Attributes:
        logical: What can be read, counted for each that can.
        physical: The same, counted once.
        headers: Headers of pages.
        other_rows: Rows in these pages that nobody here names: overwritten, cut, or of others.
        slack: What is left of the blocks that pages take: rows end within them.
        pages: Page files.
        shared_pages: Those that somebody outside names, too.
        accounted: What the catalog has entered for these pages: the sum of all physical terms.
        resident: What the file system says that their files take.
        as_fp16: What the rows would take in fp16.
    """

    logical: Terms = field(default_factory=Terms)
    physical: Terms = field(default_factory=Terms)
    headers: int = 0
    other_rows: int = 0
    slack: int = 0
    pages: int = 0
    shared_pages: int = 0
    accounted: int = 0
    resident: int = 0
    as_fp16: int = 0

    def lines(self) -> Iterator[tuple[str, int]]:
        """Every number with its name."""
        for kind in ("logical", "physical"):
            terms: Terms = getattr(self, kind)
            for item in fields(Terms):
                yield f"{kind}_{item.name}", getattr(terms, item.name)
            if kind == "logical":
                yield "logical_total", terms.total
        for name in ("headers", "other_rows", "slack"):
            yield f"physical_{name}", getattr(self, name)
        yield "physical_total", self.physical.total + self.headers + self.other_rows + self.slack
        yield "accounted_bytes", self.accounted
        yield "resident_bytes", self.resident
        yield "pages", self.pages
        yield "shared_pages", self.shared_pages
        yield "rows_as_fp16_bytes", self.as_fp16


class Count:
    """A ledger in the making.

    Call `steps` to the end: the work of a large store is done in pieces, between which others have their
    turn. What changes meanwhile may or may not be counted.
    """

    def __init__(self, engine: Engine, name: bytes | None) -> None:
        self.ledger = Ledger()
        self._engine = engine
        self._name = name
        self._named: dict[int, Runs] = defaultdict(lambda: defaultdict(list))
        self._namers: dict[int, int] = defaultdict(int)
        self._states: dict[int, int] = {}

    def steps(self) -> Iterator[None]:
        """Do the work, a piece at a time.

        Raises:
            UnknownNamespace: There is no session or namespace of this name.
        """
        if self._name is None:
            yield from self._all_units()
        else:
            with self._engine.catalog.snapshot() as reader:
                self._one(reader, self._name)
        pages = sorted(self._namers)
        for start in range(0, len(pages), BATCH):
            yield
            with self._engine.catalog.snapshot() as reader:
                for page in pages[start : start + BATCH]:
                    self._add_page(reader, page)

    def _one(self, reader: Reader, name: bytes) -> None:
        session = reader.session(name)
        if session is not None:
            self._add_sessions((session,))
            return
        record = reader.namespace(unit_of_namespace(name))
        if record is None:
            raise UnknownNamespace(name)
        self._add_unit(reader, record)

    def _all_units(self) -> Iterator[None]:
        start = b""
        while True:
            with self._engine.catalog.snapshot() as reader:
                batch = []
                for item in reader.scan("namespaces", start=start):
                    batch.append(item)
                    if len(batch) == BATCH:
                        break
                for _, raw in batch:
                    self._add_unit(reader, NamespaceRecord.decode(raw))
            if len(batch) < BATCH:
                return
            start = batch[-1][0] + b"\0"
            yield

    def _add_unit(self, reader: Reader, record: NamespaceRecord) -> None:
        self._add_sessions(sessions_of(reader, record.unit))
        for _, state in scan_states(reader, record):
            self.ledger.logical.states += state.length
            self._states[state.page] = state.length
            self._namers[state.page] += 1

    def _add_sessions(self, sessions: Iterable[SessionRecord]) -> None:
        for session in sessions:
            for page in session.pages:
                self._namers[page] += 1
            for layer, extents in enumerate(session.layers):
                spec, rows = session.schema.layer(layer) if extents else None, session.rows_in(layer)
                if spec is None:
                    continue
                self.ledger.as_fp16 += rows * spec.dim * FP16_BYTES
                for page, row, count in extents:
                    self.ledger.logical.add_rows(spec.wire if is_tail(page) else spec, count)
                    self._named[page][layer * 2 + session.side].append((row, row + count))

    def _add_page(self, reader: Reader, page: int) -> None:
        record = reader.page(page)
        found = _open(self._engine, page)
        if record is None or found is None:
            return
        layout, blocks = found
        ledger, before = self.ledger, self.ledger.physical.total
        if layout.kind is PageKind.STATE:
            ledger.physical.states += self._states.get(page, 0)
            other = 0
        else:
            other = self._add_rows(layout, self._named[page], written_rows(reader, page))
        named = ledger.physical.total - before
        ledger.headers += layout.header_bytes
        ledger.other_rows += other
        ledger.slack += record.bytes - layout.header_bytes - named - other
        ledger.accounted += record.bytes
        ledger.resident += blocks
        ledger.pages += 1
        ledger.shared_pages += record.refs > self._namers[page]

    def _add_rows(self, layout: PageLayout, named: Runs, written: dict[int, int]) -> int:
        """Enter the rows that are named here; the bytes of those that are not."""
        other = 0
        for region, rows in written.items():
            layer, side = divmod(region, 2)
            here = _union(named.get(region, ()))
            self.ledger.physical.add_rows(layout.sides[side].layer(layer), here)
            other += (rows - here) * layout.row_bytes(layer, side)
        return other


def _open(engine: Engine, page: int) -> tuple[PageLayout, int] | None:
    """The layout of a page, and what its file takes; None when it is gone or is no page."""
    try:
        fd = os.open(page_path(engine.directory.pages, page), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        start = os.pread(fd, BLOCK, 0)
        length = int.from_bytes(start[12:16], "little")
        if length > BLOCK:
            start += os.pread(fd, length - BLOCK, BLOCK)
        return parse_header(start)[1], os.fstat(fd).st_blocks * 512
    except BadHeader:
        return None
    finally:
        os.close(fd)


def _union(runs: Iterable[tuple[int, int]]) -> int:
    """How many rows are in one of the runs at least."""
    count = reached = 0
    for start, end in sorted(runs):
        count += max(0, end - max(start, reached))
        reached = max(reached, end)
    return count

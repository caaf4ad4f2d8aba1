"""State blobs of a namespace: opaque bytes at a number (a layer), each in a page of its own."""

from __future__ import annotations

from collections.abc import Iterator

from . import refs
from .accounts import tenant_of
from .catalog import Reader, Writer
from .engine import Engine
from .errors import BadRange, PageCorrupt, PageGone
from .filling import PageWrite
from .names import K_SUFFIX, unit_of_namespace
from .open_pages import OpenPage
from .page import PageKind, PageLayout, align
from .quarantine import quarantine
from .records import NamespaceRecord, StateRecord
from .units import open_unit, refresh_or_remove

MAX_NUMBER = 0xFFFFFFFF


class StateWrite(PageWrite):
    """A state blob on its way in: fill the segments in order, then `commit`; or `abort`. See `Write`.

    Attributes:
        count: Its length.
        nbytes: The same.
    """

    def __init__(self, engine: Engine, namespace: bytes, page: OpenPage, number: int, length: int) -> None:
        super().__init__(engine, unit_of_namespace(namespace), namespace, page, 0, 0, length)
        self._number = number
        self._now = engine.clock()

    def _check(self, writer: Writer) -> None:
        """A state makes its namespace if need be."""

    def _name_rows(self, writer: Writer) -> int:
        record = open_unit(writer, self._unit, self._now)
        key = state_key(record, self._number)
        old = writer.get("states", key)
        if old is None:
            record.states += 1
        else:
            refs.release(writer, StateRecord.decode(old).page)
        refs.acquire(writer, self._page.number)
        state = StateRecord(self._page.number, self.count, writer.generation)
        writer.put("states", key, state.encode())
        writer.put_namespace(record)
        return writer.generation


def begin(engine: Engine, namespace: bytes, number: int, length: int) -> StateWrite:
    """See `Store.begin_state`."""
    engine.check_name(namespace + K_SUFFIX)
    unit = unit_of_namespace(namespace)
    with engine.catalog.snapshot() as reader:
        engine.check_quarantine(reader, unit)
        engine.check_mutable(reader, unit)
    page = new_page(engine, unit, number, length, tenant_of(namespace))
    try:
        return StateWrite(engine, namespace, page, number, length)
    except BaseException:
        engine.pages.discard(page)
        raise


def new_page(engine: Engine, unit: bytes, number: int, length: int, tenant: bytes) -> OpenPage:
    """A page for a state, once there is room for it. Raises `BadRange`, `OutOfBudget`, `NoSpace`."""
    if not 0 <= number <= MAX_NUMBER or length < 1:
        raise BadRange(number, number + length)
    layout = PageLayout(PageKind.STATE, length, {})
    with engine.catalog.snapshot() as reader:
        stored = reader.counters().bytes
    engine.reserve(unit, layout.header_bytes + align(length), stored, tenant)
    return engine.pages.create(unit, layout)


def fill(write: StateWrite, blob: bytes | bytearray | memoryview) -> None:
    """Store a state that is in memory already, and commit it."""
    source = memoryview(blob).cast("B")
    with write:
        while (segment := write.next_segment()) is not None:
            segment[:] = source[: len(segment)]
            source = source[len(segment) :]
        write.commit()


def get(engine: Engine, namespace: bytes, number: int) -> memoryview | None:
    """See `Store.state`."""
    unit = unit_of_namespace(namespace)
    while True:
        with engine.catalog.snapshot() as reader:
            engine.check_quarantine(reader, unit)
            state = _find(reader, unit, number)
        if state is None:
            return None
        try:
            view = engine.maps.rows(state.page, 0, 0, 0, state.length)
        except (PageGone, PageCorrupt) as error:
            quarantine(engine, error, unit)
            continue
        engine.usage.note(unit, engine.clock())
        return view


def numbers(engine: Engine, namespace: bytes) -> list[int]:
    """See `Store.states`."""
    with engine.catalog.snapshot() as reader:
        record = reader.namespace(unit_of_namespace(namespace))
        return [number for number, _ in scan_states(reader, record)] if record else []


def drop(engine: Engine, namespace: bytes, number: int | None) -> int:
    """See `Store.drop_states`."""

    def change(writer: Writer) -> int:
        record = writer.namespace(unit_of_namespace(namespace))
        if record is None:
            return 0
        gone = [item for item in scan_states(writer, record) if number is None or item[0] == number]
        for found, state in gone:
            refs.release(writer, state.page)
            writer.delete("states", state_key(record, found))
        if gone:
            record.states -= len(gone)
            writer.put_namespace(record)
            refresh_or_remove(writer, record.unit)
        return len(gone)

    return engine.catalog.write(change)


def scan_states(reader: Reader, record: NamespaceRecord) -> Iterator[tuple[int, StateRecord]]:
    """Number and record of each state of a unit."""
    for key, raw in reader.scan("states", prefix=record.uid.to_bytes(8, "big")):
        yield int.from_bytes(key[8:], "big"), StateRecord.decode(raw)


def state_key(record: NamespaceRecord, number: int) -> bytes:
    """Where a state of a unit is kept."""
    return record.uid.to_bytes(8, "big") + number.to_bytes(4, "big")


def _find(reader: Reader, unit: bytes, number: int) -> StateRecord | None:
    record = reader.namespace(unit)
    if record is None or not 0 <= number <= MAX_NUMBER:
        return None
    raw = reader.get("states", state_key(record, number))
    return None if raw is None else StateRecord.decode(raw)

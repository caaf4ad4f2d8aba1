"""Names of namespaces, some at a time, and the files they lie in."""

from __future__ import annotations

from pathlib import Path

from .accounts import Listing
from .engine import Engine
from .errors import UnknownNamespace
from .gone import Gone, find
from .names import key_of, unit_of_namespace
from .page import page_path
from .records import NamespaceRecord
from .states import scan_states
from .units import sessions_of


def scan_namespaces(
    engine: Engine, after: bytes | None, count: int, listing: Listing
) -> tuple[list[bytes], bool]:
    """See `Store.scan_namespaces`."""
    prefix = unit_of_namespace(listing.tag)
    start = prefix if after is None else key_of(unit_of_namespace(after)) + b"\0"
    found: list[bytes] = []
    with engine.catalog.snapshot() as reader:
        for _, raw in reader.scan("namespaces", start=start, prefix=prefix):
            if len(found) == count:
                return found, True
            name = NamespaceRecord.decode(raw).namespace
            if listing.holds(name):
                found.append(name)
    return found, False


def page_files(engine: Engine, namespace: bytes) -> list[Path]:
    """See `Store.page_files`."""
    unit = unit_of_namespace(namespace)
    with engine.catalog.snapshot() as reader:
        record = reader.namespace(unit)
        if record is None:
            raise UnknownNamespace(namespace)
        pages = {page for session in sessions_of(reader, unit) for page in session.pages}
        pages |= {state.page for _, state in scan_states(reader, record)}
    return [Path(page_path(engine.directory.pages, page)) for page in sorted(pages)]


def find_gone(engine: Engine, namespace: bytes) -> Gone | None:
    """See `Store.gone`."""
    with engine.catalog.snapshot() as reader:
        return find(reader, unit_of_namespace(namespace))

"""References to pages, and the accounting of their bytes: the one accountant of the budget.

`PageRecord.refs` is the number of sessions (or states) that name the page. A page that nothing names has no
record. `Counters.bytes` is the sum of `PageRecord.bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from . import accounts
from .catalog import Writer
from .digest import filled_rows
from .records import PageRecord
from .spares import Freed


def charge(writer: Writer, page: int, record: PageRecord | None, count: int, tenant: bytes) -> None:
    """Add bytes to a page with this record; without one it is new, and the tenant's from now on."""
    if record is None:
        record = PageRecord(0, 0)
        accounts.give_page(writer, page, tenant)
    record.bytes += count
    writer.totals.bytes += count
    if tenant:
        accounts.add(writer, accounts.owner_of_page(writer, page), count)
    writer.put_page(page, record)


def change(writer: Writer, before: Mapping[int, int], after: Mapping[int, int]) -> None:
    """A session named the pages `before` and names the pages `after`. New pages must have been charged."""
    for page in after:
        if page not in before:
            acquire(writer, page)
    for page in before:
        if page not in after:
            release(writer, page)


def acquire(writer: Writer, page: int) -> None:
    """One more session names the page."""
    record = writer.page(page)
    if record is None:
        raise LookupError(f"page {page:016x} has no record")
    record.refs += 1
    writer.put_page(page, record)


def release(writer: Writer, page: int) -> None:
    """One session fewer names the page; the last one frees it."""
    record = writer.page(page)
    if record is None:
        return
    record.refs -= 1
    if record.refs > 0:
        writer.put_page(page, record)
        return
    writer.totals.bytes -= record.bytes
    accounts.forget_page(writer, page, record.bytes)
    writer.totals.freed += 1
    key = page.to_bytes(8, "big")
    writer.delete("pages", key)
    writer.delete("unsynced", key)
    fill = filled_rows(writer, page)
    delete_prefix(writer, "digests", key)
    writer.freed.append(Freed(page, record.bytes, record.lent, fill))


def delete_prefix(writer: Writer, table: str, prefix: bytes) -> int:
    """Remove every key that begins with `prefix`; how many there were."""
    keys: Iterable[bytes] = [key for key, _ in writer.scan(table, prefix=prefix)]
    return sum(writer.delete(table, key) for key in keys)

"""Rows on their way out: straight from the page's map, or unpacked in chunks while the socket drains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from pionkv.kernels import Element, LayerSpec
from pionkv.kernels.formats import LAYER_FORMATS, Format
from pionkv.protocol import reply
from pionkv.storage import Rows, Run

from .buffers import CHUNK_BYTES
from .clients import Client
from .dispatch import Slow
from .output import GATHER_BYTES

INLINE_BYTES = 1 << 14
"""Up to this many bytes of elements are unpacked on the event loop: a thread takes longer to be woken."""


class Form(Enum):
    """What the FMT of a V.FETCH may ask for."""

    F32 = "F32"
    F16 = "F16"
    NATIVE = "NATIVE"
    RAW = "RAW"

    def element(self, spec: LayerSpec) -> Element | None:
        """What to unpack rows of this layer into; None sends the stored bytes as they are.

        NATIVE is the original's: fp16 layers as they are, every other format as fp32. Rows of a format that
        codes groups of them have no bytes of their own: RAW sends fp16.
        """
        return _ELEMENTS[self._name_, spec.format]


FORMS = {form.name: form for form in Form}


def _element(form: Form, stored: Format) -> Element | None:
    if form is Form.RAW and stored.grouped:
        return Element.F16
    if form is Form.RAW or (form is Form.NATIVE and stored.verbatim is Element.F16):
        return None
    element = Element.F16 if form is Form.F16 else Element.F32
    return None if stored.verbatim is element else element


_ELEMENTS = {
    (form.name, name): _element(form, stored) for form in Form for name, stored in LAYER_FORMATS.items()
}
"""By their names: a form by itself would be hashed in Python."""


def bulk_or_send(client: Client, parts: Sequence[memoryview]) -> bytes | Slow:
    """One bulk string of these parts: as bytes when it is small, else sent as the peer reads."""
    size = sum(part.nbytes for part in parts)
    return reply.bulk(b"".join(parts)) if size <= GATHER_BYTES else _send_bulk(client, parts, size)


async def _send_bulk(client: Client, parts: Sequence[memoryview], size: int) -> None:
    with client.out.reply_in_parts():
        client.out.write(reply.bulk_header(size))
        await client.out.send(parts)
        client.out.write(reply.CRLF)


def _size(rows: Rows, element: Element | None) -> int:
    """Length of the bulk string that holds these rows."""
    return rows.count * (rows.spec.row_bytes if element is None else rows.spec.dim * element.itemsize)


def reply_now(client: Client, rows: Rows, form: Form) -> bytes | None:
    """One bulk string, if nobody has to wait for it: itself if it is small, nothing if it was sent."""
    element = form.element(rows.spec)
    size = _size(rows, element)
    if size > INLINE_BYTES:
        return b"" if element is None and _send_stored(client, rows, size) else None
    if not (element is None or client.service.kernels.has(rows.spec)):
        return None
    count_sent(client, rows, size)
    if element is None:
        return reply.bulk(b"".join(rows.parts))
    out = bytearray(size)
    _unpack(rows.runs, element, memoryview(out))
    return reply.bulk(out)


def _send_stored(client: Client, rows: Rows, size: int) -> bool:
    """Send stored bytes as one bulk string in one write, if they are not too many for that; whether so."""
    sent = client.out.send_whole([reply.bulk_header(size), *rows.parts, reply.CRLF], size)
    if sent:
        count_sent(client, rows, size)
    return sent


async def send_rows(client: Client, found: Iterable[Rows | None], form: Form) -> None:
    """Send one bulk string per layer, null for a layer without rows, in order."""
    for rows in found:
        if rows is None:
            client.out.write(reply.null(client.protocol))
            continue
        element = form.element(rows.spec)
        size = _size(rows, element)
        if element is None and _send_stored(client, rows, size):
            continue
        client.out.write(reply.bulk_header(size))
        if element is None:
            await client.out.send(rows.parts)
        else:
            await _send_unpacked(client, rows, element)
        client.out.write(reply.CRLF)
        count_sent(client, rows, size)


def count_sent(client: Client, rows: Rows, size: int) -> None:
    """Enter rows into the metrics."""
    metrics = client.service.metrics
    metrics.rows_fetched += rows.count
    metrics.rows_out[rows.spec.format] += size
    client.service.receipt.totals.bytes += size


async def _send_unpacked(client: Client, rows: Rows, element: Element) -> None:
    """Buffers are held only while the peer reads: when it stops they are given back, and filled anew."""
    sent, size = 0, rows.count * rows.spec.dim * element.itemsize
    while (sent := await _send_while_read(client, rows, element, sent)) < size:
        await client.out.drained()


async def _send_while_read(client: Client, rows: Rows, element: Element, start: int) -> int:
    """Send from byte `start` on; how far it came: to the end, or to where the peer stopped to read.

    Two chunks take turns: one is unpacked by a thread while the socket takes the other.
    """
    service = client.service
    row_size = rows.spec.dim * element.itemsize
    first_row, skip = divmod(start, row_size)
    batches = _batches(rows, CHUNK_BYTES // row_size, first_row)
    chunks = [service.chunks.take(), service.chunks.take()]

    def unpack_next() -> asyncio.Future[memoryview] | None:
        batch = next(batches, None)
        if batch is None:
            return None
        chunks.reverse()
        return service.loop.run_in_executor(service.threads, _unpack, batch, element, chunks[0])

    job = unpack_next()
    try:
        while job is not None:
            ready = (await job)[skip:]
            skip = 0
            job = unpack_next()
            taken = await client.out.send_copies(ready)
            start += taken
            if taken < ready.nbytes:
                break
        return start
    finally:
        if job is not None:
            await asyncio.wait((job,))
        for chunk in chunks:
            service.chunks.give(chunk)


def _unpack(runs: list[Run], element: Element, out: memoryview) -> memoryview:
    """Unpack runs one after the other; what they fill of `out`."""
    filled = 0
    for run in runs:
        size = run.count * run.spec.dim * element.itemsize
        run.unpack(element, out[filled : filled + size])
        filled += size
    return out[:filled]


def _batches(rows: Rows, most: int, first: int) -> Iterator[list[Run]]:
    """The runs from row `first` on, in batches of at most `most` rows, cut where need be."""
    batch, room = list[Run](), most
    for run in rows.runs:
        start = min(first, run.count)
        first -= start
        while start < run.count:
            end = min(start + room, run.count)
            batch.append(run.cut(start, end))
            room -= end - start
            start = end
            if not room:
                yield batch
                batch, room = [], most
    if batch:
        yield batch

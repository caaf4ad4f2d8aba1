"""Rows on their way out: straight from the page's map, or unpacked in chunks while the socket drains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from enum import Enum

from pionkv.kernels import Element, LayerSpec, unpack
from pionkv.protocol import reply
from pionkv.storage import Rows

from .buffers import CHUNK_BYTES
from .clients import Client

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

        NATIVE is the original's: fp16 layers as they are, every other format as fp32.
        """
        if self is Form.RAW or (self is Form.NATIVE and spec.verbatim_element is Element.F16):
            return None
        element = Element.F16 if self is Form.F16 else Element.F32
        return None if spec.verbatim_element is element else element


def bytes_sent(rows: Rows, form: Form) -> int:
    """Length of the bulk string that holds these rows."""
    element = form.element(rows.spec)
    size = rows.spec.row_bytes if element is None else rows.spec.dim * element.itemsize
    return rows.count * size


async def send_rows(client: Client, found: Iterable[Rows | None], form: Form) -> None:
    """Send one bulk string per layer, null for a layer without rows, in order."""
    for rows in found:
        if rows is None:
            client.out.write(reply.null(client.protocol))
            continue
        client.out.write(reply.bulk_header(bytes_sent(rows, form)))
        element = form.element(rows.spec)
        if element is None:
            await client.out.send(rows.parts)
        else:
            await _send_unpacked(client, rows, element)
        client.out.write(b"\r\n")


async def _send_unpacked(client: Client, rows: Rows, element: Element) -> None:
    """Two chunks take turns: one is unpacked by a thread while the socket takes the other."""
    service = client.service
    spec, size = rows.spec, rows.spec.dim * element.itemsize
    pieces = list(_pieces(rows, CHUNK_BYTES // size))
    chunks = [service.chunks.take(), service.chunks.take()]
    job: asyncio.Future[memoryview] | None = None
    try:
        for index in range(len(pieces) + 1):
            ready = await job if job is not None else None
            job = None
            if index < len(pieces):
                part, count = pieces[index]
                out = chunks[index % 2][: count * size]
                job = service.loop.run_in_executor(service.threads, _unpack, spec, part, count, element, out)
            if ready is not None:
                await client.out.send((ready,))
    finally:
        if job is not None:
            await asyncio.wait((job,))
        for chunk in chunks:
            service.chunks.give(chunk)


def _unpack(spec: LayerSpec, part: memoryview, count: int, element: Element, out: memoryview) -> memoryview:
    unpack(spec, part, count, element, out)
    return out


def _pieces(rows: Rows, rows_per_piece: int) -> Iterator[tuple[memoryview, int]]:
    """The parts cut to at most so many rows."""
    size = rows.spec.row_bytes
    for part in rows.parts:
        for start in range(0, part.nbytes, rows_per_piece * size):
            piece = part[start : start + rows_per_piece * size]
            yield piece, piece.nbytes // size

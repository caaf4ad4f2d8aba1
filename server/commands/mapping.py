"""KV.PREFIX.MAP and V.MAP: where rows lie in page files, for clients on this machine that map them."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from pionkv.kernels.formats import format_by_name
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import Mapped

from ..arguments import Argument, Cursor, blob, integer
from ..clients import Client
from ..dispatch import Handler
from .prefix import K_SUFFIX, checked_name
from .vfetch import credit_restore, layers_between

PREFIX_MAP, MAP = "KV.PREFIX.MAP", "V.MAP"
SIDE, RUN = struct.Struct("<HBBIIII"), struct.Struct("<IIQ")
"""Layer, side, tag of the format, dim, rope, head, runs; and of each run: file, rows, offset."""


def locate_prefix(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.MAP ns: where all rows of a prefix are."""
    _check_here(client, PREFIX_MAP, "V.FETCHALL")
    namespace = checked_name(client, args[1])
    located = client.service.store.locate_prefix(namespace)
    if located is None:
        return reply.null(client.protocol)
    record, found = located
    credit_restore(client, namespace + K_SUFFIX)
    return _told(client, PREFIX_MAP, record.generation, record.tokens, found)


def locate(client: Client, args: Sequence[Argument]) -> bytes:
    """V.MAP sid start end [LAYERS a b]: where rows start to end - 1 of a session are."""
    _check_here(client, MAP, "V.FETCH")
    sid, start, end = blob(args[1]), integer(args[2]), integer(args[3])
    if not 0 <= start < end:
        raise CommandError("ERR", f"{MAP} invalid range: end must exceed start (>=0)")
    layers, cursor = None, Cursor(args[4:])
    if cursor.left >= 3 and cursor.take_keyword("LAYERS"):
        layers = layers_between(MAP, integer(cursor.take()), integer(cursor.take()))
    cursor.end(MAP)
    generation, found = client.service.store.locate(sid, layers, start, end)
    if not found:
        return reply.null(client.protocol)
    if any(each.first for each in found):
        credit_restore(client, sid)
    return _told(client, MAP, generation, end - start, found)


def _check_here(client: Client, command: str, instead: str) -> None:
    if not client.same_machine:
        raise CommandError("ERR", f"{command} serves clients on this machine only; use {instead}")


def _told(client: Client, command: str, generation: int, rows: int, found: Sequence[Mapped]) -> bytes:
    """Generation, rows, files, and for each layer and side where its rows are in them."""
    files = {place.path: None for mapped in found for place in mapped.places}
    numbers = {path: number for number, path in enumerate(files)}
    layers = b"".join(_layer(mapped, numbers) for mapped in found)
    described = [_file(command, path) for path in files]
    _credit(client, found, rows)
    return reply.encode([generation, rows, described, layers], client.protocol)


def _file(command: str, path: Path) -> list[bytes | int]:
    """A file, and what tells it from another one that a client may see under the same path."""
    try:
        found = path.stat()
    except OSError as error:
        raise CommandError("STALE", f"{command}: the rows changed meanwhile") from error
    return [os.fsencode(path), found.st_dev, found.st_ino, found.st_mtime_ns]


def _layer(mapped: Mapped, numbers: dict[Path, int]) -> bytes:
    spec = mapped.spec
    tag = format_by_name(spec.format).tag
    head = SIDE.pack(mapped.layer, mapped.side, tag, spec.dim, spec.rope, spec.head_dim, len(mapped.places))
    runs = (
        RUN.pack(numbers[each.path], each.nbytes // spec.row_bytes, each.offset) for each in mapped.places
    )
    return b"".join((head, *runs))


def _credit(client: Client, found: Sequence[Mapped], rows: int) -> None:
    """Rows that are mapped count as served."""
    for mapped in found:
        count = rows * mapped.spec.row_bytes
        client.service.metrics.rows_fetched += rows
        client.service.metrics.rows_out[mapped.spec.format] += count
        client.service.receipt.totals.bytes += count


HANDLERS: dict[str, Handler] = {PREFIX_MAP: locate_prefix, MAP: locate}

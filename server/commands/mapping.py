"""KV.PREFIX.MAP and V.MAP: where rows lie in page files, for clients on this machine that map them."""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pionkv.kernels.formats import format_by_name
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import Located

from ..arguments import Argument, Cursor, blob, integer
from ..clients import Client
from ..dispatch import Handler
from .prefix import K_SUFFIX, checked_name
from .vfetch import credit_restore, layers_between

DESCRIBED_KEPT = 256
"""Maps that are kept as they are told."""
PREFIX_MAP, MAP = "KV.PREFIX.MAP", "V.MAP"
SIDE, RUN = struct.Struct("<HBBIIII"), struct.Struct("<IIQ")
"""Layer, side, tag of the format, dim, rope, head, runs; and of each run: file, rows, offset."""


class Described(NamedTuple):
    """A map as it is told, but for what may change about its files.

    Attributes:
        paths: The files.
        layers: For each layer and side what it is, and where its rows are in the files.
        stored: Bytes of the rows, by their format.
    """

    paths: list[bytes]
    layers: bytes
    stored: Counter[str]


def locate_prefix(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.MAP ns: where all rows of a prefix are."""
    _check_here(client, PREFIX_MAP, "V.FETCHALL")
    namespace = checked_name(client, args[1])
    located = client.service.store.locate_prefix(namespace)
    if located is None:
        return reply.null(client.protocol)
    return _told(client, PREFIX_MAP, located, namespace + K_SUFFIX)


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
    located = client.service.store.locate(sid, layers, start, end)
    return _told(client, MAP, located, sid) if located.mapped else reply.null(client.protocol)


def _check_here(client: Client, command: str, instead: str) -> None:
    if not client.same_machine:
        raise CommandError("ERR", f"{command} serves clients on this machine only; use {instead}")


def _told(client: Client, command: str, located: Located, sid: bytes) -> bytes:
    """Generation, rows, files, and where the rows are in them; `sid` begins a restore with its first rows."""
    described = _described(located)
    files = [_file(command, path) for path in described.paths]
    if located.first:
        credit_restore(client, sid)
    metrics, totals = client.service.metrics, client.service.receipt.totals
    metrics.rows_fetched += located.rows * len(located.mapped)
    for stored, nbytes in described.stored.items():
        metrics.rows_out[stored] += nbytes
        totals.bytes += nbytes
    return reply.encode([located.generation, located.rows, files, described.layers], client.protocol)


@lru_cache(DESCRIBED_KEPT)
def _described(located: Located) -> Described:
    """As long as the store knows where rows are it gives the same object, so that is described once."""
    numbers: dict[Path, int] = {}
    stored, layers = Counter[str](), []
    for layer, side, spec, places in located.mapped:
        tag = format_by_name(spec.format).tag
        layers.append(SIDE.pack(layer, side, tag, spec.dim, spec.rope, spec.head_dim, len(places)))
        for place in places:
            number = numbers.setdefault(place.path, len(numbers))
            layers.append(RUN.pack(number, place.nbytes // spec.row_bytes, place.offset))
        stored[spec.format] += located.rows * spec.row_bytes
    return Described(list(map(os.fsencode, numbers)), b"".join(layers), stored)


def _file(command: str, path: bytes) -> list[bytes | int]:
    """A file, and what tells it from another one that a client may see under the same path."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise CommandError("STALE", f"{command}: the rows changed meanwhile") from error
    return [path, found.st_dev, found.st_ino, found.st_mtime_ns]


HANDLERS: dict[str, Handler] = {PREFIX_MAP: locate_prefix, MAP: locate}

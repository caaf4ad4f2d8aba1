"""KV.PREFIX.MATCH, MODELS, MAP: the longest stored prefix of some tokens, and where its rows are."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pionkv.kernels.formats import format_by_name
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import Mapped, Match

from ..arguments import Argument, Cursor, blob, integer_within
from ..clients import Client
from ..dispatch import Handler, Slow
from .prefix import K_SUFFIX, checked_name, model_digest
from .vfetch import credit_restore

if TYPE_CHECKING:
    from ..tier.link import TierLink

MATCH, MAP = "KV.PREFIX.MATCH", "KV.PREFIX.MAP"
TOKEN_BYTES = 4
SIDE, RUN = struct.Struct("<HBBIIII"), struct.Struct("<IIQ")
"""Of a map: layer, side, tag of the format, dim, rope, head, runs; and of each: file, rows, offset."""


@dataclass(slots=True)
class Options:
    """What may follow the tokens."""

    model: bytes = b""
    fewest: int = 1
    whole: bool = False


def match(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """KV.PREFIX.MATCH tokens [MODEL digest] [MIN n] [WHOLE]: namespace, tokens, generation; or null."""
    ids = token_ids(MATCH, client, args[1])
    options = _options(client, Cursor(args, 2))
    if client.service.tier is not None:
        return _match_tier(client, client.service.tier, ids, options)
    return _match(client, ids, options)


async def _match_tier(client: Client, tier: TierLink, ids: NDArray[np.uint32], options: Options) -> bytes:
    await tier.bring_match(ids, options.model, client.listing)
    return _match(client, ids, options)


def _match(client: Client, ids: NDArray[np.uint32], options: Options) -> bytes:
    service = client.service
    found = service.store.match(
        ids, options.model, fewest=options.fewest, whole=options.whole, listing=client.listing
    )
    if found is None:
        service.missed()
        return reply.null(client.protocol)
    service.metrics.hits += 1
    _claim(client, found)
    record = found.record
    name = client.user.shown(record.namespace)
    return reply.encode([name, found.tokens, record.generation], client.protocol)


def token_ids(command: str, client: Client, argument: Argument) -> NDArray[np.uint32]:
    """Token ids, 32 bits each, little-endian. Raises `CommandError`."""
    data, limit = blob(argument), client.service.limits.block_hashes
    if len(data) % TOKEN_BYTES:
        raise CommandError("ERR", f"{command}: {len(data)} bytes of tokens are no multiple of {TOKEN_BYTES}")
    if len(data) // TOKEN_BYTES > limit:
        raise CommandError("ERR", f"{command}: {len(data) // TOKEN_BYTES} tokens (limit {limit})")
    return np.frombuffer(data, "<u4")


def _options(client: Client, cursor: Cursor) -> Options:
    options = Options()
    while cursor:
        if cursor.left >= 2 and cursor.take_keyword("MODEL"):
            options.model = model_digest(cursor.take())
        elif cursor.left >= 2 and cursor.take_keyword("MIN"):
            high = client.service.limits.block_hashes
            options.fewest = integer_within(cursor.take(), 1, high, f"MIN out of range (1..{high})")
        elif cursor.take_keyword("WHOLE"):
            options.whole = True
        else:
            cursor.end(MATCH)
    return options


def _claim(client: Client, found: Match) -> None:
    """A part of a prefix saves a part of its prefill."""
    record = found.record
    if 0 < found.tokens < record.tokens:
        micros = record.prefill_us * found.tokens // record.tokens
        client.service.receipt.claim(record.namespace, found.tokens, micros or None)
    else:
        client.service.receipt.claim(record.namespace, None, None)


def models(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.MODELS: each model's digest, and how many prefixes list tokens under it."""
    found = client.service.store.models(client.user.tenant.encode())
    return reply.encode([item for pair in sorted(found.items()) for item in pair], client.protocol)


def locate(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.MAP ns: generation, rows, files, and for each layer and side where its rows are in them."""
    if not client.same_machine:
        raise CommandError("ERR", f"{MAP} serves clients on this machine only; use V.FETCHALL")
    namespace = checked_name(client, args[1])
    located = client.service.store.locate_prefix(namespace)
    if located is None:
        return reply.null(client.protocol)
    record, found = located
    files = {place.path: None for mapped in found for place in mapped.places}
    numbers = {path: number for number, path in enumerate(files)}
    layers = b"".join(_layer(mapped, numbers) for mapped in found)
    _credit(client, found, record.tokens)
    credit_restore(client, namespace + K_SUFFIX)
    described = [_file(path) for path in files]
    return reply.encode([record.generation, record.tokens, described, layers], client.protocol)


def _file(path: Path) -> list[bytes | int]:
    """A file, and what tells it from another one that a client may see under the same path."""
    try:
        found = path.stat()
    except OSError as error:
        raise CommandError("STALE", f"{MAP}: the namespace changed meanwhile") from error
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


HANDLERS: dict[str, Handler] = {MAP: locate, MATCH: match, "KV.PREFIX.MODELS": models}

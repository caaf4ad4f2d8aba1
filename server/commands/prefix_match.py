"""KV.PREFIX.MATCH and MODELS: the longest stored prefix of some tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import Match

from ..arguments import Argument, Cursor, blob, integer_within
from ..clients import Client
from ..dispatch import Handler, Slow
from .prefix import model_digest

if TYPE_CHECKING:
    from ..tier.link import TierLink

MATCH = "KV.PREFIX.MATCH"
TOKEN_BYTES = 4


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


HANDLERS: dict[str, Handler] = {MATCH: match, "KV.PREFIX.MODELS": models}

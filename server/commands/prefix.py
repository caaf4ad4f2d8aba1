"""KV.PREFIX.REGISTER, LOOKUP, DROP, INFO, OWNER."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import MODEL_BYTES, Schema, StaleGeneration, StoreInfo

from ..arguments import Argument, Cursor, blob, integer, integer_within, keyword, shown
from ..clients import Client
from ..dispatch import Handler, Several, Slow
from ..metrics import Metrics
from ..schemas import for_keys, per_layer, uniform

if TYPE_CHECKING:
    from ..tier.link import TierLink

REGISTER, LOOKUP = "KV.PREFIX.REGISTER", "KV.PREFIX.LOOKUP"
HIT, MISS = reply.simple("HIT"), reply.simple("MISS")
HASH_BYTES = 8
K_SUFFIX = b"_pk"
MICROSECONDS = 1000

REGISTER_USAGE = CommandError("ERR", "KV.PREFIX.REGISTER requires: ns_key kv_dim vquant")
BLOCKS_USAGE = CommandError("ERR", "BLOCKS requires: block_size hash_count hash_blob")
NEEDS_VALUE = CommandError("ERR", "KV.PREFIX.LOOKUP option needs a value")
UNKNOWN_OPTION = CommandError("ERR", "KV.PREFIX.LOOKUP unknown option (TOKENS, PREFILL_MS)")


@dataclass(slots=True)
class Options:
    """What may follow the schema of a REGISTER."""

    blocks: tuple[int, bytes] | None = None
    prefill_us: int | None = None
    model: bytes = b""


def register(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.REGISTER ns dim format [options], or ns SCHEMA K n spec ... V n spec ... [options]."""
    cursor = Cursor(args, 1)
    namespace = checked_name(client, cursor.take())
    if cursor.take_keyword("SCHEMA"):
        k_schema, v_schema = two_sides(REGISTER, client, cursor)
    else:
        k_schema, v_schema = same_for_all(REGISTER, client, cursor)
    options = _options(client, cursor)
    client.service.store.register(
        namespace,
        k_schema,
        v_schema,
        blocks=options.blocks,
        prefill_us=options.prefill_us,
        model=options.model,
    )
    return reply.OK


def checked_name(client: Client, argument: Argument) -> bytes:
    """A namespace's name of an allowed length."""
    limit = client.service.limits.name_bytes
    name = blob(argument)
    if not 1 <= len(name) <= limit:
        raise CommandError("ERR", f"ns_key length must be 1..{limit}")
    return name


def same_for_all(command: str, client: Client, cursor: Cursor) -> tuple[Schema, Schema]:
    """`kv_dim format`: one format and dim for every layer; the schemas of both sides."""
    dim = integer_within(cursor.take(), 1, client.service.limits.dim, "kv_dim out of range")
    schema = uniform(command, "vquant", shown(cursor.take()), dim)
    return for_keys(schema), schema


def two_sides(command: str, client: Client, cursor: Cursor) -> tuple[Schema, Schema]:
    """`K n spec ... V n spec ...`: the schemas of both sides."""
    return for_keys(_side(command, client, cursor, "K")), _side(command, client, cursor, "V")


def _side(command: str, client: Client, cursor: Cursor, side: str) -> Schema:
    if not cursor.take_keyword(side):
        raise CommandError("ERR", f"{command} SCHEMA requires: K n spec ... V n spec ...")
    return per_layer(command, cursor, client.service.limits)


def _options(client: Client, cursor: Cursor) -> Options:
    options = Options()
    while cursor:
        if cursor.take_keyword("BLOCKS"):
            options.blocks = _blocks(client, cursor)
        elif cursor.left >= 2 and cursor.take_keyword("PREFILL_MS"):
            options.prefill_us = prefill_us(client, cursor.take())
        elif cursor.left >= 2 and cursor.take_keyword("MODEL"):
            options.model = model_digest(cursor.take())
        else:
            cursor.end(REGISTER)
    return options


def _blocks(client: Client, cursor: Cursor) -> tuple[int, bytes]:
    if cursor.left < 3:
        raise BLOCKS_USAGE.again()
    limits = client.service.limits
    size = integer_within(
        cursor.take(), 1, limits.block_size, f"BLOCKS block_size out of range (1..{limits.block_size})"
    )
    count = integer_within(
        cursor.take(), 0, limits.block_hashes, f"BLOCKS hash_count out of range (0..{limits.block_hashes})"
    )
    hashes = blob(cursor.take())
    if len(hashes) != count * HASH_BYTES:
        raise CommandError("ERR", "BLOCKS hash_blob length mismatch")
    return size, hashes


def model_digest(argument: Argument) -> bytes:
    """What names the model of a prefix."""
    digest = blob(argument)
    if len(digest) > MODEL_BYTES:
        raise CommandError("ERR", f"MODEL of {len(digest)} bytes (limit {MODEL_BYTES})")
    return digest


def prefill_us(client: Client, argument: Argument) -> int:
    """A PREFILL_MS, in microseconds."""
    high = client.service.limits.prefill_ms
    return integer_within(argument, 0, high, f"PREFILL_MS out of range (0..{high})") * MICROSECONDS


@dataclass(slots=True)
class Question:
    """What may follow the name of a LOOKUP."""

    tokens: int | None = None
    prefill_us: int | None = None
    at: int | None = None


NOTHING_MORE = Question()


def lookup(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.LOOKUP ns [TOKENS n] [PREFILL_MS ms] [AT generation]: HIT when its rows can be restored."""
    asked = _question(client, Cursor(args, 2)) if len(args) > 2 else NOTHING_MORE
    service, namespace = client.service, blob(args[1])
    found = service.store.lookup(namespace)
    generation = found.generation if found is not None else 0
    if asked.at is not None and generation != asked.at:
        raise StaleGeneration(namespace, generation, asked.at)
    if found is None:
        service.missed((namespace,))
        return MISS
    service.metrics.hits += 1
    service.receipt.claim(namespace, asked.tokens, asked.prefill_us)
    return HIT


def lookups(client: Client, lines: Sequence[list[bytes]], longest: int) -> bytes | None:
    """KV.PREFIX.LOOKUP, several times, without options, at one moment."""
    service = client.service
    # A tier may have to bring what would be a miss here.
    if service.tier is not None or longest > 2:
        return None
    names = [name for _, name in lines]
    found = service.store.lookups(names)
    if misses := [name for name, record in zip(names, found, strict=True) if record is None]:
        service.missed(misses)
    if len(misses) < len(names):
        service.metrics.hits += len(names) - len(misses)
        service.receipt.forget_claims(record.namespace for record in found if record is not None)
    return b"".join([MISS if record is None else HIT for record in found])


def _question(client: Client, cursor: Cursor) -> Question:
    asked = Question()
    while cursor:
        word = keyword(cursor.take())
        if word not in ("TOKENS", "PREFILL_MS", "AT"):
            raise UNKNOWN_OPTION.again()
        if not cursor:
            raise NEEDS_VALUE.again()
        if word == "TOKENS":
            high = client.service.limits.tokens
            asked.tokens = integer_within(cursor.take(), 0, high, f"TOKENS out of range (0..{high})")
        elif word == "AT":
            asked.at = integer(cursor.take())
        else:
            asked.prefill_us = prefill_us(client, cursor.take())
    return asked


def drop(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """KV.PREFIX.DROP ns [ns ...]: how many there were, here or in the tier."""
    return drop_names(client, list(map(blob, args[1:])))


def drop_names(client: Client, given: Sequence[bytes]) -> bytes | Slow:
    """Remove prefixes, here and in the tier; the reply says how many there were."""
    notices, store, tier = client.service.notices, client.service.store, client.service.tier
    names = list(dict.fromkeys(given))
    there = notices.present(names)
    elsewhere = [] if tier is None else [name for name in names if not store.has_namespace(name)]
    count = store.drop_namespaces(names)
    client.service.attention.residents.drop(names)
    notices.dropped(there)
    return reply.integer(count) if tier is None else _drop_in_tier(tier, names, elsewhere, count)


async def _drop_in_tier(tier: TierLink, names: list[bytes], elsewhere: list[bytes], count: int) -> bytes:
    """The tier is told; a prefix that only it held counts, too."""
    found = await tier.drop(names)
    return reply.integer(count + sum(name in found for name in elsewhere))


def info(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.INFO: figures about all prefixes, the original's lines in its order; a tenant's own for it.

    There is no journal here (0), sessions are bounded by the budget alone (0), and every
    worker sees every session: the directory is the store.
    """
    service, tag = client.service, client.user.tag
    totals, metrics = service.store.info(), service.sums.all_metrics()
    if tag:
        totals, metrics = own_numbers(client), Metrics()
    prefixes = list(service.store.namespaces(tag))
    lines = {
        "registered_prefixes": len(prefixes),
        "total_prefix_tokens": sum(view.tokens * view.layers for view in prefixes if view.tokens > 0),
        "vstore_sessions": totals.sessions,
        "vstore_total_fetches": metrics.rows_fetched,
        "vstore_evictions": totals.evictions,
        "vstore_max_sessions": 0,
        "vstore_bytes": totals.bytes,
        **dict.fromkeys(("wal_enabled", "wal_bytes", "wal_appended", "wal_replayed"), 0),
        "directory_enabled": 1,
        "my_worker_id": service.place.number,
        "directory_entries": totals.sessions,
        "sdpa_warm": service.sums.gauge("attend_resident_layers"),
        "sdpa_cold": service.sums.gauge("attend_cold_layers"),
        "sdpa_demotions": metrics.attend_demoted,
        "sdpa_rehydrates": metrics.attend_rehydrated,
    }
    return reply.bulk("".join(f"{name}:{value}\r\n" for name, value in lines.items()).encode())


def own_numbers(client: Client) -> StoreInfo:
    """What a tenant has stored; what cannot be told apart from others' is 0."""
    store, user = client.service.store, client.user
    held = store.accounts().get(user.tenant.encode())
    rows = [sum(view.rows) for view in store.sessions(user.tag)]
    return StoreInfo(
        sessions=len(rows),
        namespaces=0,
        pages=0,
        rows=sum(rows),
        bytes=held.bytes if held is not None else 0,
        max_bytes=user.max_bytes or None,
        catalog_bytes=0,
        evictions=0,
        quarantined=0,
    )


async def commit(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.COMMIT: everything acknowledged so far is on the disk when this is answered."""
    for step in client.service.store.sync_steps():
        await asyncio.to_thread(step)
    return reply.OK


HANDLERS: dict[str, Handler] = {
    "KV.PREFIX.COMMIT": commit,
    "KV.PREFIX.DROP": drop,
    "KV.PREFIX.INFO": info,
    REGISTER: register,
}
SEVERAL: dict[str, Several] = {LOOKUP: lookups}

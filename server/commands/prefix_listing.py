"""KV.PREFIX.LIST, SCAN, EXPLAIN: which prefixes there are, and why one would hit or miss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import NamespaceRecord, Quarantined, UnknownNamespace, UnknownSession

from ..arguments import Argument, Cursor, blob, integer_within
from ..clients import Client
from ..dispatch import Handler, Slow
from ..glob import compile_glob
from .prefix import model_digest
from .prefix_match import token_ids

if TYPE_CHECKING:
    from ..tier.link import TierLink

LIST, SCAN, EXPLAIN = "KV.PREFIX.LIST", "KV.PREFIX.SCAN", "KV.PREFIX.EXPLAIN"
BEGINNING = b"0"
MARK = b">"
"""A cursor is this and the last name that was looked at."""
DEFAULT_COUNT, MOST = 10, 100_000
PAGE = 256

Wanted = Callable[[bytes], bool]


def _pattern(cursor: Cursor) -> Wanted:
    pattern = compile_glob(blob(cursor.take()))
    return lambda name: pattern.fullmatch(name) is not None


def list_all(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.LIST [MATCH pattern]."""
    cursor, listing = Cursor(args, 1), client.listing
    matches: Wanted = _everything
    if cursor.left >= 2 and cursor.take_keyword("MATCH"):
        matches = _pattern(cursor)
    cursor.end(LIST)
    store = client.service.store
    found: list[bytes] = []
    after, more = None, True
    while more:
        names, more = store.scan_namespaces(after, PAGE, listing)
        found += filter(matches, map(listing.told, names))
        after = names[-1] if names else after
    return reply.encode(found, client.protocol)


def _everything(name: bytes) -> bool:
    return True


def scan(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.SCAN cursor [MATCH pattern] [COUNT n]."""
    at, count = blob(args[1]), DEFAULT_COUNT
    matches: Wanted = _everything
    cursor = Cursor(args, 2)
    while cursor:
        if cursor.left >= 2 and cursor.take_keyword("MATCH"):
            matches = _pattern(cursor)
        elif cursor.left >= 2 and cursor.take_keyword("COUNT"):
            count = integer_within(cursor.take(), 1, MOST, f"{SCAN}: COUNT must be 1-{MOST}")
        else:
            cursor.end(SCAN)
    if at != BEGINNING and not at.startswith(MARK):
        raise CommandError("ERR", "invalid cursor")
    listing = client.listing
    after = None if at == BEGINNING else listing.tag + at.removeprefix(MARK)
    stored, more = client.service.store.scan_namespaces(after, count, listing)
    names = [*map(listing.told, stored)]
    following = MARK + names[-1] if more else BEGINNING
    return reply.encode([following, [*filter(matches, names)]], client.protocol)


def explain(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """KV.PREFIX.EXPLAIN ns [TOKENS ids [MODEL digest]]."""
    namespace, cursor = blob(args[1]), Cursor(args, 2)
    ids, model = None, b""
    while cursor:
        if cursor.left >= 2 and cursor.take_keyword("TOKENS"):
            ids = token_ids(EXPLAIN, client, cursor.take())
        elif cursor.left >= 2 and cursor.take_keyword("MODEL"):
            model = model_digest(cursor.take())
        else:
            cursor.end(EXPLAIN)
    fields = _state(client, namespace)
    if ids is not None:
        fields |= _difference(client, namespace, ids)
        found = client.service.store.match(ids, model, listing=client.listing)
        if found is not None:
            nearest = client.user.shown(found.record.namespace)
            fields |= {"nearest": nearest, "nearest_tokens": found.tokens}
    tier = client.service.tier
    if tier is not None:
        return _explain_tier(client, tier, namespace, fields)
    return _explained(client, fields)


async def _explain_tier(client: Client, tier: TierLink, namespace: bytes, fields: dict[str, object]) -> bytes:
    return _explained(client, fields | await tier.explain(namespace))


def _explained(client: Client, fields: dict[str, object]) -> bytes:
    return reply.encode({name.encode(): value for name, value in fields.items()}, client.protocol)


def _state(client: Client, namespace: bytes) -> dict[str, object]:
    store = client.service.store
    reason = store.miss_reason(namespace)
    fields: dict[str, object] = {"answer": "MISS" if reason else "HIT", "reason": reason}
    try:
        record = store.namespace(namespace)
    except UnknownNamespace:
        gone = store.gone(namespace)
        return fields | ({"reason": gone.why, "since": int(gone.at)} if gone is not None else {})
    return fields | _figures(client, record)


def _figures(client: Client, record: NamespaceRecord) -> dict[str, object]:
    sides = {f"{side}_rows": _rows(client, record.namespace + b"_p" + side.encode()) for side in "kv"}
    return {
        "tokens": max(0, record.tokens),
        "layers": record.layers,
        **sides,
        "states": record.states,
        "bytes": record.bytes,
        "generation": record.generation,
        "hits": record.hits,
        "used": int(record.used),
        "expires": int(record.expires),
        "pins": record.pins,
    }


def _rows(client: Client, sid: bytes) -> str:
    """Rows of each layer of a side, equal ones counted together: `30x512`, or `2x512 1x500`."""
    try:
        rows = client.service.store.session(sid).rows
    except UnknownSession:
        return "no session"
    except Quarantined:
        return "not served"
    runs: list[list[int]] = []
    for count in rows:
        if runs and runs[-1][1] == count:
            runs[-1][0] += 1
        else:
            runs.append([1, count])
    return " ".join(f"{layers}x{count}" for layers, count in runs)


def _difference(client: Client, namespace: bytes, ids: NDArray[np.uint32]) -> dict[str, object]:
    """Where the tokens of a namespace, if they are known, first differ from these."""
    try:
        table = client.service.store.blocks(namespace)
    except UnknownNamespace:
        return {}
    if table is None or table[0] != 1:
        return {}
    known = np.frombuffer(table[1], "<u8")
    both = min(len(known), len(ids))
    unequal = np.flatnonzero(known[:both] != ids[:both])
    return {"differs_at": int(unequal[0]) if len(unequal) else both}


HANDLERS: dict[str, Handler] = {EXPLAIN: explain, LIST: list_all, SCAN: scan}

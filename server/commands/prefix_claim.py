"""KV.PREFIX.CLAIM, and the waiting LOOKUP: a prefix that several want is computed once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.storage import ClaimAnswer

from ..arguments import Argument, integer_within
from ..clients import Client
from ..dispatch import Handler, Slow
from .prefix import LOOKUP, checked_name
from .prefix import lookup as lookup_now

CLAIM = "KV.PREFIX.CLAIM"
WAIT_MS = 600_000
"""Longest wait of a LOOKUP."""
POLL_SECONDS = 0.01
"""Between two looks at the catalog, where any process may have published it."""


def claim(client: Client, args: Sequence[Argument]) -> bytes:
    """KV.PREFIX.CLAIM ns lease: CLAIMED, HELD or HIT; with a lease of 0 it is given back: OK."""
    namespace = checked_name(client, args[1])
    high = client.service.limits.lease_ms
    lease = integer_within(args[2], 0, high, f"{CLAIM}: lease out of range (0..{high})")
    store = client.service.store
    if not lease:
        client.claims.discard(namespace)
        store.release_claim(namespace, client.claimant)
        return reply.OK
    answer = store.claim(namespace, client.claimant, lease / 1000)
    if answer is ClaimAnswer.CLAIMED:
        client.claims.add(namespace)
    return reply.simple(answer.value)


def lookup(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """KV.PREFIX.LOOKUP ns [options] [WAIT ms]: see `prefix.lookup`; with WAIT it may take its time."""
    if len(args) < 4 or bytes(args[-2]).upper() != b"WAIT":  # type: ignore[arg-type]
        return lookup_now(client, args)
    wait = integer_within(args[-1], 0, WAIT_MS, f"WAIT out of range (0..{WAIT_MS})")
    return _wait(client, args[:-2], wait / 1000)


async def _wait(client: Client, args: Sequence[Argument], seconds: float) -> bytes:
    """Look until it can be restored, nobody computes it any more, or the time is over."""
    store, loop = client.service.store, client.service.loop
    namespace = checked_name(client, args[1])
    end = loop.time() + seconds
    while store.miss_reason(namespace) and store.is_claimed(namespace) and loop.time() < end:
        await asyncio.sleep(POLL_SECONDS)
    return lookup_now(client, args)


HANDLERS: dict[str, Handler] = {CLAIM: claim, LOOKUP: lookup}

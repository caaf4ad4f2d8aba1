"""KV.PREFIX.CLAIM, and the waiting LOOKUP: a prefix that several want is computed once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pionkv.protocol import reply
from pionkv.storage import ClaimAnswer

from ..arguments import Argument, integer_within
from ..clients import Client
from ..dispatch import Handler, Slow
from .prefix import LOOKUP, checked_name
from .prefix import lookup as lookup_now

if TYPE_CHECKING:
    from ..tier.link import TierLink

CLAIM = "KV.PREFIX.CLAIM"
WAIT_MS = 600_000
"""Longest wait of a LOOKUP."""
POLL_SECONDS = 0.01
"""Between two looks at the catalog, where any process may have published it."""
TIER_POLL_SECONDS = 0.05
"""The same where other servers may have."""


def claim(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """KV.PREFIX.CLAIM ns lease: CLAIMED, HELD or HIT; with a lease of 0 it is given back: OK."""
    namespace = checked_name(client, args[1])
    high = client.service.limits.lease_ms
    lease = integer_within(args[2], 0, high, f"{CLAIM}: lease out of range (0..{high})")
    if not lease:
        client.claims.discard(namespace)
        client.service.release_claim(namespace, client.claimant)
        return reply.OK
    tier = client.service.tier
    if tier is not None:
        return _claim_everywhere(client, tier, namespace, lease / 1000)
    return reply.simple(_claim(client, namespace, lease / 1000).value)


def _claim(client: Client, namespace: bytes, seconds: float) -> ClaimAnswer:
    answer = client.service.store.claim(namespace, client.claimant, seconds)
    if answer is ClaimAnswer.CLAIMED:
        client.claims.add(namespace)
    return answer


async def _claim_everywhere(client: Client, tier: TierLink, namespace: bytes, seconds: float) -> bytes:
    """Claim it here, then for all servers of the tier."""
    if tier.wants(namespace, check=True):
        await tier.bring(namespace)
    answer = _claim(client, namespace, seconds)
    if answer is ClaimAnswer.CLAIMED:
        if not await tier.claim(namespace, client.claimant, seconds):
            client.claims.discard(namespace)
            client.service.store.release_claim(namespace, client.claimant)
            return reply.simple(ClaimAnswer.HELD.value)
        # It may have been published elsewhere between the two.
        await tier.bring(namespace)
        if not client.service.store.miss_reason(namespace):
            client.claims.discard(namespace)
            client.service.release_claim(namespace, client.claimant)
            answer = ClaimAnswer.HIT
        elif client.ended:
            # What it had was given back before this claim was its own.
            client.service.release_claim(namespace, client.claimant)
    return reply.simple(answer.value)


def lookup(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """KV.PREFIX.LOOKUP ns [options] [WAIT ms]: see `prefix.lookup`; with WAIT it may take its time."""
    if len(args) < 4 or bytes(args[-2]).upper() != b"WAIT":  # type: ignore[arg-type]
        return lookup_now(client, args)
    wait = integer_within(args[-1], 0, WAIT_MS, f"WAIT out of range (0..{WAIT_MS})")
    return _wait(client, args[:-2], wait / 1000)


async def _wait(client: Client, args: Sequence[Argument], seconds: float) -> bytes:
    """Look until it can be restored, nobody computes it any more, or the time is over."""
    service = client.service
    store, loop, tier = service.store, service.loop, service.tier
    namespace = checked_name(client, args[1])
    end = loop.time() + seconds
    while store.miss_reason(namespace) and loop.time() < end:
        claimed = store.is_claimed(namespace)
        if tier is not None:
            # Asked before it is looked for: who gives a claim back has published.
            claimed = await tier.is_claimed(namespace) or claimed
            await tier.bring(namespace)
        if not claimed:
            break
        await asyncio.sleep(POLL_SECONDS if tier is None else TIER_POLL_SECONDS)
    return lookup_now(client, args)


HANDLERS: dict[str, Handler] = {CLAIM: claim, LOOKUP: lookup}

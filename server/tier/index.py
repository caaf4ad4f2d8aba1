"""The tier's index: which prefixes begin with some token ids.

A prefix has an entry under the hash of each boundary of its tokens (`storage.boundaries`), or of some of
them: see `Tier.index_step`. So if a boundary has entries, those before it have some, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container

from pionkv.storage import BOUNDARY_TOKENS, boundaries, tenant_of

from ..logs import logger
from .guard import Guard
from .interface import NO_VERSION, TierError
from .patience import Patience
from .record import Record

PROBES = 32
"""Entries that are looked at in one question."""


class Index:
    """Notes and finds prefixes by their token ids.

    Args:
        guard: Asks the tier.
        counts: Counters, by name.
    """

    def __init__(self, guard: Guard, counts: Counter[str]) -> None:
        self._guard = guard
        self._tier = guard.tier
        self._counts = counts

    async def note(self, record: Record, old: Record | None) -> None:
        """Have a prefix found. What cannot be noted is not found: nothing else depends on it.

        Args:
            record: The prefix.
            old: Its record before; what that has noted is there.
        """
        ids = record.token_ids()
        if ids is None or record.blocks is None:
            return
        known = _shared(record, old)
        keys = [
            key
            for level, key in enumerate(boundaries(record.blocks[2], ids, tenant_of(record.name)))
            if level * BOUNDARY_TOKENS > known and level * BOUNDARY_TOKENS % self._tier.index_step == 0
        ]
        for part in self._by_shard(keys):
            try:
                await self._guard.ask_index(part[0], lambda: self._tier.note(part, record.name))  # noqa: B023
            except TierError as error:
                self._counts["unindexed"] += 1
                logger().warning("prefix not in the tier's index", error=str(error))

    async def deepest(
        self, keys: list[bytes], without: Container[bytes], patience: Patience
    ) -> tuple[bytes, list[bytes]]:
        """The last of these keys that has names but some, and the names; no names when there is none.

        Args:
            keys: Keys of boundaries, in order.
            without: Names that do not count.
            patience: How long that may take. Raises `Overdue`.
        """
        low, high = -1, len(keys) - 1
        best: tuple[bytes, list[bytes]] = (b"", [])
        while low < high:
            step = max(1, (high - low + PROBES - 1) // PROBES)
            places = list(range(low + step, high + 1, step))
            if not places or places[-1] != high:
                places.append(high)
            listed = await self._names([keys[place] for place in places], patience)
            names = [[name for name in found if name not in without] for found in listed]
            hits = [place for place, found in zip(places, names, strict=True) if found]
            if not hits:
                high = places[0] - 1
                continue
            low = hits[-1]
            best = keys[low], names[places.index(low)]
            following = [place for place in places if place > low]
            high = following[0] - 1 if following else low
        return best

    async def _names(self, keys: list[bytes], patience: Patience) -> list[list[bytes]]:
        """Names under each key; none under those of a shard that does not answer."""
        found: dict[bytes, list[bytes]] = {}
        seconds = patience.question(asyncio.get_running_loop().time())
        asked = [self._names_of_shard(part, seconds) for part in self._by_shard(keys)]
        for part in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(part, TierError):
                self._counts[f"miss:{part.reason}"] += 1
            elif isinstance(part, BaseException):
                raise part
            else:
                found |= part
        return [found.get(key, []) for key in keys]

    async def _names_of_shard(self, keys: list[bytes], seconds: float) -> dict[bytes, list[bytes]]:
        guard = self._guard
        names = await guard.ask_index(keys[0], lambda: guard.tier.find(keys), seconds)
        return dict(zip(keys, names, strict=True))

    async def unnote(self, key: bytes, name: bytes) -> None:
        """A name of the index that led nowhere, because it is no more, is taken out."""
        guard = self._guard
        try:
            state = await guard.ask(name, lambda: guard.tier.state(name))
            if state.version == NO_VERSION:
                await guard.ask_index(key, lambda: guard.tier.unnote(key, name))
        except TierError as error:
            self._counts[f"miss:{error.reason}"] += 1

    def _by_shard(self, keys: list[bytes]) -> list[list[bytes]]:
        shards: dict[str, list[bytes]] = {}
        for key in keys:
            shards.setdefault(self._tier.shard_of_index(key), []).append(key)
        return list(shards.values())


def _shared(record: Record, old: Record | None) -> int:
    """Tokens of the record before, if the new one begins with all of them; else 0."""
    if old is None or old.blocks is None or record.blocks is None or old.blocks[2] != record.blocks[2]:
        return 0
    before, ids = old.token_ids(), record.token_ids()
    if before is None or ids is None or len(before) > len(ids):
        return 0
    return len(before) if bool((ids[: len(before)] == before).all()) else 0

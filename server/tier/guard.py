"""Keeps a tier that is dead or slow from costing anything: deadlines, breakers, measured bandwidth.

Each shard has a breaker. A question that fails, or is not answered in time, opens it: from then on nothing
is asked of that shard, until a probe beside all requests has been answered.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..logs import logger
from .interface import Tier, TierAway, TierError, TierLate

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
PROBE_SECONDS = 1.0
"""Seconds between two probes of a shard that does not answer."""
SMOOTHING = 0.3
SLACK = 4
"""A transfer may take so many times as long as the bandwidth measured lets expect, and the deadline."""
FIRST_BANDWIDTH = 100e6
"""Bytes a second, as long as nothing was measured; only deadlines are made of it."""


class Pace:
    """Bandwidth of one direction and the time of a small question, smoothed."""

    def __init__(self) -> None:
        self.bytes_per_second = 0.0
        self.round_trip = 0.0
        self.measured_at = float("-inf")

    def transferred(self, nbytes: int, seconds: float) -> None:
        """So many bytes took so long."""
        if nbytes <= 0 or seconds <= 0:
            return
        rate = nbytes / seconds
        old = self.bytes_per_second
        self.bytes_per_second = rate if not old else old + SMOOTHING * (rate - old)
        self.measured_at = time.monotonic()

    def answered(self, seconds: float) -> None:
        """A small question took so long."""
        old = self.round_trip
        self.round_trip = seconds if not old else old + SMOOTHING * (seconds - old)

    def seconds(self, nbytes: int) -> float:
        """How long so many bytes will take; 0 when nothing was measured."""
        return nbytes / self.bytes_per_second if self.bytes_per_second else 0.0

    def missed(self, at_most: float = float("inf")) -> None:
        """A transfer was late, so it had fewer bytes a second than this: the next one gets longer."""
        self.bytes_per_second = min(self.bytes_per_second or FIRST_BANDWIDTH, at_most) / 2

    def limit(self, nbytes: int, deadline: float) -> float:
        """How long they may take."""
        return deadline + SLACK * nbytes / (self.bytes_per_second or FIRST_BANDWIDTH)


class Guard:
    """Asks a tier within deadlines, and does not ask what does not answer.

    Args:
        tier: The tier.
        deadline: Seconds for a small question.
        counts: Where failures are counted, by what they are.
    """

    def __init__(self, tier: Tier, deadline: float, counts: Counter[str]) -> None:
        self.tier = tier
        self.deadline = deadline
        self._counts = counts
        self._open: dict[str, asyncio.Task[None]] = {}

    @property
    def away(self) -> list[str]:
        """Shards that are not asked now."""
        return sorted(self._open)

    def is_away(self, name: bytes) -> bool:
        """Whether nothing is asked about this name now."""
        return bool(self._open) and self.tier.shard_of(name) in self._open

    async def ask(self, name: bytes, call: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
        """The answer to a question about a name. Belongs into a task.

        Args:
            name: The name.
            call: Asks.
            seconds: How long it may take; by default the deadline.

        Raises:
            TierAway: The shard is not asked now, or fails.
            TierLate: It does not answer in time.
            TierError: The tier says no.
        """
        tier = self.tier
        return await self._ask(lambda: tier.shard_of(name), lambda: tier.state(name), call, seconds)

    async def ask_index(
        self, key: bytes, call: Callable[[], Awaitable[T]], seconds: float | None = None
    ) -> T:
        """The same for a question about keys of the index, of which this is one."""
        tier = self.tier
        return await self._ask(lambda: tier.shard_of_index(key), lambda: tier.find((key,)), call, seconds)

    async def _ask(
        self,
        shard: Callable[[], str],
        probe: Callable[[], Awaitable[object]],
        call: Callable[[], Awaitable[T]],
        seconds: float | None,
    ) -> T:
        if self._open and shard() in self._open:
            raise TierAway("it did not answer before")
        limit = self.deadline if seconds is None else seconds
        error: TierAway
        try:
            async with asyncio.timeout(limit):
                return await call()
        except TimeoutError:
            error = TierLate(f"no answer within {limit:.3g} s")
        except TierAway as failed:
            error = failed
        self._counts["away"] += 1
        self._break(shard(), probe, error)
        raise error

    def _break(self, shard: str, probe: Callable[[], Awaitable[object]], error: TierError) -> None:
        if shard not in self._open:
            logger().warning("tier not asked", shard=shard, error=str(error))
            self._counts["breaker_opened"] += 1
            self._open[shard] = asyncio.get_running_loop().create_task(self._probe(shard, probe))

    async def _probe(self, shard: str, probe: Callable[[], Awaitable[object]]) -> None:
        """Ask now and then whether it is there again."""
        pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            try:
                async with asyncio.timeout(max(self.deadline, PROBE_SECONDS)):
                    await probe()
            except (TimeoutError, TierAway):
                continue
            except TierError:
                # It answers; whoever asks next is told what it says.
                pass
            except Exception as error:
                logger().error("tier not probed", exc_info=error)
                continue
            del self._open[shard]
            logger().info("tier is asked again", shard=shard)
            return

    def close(self) -> None:
        """Probe no more."""
        for task in self._open.values():
            task.cancel()
        self._open.clear()

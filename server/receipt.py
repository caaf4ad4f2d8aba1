"""The receipt: what stored prefixes have saved.

A hit is credited when a restore begins, that is when row 0 of the first layer of a K side is fetched; a
LOOKUP alone saves nothing. What a LOOKUP says about the prefix (TOKENS, PREFILL_MS) counts for the next one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

ESTIMATE_US_PER_TOKEN = 555
"""The original server's estimate of prefill time where nobody has measured it."""

REMEMBERED = 4096
MILLION = 1_000_000
PREFIX = "receipt."


@dataclass(frozen=True, slots=True)
class Claim:
    """What the last LOOKUP of a namespace said."""

    tokens: int | None
    prefill_us: int | None


@dataclass(slots=True)
class Totals:
    """Counters since the start, or since the last reset."""

    hits: int = 0
    misses: int = 0
    hits_measured: int = 0
    tokens: int = 0
    bytes: int = 0
    us_saved: int = 0
    us_measured: int = 0

    def numbers(self) -> dict[str, int]:
        """All of them, under names that metrics do not have."""
        return {PREFIX + name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def of(cls, numbers: Mapping[str, int]) -> Self:
        """The totals among some numbers."""
        return cls(**{name: numbers.get(PREFIX + name, 0) for name in cls.__slots__})

    def clear(self) -> None:
        """Begin anew."""
        for name in self.__slots__:
            setattr(self, name, 0)

    def fields(self, worker: int, uptime: int) -> dict[str, int | str]:
        """The fields of PION.STATS, in their order.

        Args:
            worker: Who answers.
            uptime: Whole seconds since the server started.
        """
        return {
            "worker_id": worker,
            "uptime_in_seconds": uptime,
            "kvprefix_hits": self.hits,
            "kvprefix_misses": self.misses,
            "kvprefix_hits_measured": self.hits_measured,
            "kvprefix_tokens_served": self.tokens,
            "kvprefix_bytes_served": self.bytes,
            "kvprefix_prefill_us_saved": self.us_saved,
            "kvprefix_prefill_us_measured": self.us_measured,
            "prefill_seconds_avoided": _seconds(self.us_saved),
            "prefill_seconds_avoided_measured": _seconds(self.us_measured),
            "semantic_hits": 0,
            "semantic_misses": 0,
            "moe_hits": 0,
            "moe_misses": 0,
            "vector_queries": 0,
        }


class Receipt:
    """Adds up hits, misses, tokens, bytes and time.

    Args:
        totals: What is added to.
    """

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self._claims: OrderedDict[bytes, Claim] = OrderedDict()

    def claim(self, namespace: bytes, tokens: int | None, prefill_us: int | None) -> None:
        """A LOOKUP has said how many tokens it is about, or how long they took to compute."""
        self.forget_claims((namespace,))
        if tokens is None and prefill_us is None:
            return
        self._claims[namespace] = Claim(tokens, prefill_us)
        if len(self._claims) > REMEMBERED:
            self._claims.popitem(last=False)

    def forget_claims(self, names: Iterable[bytes]) -> None:
        """LOOKUPs have said nothing of the kind."""
        if self._claims:
            for name in names:
                self._claims.pop(name, None)

    def credit(self, namespace: bytes, tokens: int, prefill_us: int) -> None:
        """A restore has begun.

        Args:
            namespace: Whose rows are fetched.
            tokens: Rows it holds.
            prefill_us: The time it was registered with; 0 when unknown.
        """
        claim = self._claims.pop(namespace, Claim(None, None))
        if claim.tokens is not None:
            tokens, prefill_us = claim.tokens, 0
        if claim.prefill_us is not None:
            prefill_us = claim.prefill_us
        totals = self.totals
        totals.hits += 1
        totals.tokens += tokens
        totals.us_saved += prefill_us or tokens * ESTIMATE_US_PER_TOKEN
        if prefill_us:
            totals.hits_measured += 1
            totals.us_measured += prefill_us


def _seconds(micros: int) -> str:
    return f"{micros // MILLION}.{micros % MILLION // 1000:03d}"

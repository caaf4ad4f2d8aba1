"""What a prompt cache has done."""

import logging
import threading
from dataclasses import asdict, dataclass
from typing import TypeVar

from .errors import BadReply, NotAsked, NotStored, ServerRefused, StoreError, Unavailable
from .lane import Traffic
from .link import Link, Work

T = TypeVar("T")

_log = logging.getLogger(__name__)

# The first that fits counts: NotAsked is an Unavailable.
_KINDS = (
    (NotAsked, "not_asked"),
    (Unavailable, "unavailable"),
    (ServerRefused, "refused"),
    (BadReply, "bad_replies"),
)


FAILURES = ("not_asked", "unavailable", "refused", "bad_replies", "errors")
"""Counters of exchanges that gave no answer."""


@dataclass
class Stats:
    """Counters of one `PionPromptCache`.

    Attributes:
        hits: Prefixes restored.
        misses: Prefixes prefilled because they could not be restored.
        stores: Prefixes published.
        stores_skipped: Prefixes not published because too much waited to be, or the object was closed.
        tokens_restored: Tokens of them that were restored.
        tokens_prefilled: Tokens that were prefilled.
        fetches_declined: Misses because prefilling is faster than fetching what is stored.
        fetches_cut: Prefixes of which a beginning was restored, because the rest is prefilled sooner.
        admission_skips: Prefixes not published because they had not been missed often enough.
        not_asked: Exchanges left out because the server had failed a moment before.
        unavailable: Exchanges that failed because the server could not be reached or was too slow.
        refused: Exchanges that the server answered with an error.
        bad_replies: Exchanges that the server answered with nonsense.
        errors: Exchanges that failed for a reason of this client.
        fetch_ms_total: Milliseconds spent on restoring, misses included.
        store_ms_total: Milliseconds spent on publishing.
        last_prefill_ms: Milliseconds that the last prefill took.
        last_miss: Why the last prefix was not restored.
        last_unpublished: Why the last prefix was not published, if it was to be.
        unsupported: Why nothing of this model can be stored; None if it can.
    """

    hits: int = 0
    misses: int = 0
    stores: int = 0
    stores_skipped: int = 0
    tokens_restored: int = 0
    tokens_prefilled: int = 0
    fetches_declined: int = 0
    fetches_cut: int = 0
    admission_skips: int = 0
    not_asked: int = 0
    unavailable: int = 0
    refused: int = 0
    bad_replies: int = 0
    errors: int = 0
    fetch_ms_total: float = 0.0
    store_ms_total: float = 0.0
    last_prefill_ms: float = 0.0
    last_miss: str | None = None
    last_unpublished: str | None = None
    unsupported: str | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, **amounts: float) -> None:
        """Add to counters, by name."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def failed(self, error: Exception) -> None:
        """Count an exchange that gave no result."""
        for kind, name in _KINDS:
            if isinstance(error, kind):
                self.add(**{name: 1})
                return
        if not isinstance(error, NotStored):
            self.add(errors=1)

    def report(self, traffic: Traffic, **more: float | str | None) -> dict[str, int | float | str | None]:
        """Everything as a flat dict, with the hit rate and the bytes moved."""
        asked = self.hits + self.misses
        rate = self.hits / asked if asked else 0.0
        moved = {"bytes_received": traffic.received, "bytes_sent": traffic.sent}
        return {**asdict(self), "hit_rate": rate, **moved, **more}


def attempt(link: Link, stats: Stats, work: Work[T]) -> tuple[T | None, Exception | None]:
    """Run an exchange: its result, or what went wrong, which is counted and never raised."""
    try:
        return link.exchange(work), None
    except StoreError as error:
        stats.failed(error)
        return None, error
    except Exception as error:
        # A mistake of ours must not end somebody's generation either, but it is not kept quiet.
        _log.exception("the prompt cache failed; prefilling instead")
        stats.failed(error)
        return None, error


def reason(error: Exception) -> str:
    """What went wrong, as a user may read it."""
    return str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"

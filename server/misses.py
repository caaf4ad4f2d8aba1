"""What was looked up and not found, and why; reasons are found out in batches, beside the lookups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pionkv.storage import StorageError, Store

from .metrics import Metrics

NAMES_WAITING = 1024
"""Different names between two looks; misses of more are counted without a reason."""
RECENT = 50
NOT_EXAMINED = "not examined"
NO_MATCH = "no match"
DAMAGED = "quarantined"


@dataclass(frozen=True, slots=True)
class Miss:
    """A name that was asked for in vain.

    Attributes:
        namespace: The name.
        reason: One of few words: absent, evicted, expired, dropped, incomplete, quarantined.
        count: How often, as long as it is remembered.
        at: When it was last found out, seconds.
    """

    namespace: bytes
    reason: str
    count: int
    at: float


class Misses:
    """Notes misses, and finds out their reasons when asked to.

    Args:
        metrics: Where they are counted.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._waiting: dict[bytes, int] = {}
        self._recent: dict[bytes, Miss] = {}

    @property
    def recent(self) -> list[Miss]:
        """The names that were missed last, the last one first."""
        return list(reversed(self._recent.values()))

    def note(self, names: Iterable[bytes]) -> None:
        """Lookups of these names were misses."""
        waiting = self._waiting
        for name in names:
            count = waiting.get(name, 0)
            if count or len(waiting) < NAMES_WAITING:
                waiting[name] = count + 1
            else:
                self._metrics.miss_reasons[NOT_EXAMINED] += 1

    def examine(self, store: Store, now: float) -> None:
        """Find out why, as far as that is still to be seen."""
        waiting, self._waiting = self._waiting, {}
        for namespace, count in waiting.items():
            reason = why_missed(store, namespace)
            self._metrics.miss_reasons[reason] += count
            before = self._recent.pop(namespace, None)
            self._recent[namespace] = Miss(namespace, reason, count + (before.count if before else 0), now)
        while len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]


def why_missed(store: Store, namespace: bytes) -> str:
    """Why a lookup of this name is a miss, in a word."""
    try:
        reason = store.miss_reason(namespace).partition(":")[0]
        gone = store.gone(namespace) if reason == "absent" else None
    except StorageError:
        return DAMAGED
    return gone.why if gone is not None else reason or "there again"

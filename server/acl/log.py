"""ACL LOG: what was refused, newest first, like ones counted together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

KEPT = 128
TOGETHER_SECONDS = 60.0
"""The same refusal again within so long is counted, not listed anew."""


@dataclass(slots=True)
class Refusal:
    """Something a client was not allowed to do."""

    reason: str
    context: str
    what: str
    user: str
    client: str
    id: int
    created: float
    updated: float
    count: int = 1

    def fields(self, now: float) -> dict[bytes, object]:
        """As ACL LOG answers it."""
        return {
            b"count": self.count,
            b"reason": self.reason,
            b"context": self.context,
            b"object": self.what,
            b"username": self.user,
            b"age-seconds": f"{now - self.updated:.3f}",
            b"client-info": self.client,
            b"entry-id": self.id,
            b"timestamp-created": int(self.created * 1000),
            b"timestamp-last-updated": int(self.updated * 1000),
        }


class Refusals:
    """The last ones.

    Args:
        ids: Numbers for them.
    """

    def __init__(self, ids: Iterator[int]) -> None:
        self._kept: deque[Refusal] = deque(maxlen=KEPT)
        self._ids = ids

    def add(self, reason: str, context: str, what: str, user: str, client: str, now: float) -> None:
        """Something was refused.

        Args:
            reason: `auth`, `command`, `key` or `channel`.
            context: `toplevel` or `multi`.
            what: The command, key or channel.
            user: Who.
            client: Its line of CLIENT LIST.
            now: Seconds since the epoch.
        """
        for kept in self._kept:
            same = (kept.reason, kept.context, kept.what, kept.user) == (reason, context, what, user)
            if same and now - kept.updated < TOGETHER_SECONDS:
                kept.count += 1
                kept.updated, kept.client = now, client
                return
        self._kept.appendleft(Refusal(reason, context, what, user, client, next(self._ids), now, now))

    def all(self) -> list[Refusal]:
        """What is kept."""
        return list(self._kept)

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()

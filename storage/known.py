"""What was read from the catalog, kept for as long as nobody has changed it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from .records import SessionRecord

N = TypeVar("N", bound=Hashable)
T = TypeVar("T")

_CACHED_BYTES = 32 << 20


class Known(Generic[N, T]):
    """What was found under names in one state of the catalog.

    A state is told by the number of the transaction that made it, which LMDB gives once, whichever process it
    is in: what was found in a state holds for everyone who sees the same. So no process has to tell another
    of a change, and the next commit, whatever it is about, ends what is known.

    Args:
        most: How many names are kept.
    """

    __slots__ = ("_found", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        # One attribute: a thread that has got what is known of a state never adds to that of another.
        self._found: tuple[int, dict[N, T]] = 0, {}

    def of(self, state: int) -> dict[N, T]:
        """What is known of a state, to be added to as long as there are fewer than `most`."""
        known, found = self._found
        if state != known or len(found) >= self.most:
            found = {}
            self._found = state, found
        return found

    def moved(self, state: int, found: dict[N, T]) -> None:
        """What `of` gave is of this state now: a writer has kept it up to date and committed."""
        self._found = state, found

    def forget(self) -> None:
        """Nothing is known: a writer has changed it, and has not committed, or what was found must go."""
        self._found = 0, {}


class DecodedSessions:
    """Decoded sessions by name, each with the stored form it was decoded from.

    A stored form that differs from the cached one is decoded anew, so no process has to tell another of a
    change.
    """

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[bytes, SessionRecord]] = {}
        self._bytes = 0

    def get(self, sid: bytes, raw: bytes) -> SessionRecord:
        """The session of this stored form; a shared object, not to be changed."""
        found = self._found.get(sid)
        if found is not None and found[0] == raw:
            return found[1]
        record = SessionRecord.decode(raw)
        self.put(raw, record)
        return record

    def put(self, raw: bytes, record: SessionRecord) -> None:
        """Keep a session; the longest kept go when there are too many bytes of stored forms."""
        old = self._found.pop(record.sid, None)
        self._found[record.sid] = (raw, record)
        self._bytes += len(raw) - (len(old[0]) if old is not None else 0)
        while self._bytes > _CACHED_BYTES and len(self._found) > 1:
            self._bytes -= len(self._found.pop(next(iter(self._found)))[0])

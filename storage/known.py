"""What was read from the catalog, kept for as long as nobody has changed it."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Known(Generic[T]):
    """What was found under names in one state of the catalog.

    A state is told by the number of the transaction that made it, which LMDB gives once, whichever process it
    is in: what was found in a state holds for everyone who sees the same. So no process has to tell another
    of a change, and the next commit, whatever it is about, ends what is known.

    Args:
        most: How many names are kept.
        name_bytes: Longer ones are not.
    """

    __slots__ = ("_found", "_state", "most", "name_bytes")

    def __init__(self, most: int, name_bytes: int) -> None:
        self.most = most
        self.name_bytes = name_bytes
        self._state = 0
        self._found: dict[bytes, T] = {}

    def of(self, state: int) -> dict[bytes, T]:
        """What is known of a state; `add` adds to it."""
        if state != self._state or len(self._found) >= self.most:
            self._state, self._found = state, {}
        return self._found

    def add(self, name: bytes, found: T) -> None:
        """Something was found in the state that was asked for last."""
        if len(name) <= self.name_bytes and len(self._found) < self.most:
            self._found[name] = found

    def moved(self, state: int) -> None:
        """What was given out last is of this state now: a writer has kept it up to date and committed."""
        self._state = state

    def forget(self) -> None:
        """Nothing is known: a writer has changed it, and has not committed."""
        self._state, self._found = 0, {}

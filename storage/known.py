"""What was read from the catalog, kept for as long as nobody has changed it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

N = TypeVar("N", bound=Hashable)
T = TypeVar("T")


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

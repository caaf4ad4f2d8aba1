"""Rows that are kept ready for queries: a bounded number of bytes, the least recently used go first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from pionkv.kernels.attention import ResidentRows

from ..metrics import Metrics

Place: TypeAlias = tuple[bytes, int, int]
"""Namespace, layer, elements of a head."""
Marks: TypeAlias = tuple[int, int]
"""What stands for the rows of both sides; see `Source`."""

COLD_KEPT = 1024
"""Layers that are remembered as having been ready once, as many as in the original."""


@dataclass(frozen=True, slots=True)
class _Held:
    marks: Marks
    rows: ResidentRows


class Residents:
    """Rows ready for queries. What is other rows by now is not found, and let go.

    Args:
        metrics: Where it counts.
        limit: How many bytes may be kept now.
        changed: Called when the bytes kept are others.

    Attributes:
        nbytes: Bytes that are kept.
        cold: Places whose rows were let go for others, oldest first, until they are ready again.
    """

    def __init__(
        self, metrics: Callable[[], Metrics], limit: Callable[[], int], changed: Callable[[], None]
    ) -> None:
        self._metrics = metrics
        self._limit = limit
        self._changed = changed
        self._held: dict[Place, _Held] = {}
        self._next_look = 0
        self.nbytes = 0
        self.cold: dict[Place, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, place: Place, marks: Marks) -> ResidentRows | None:
        """The rows of a place if they are ready; they count as used."""
        held = self._held.get(place)
        if held is None:
            return None
        if held.marks != marks:
            self._let_go(place)
            return None
        self._held[place] = self._held.pop(place)
        return held.rows

    def has(self, namespace: bytes, layer: int, marks: Marks) -> bool:
        """Whether rows of a layer are ready, whatever the size of their heads."""
        return any(
            place[:2] == (namespace, layer) and held.marks == marks for place, held in self._held.items()
        )

    def make_room(self, nbytes: int) -> bool:
        """Let others go until so many bytes fit; False, and nothing is let go, when they never do."""
        limit = self._limit()
        if nbytes > limit:
            return False
        self._shrink(limit - nbytes)
        return True

    def put(self, place: Place, marks: Marks, rows: ResidentRows) -> None:
        """Keep rows, for which there is room."""
        self._let_go(place)
        self._metrics().attend_loads += 1
        if place in self.cold:
            del self.cold[place]
            self._metrics().attend_rehydrated += 1
        self._held[place] = _Held(marks, rows)
        self.nbytes += rows.nbytes
        self._shrink(self._limit())
        self._changed()

    def drop(self, namespaces: Iterable[bytes]) -> None:
        """Forget everything of some prefixes."""
        names = frozenset(namespaces)
        for place in [place for place in self._held if place[0] in names]:
            self._let_go(place)
        for place in [place for place in self.cold if place[0] in names]:
            del self.cold[place]

    def look(self, is_current: Callable[[Place, Marks], bool], most: int) -> None:
        """Let go of what is gone from the store, or is other rows there; look at some places each time."""
        self._shrink(self._limit())
        places = list(self._held)
        start = self._next_look if self._next_look < len(places) else 0
        for place in places[start : start + most]:
            if not is_current(place, self._held[place].marks):
                self._let_go(place)
        self._next_look = start + most

    def _shrink(self, nbytes: int) -> None:
        while self.nbytes > nbytes:
            oldest = next(iter(self._held))
            self._let_go(oldest)
            self._metrics().attend_demoted += 1
            self.cold[oldest] = None
            if len(self.cold) > COLD_KEPT:
                del self.cold[next(iter(self.cold))]

    def _let_go(self, place: Place) -> None:
        held = self._held.pop(place, None)
        if held is not None:
            self.nbytes -= held.rows.nbytes
            self._changed()

"""Writing a layer that codes groups as it was stored elsewhere: closed groups are not coded again."""

from __future__ import annotations

from typing import NamedTuple

from pionkv.kernels import LayerSpec

from .engine import Engine
from .errors import BadRange
from .extents import Extents, joined
from .group_write import PageFor, PartedWrite
from .records import SessionRecord
from .runs import Run


class StoredRuns(NamedTuple):
    """How the rows of a layer that codes groups are stored.

    Attributes:
        closed: Runs of closed groups: rows of the first group that are not meant, and how many rows are.
        tail: Rows after them, which are not coded.
    """

    closed: tuple[tuple[int, int], ...]
    tail: int

    @property
    def rows(self) -> int:
        """Rows of the layer."""
        return self.tail + sum(count for _, count in self.closed)

    def check(self, spec: LayerSpec) -> None:
        """Raises `BadRange` when a layer cannot be stored so."""
        group = spec.details.tokens
        if self.tail < 0 or any(not 0 <= skip < group or count < 1 for skip, count in self.closed):
            raise BadRange(0, self.rows)

    def coded_rows(self, spec: LayerSpec) -> int:
        """Rows of all its groups, meant or not."""
        return sum(_whole(spec, skip, count) for skip, count in self.closed)

    @classmethod
    def of(cls, runs: list[Run]) -> StoredRuns:
        """How a layer is stored that has these runs, wherever they are."""
        closed: list[tuple[int, int]] = []
        tail = 0
        for run in runs:
            if not run.spec.details.grouped:
                tail += run.count
            elif closed and not run.skip and not sum(closed[-1]) % run.spec.details.tokens:
                skip, count = closed[-1]
                closed[-1] = skip, count + run.count
            else:
                closed.append((run.skip, run.count))
        return cls(tuple(closed), tail)


class StoredWrite(PartedWrite):
    """All rows of a layer on their way: filled with the bytes of the groups, then those of the tail."""

    def __init__(
        self, engine: Engine, session: SessionRecord, layer: int, runs: StoredRuns, page_for: PageFor
    ) -> None:
        super().__init__(engine, session, layer, 0, runs.rows, ())
        self._stored = runs
        self._spec: LayerSpec = session.schema.layer(layer)
        runs.check(self._spec)
        self._make_parts(page_for, runs.coded_rows(self._spec), runs.tail)
        self.nbytes = sum(part.nbytes for part in self._parts())

    def next_segment(self) -> memoryview | None:
        """As `PageWrite.next_segment`; a segment is of the groups or of the tail."""
        for part in self._parts():
            if (segment := part.next_segment()) is not None:
                return segment
        return None

    def seal(self) -> None:
        """As `PageWrite.seal`."""
        for part in self._parts():
            part.seal()

    @property
    def result(self) -> Extents:
        """The layer's extents."""
        found: list[tuple[int, int, int]] = []
        if self._coded is not None:
            page, row, _ = self._coded.run
            for skip, count in self._stored.closed:
                found.append((page, row + skip, count))
                row += _whole(self._spec, skip, count)
        if self._tail is not None:
            found.append(self._tail.run)
        return joined(found)

    def _close(self) -> None:
        self._open = False


def _whole(spec: LayerSpec, skip: int, count: int) -> int:
    """Rows of the groups in which so many rows lie, the first of them after some others."""
    group = spec.details.tokens
    return -(-(skip + count) // group) * group

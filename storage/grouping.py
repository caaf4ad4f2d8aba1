"""Which rows of a layer are coded when rows are written to it.

A layer whose format codes groups is two runs of rows: those in closed groups, and after them the tail, fp16
rows in pages of their own. A group closes when `TAIL_TOKENS` rows lie after it, so what is closed depends on
the rows alone, and not on how they were split into writes. Closed groups are never coded again: where a layer
was cut within one, its rows stay what they were, and the next group begins at the cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from pionkv.kernels import LayerSpec

from .errors import ClosedGroup
from .extents import Extent, Extents, cut, is_tail, joined, rows_of, slice_rows


@dataclass(frozen=True, slots=True)
class Closing:
    """What a write of rows does to a layer.

    Attributes:
        held: Extents of the layer before it.
        start: First row written.
        count: Rows written.
        closed: Rows that stay in closed groups.
        again: Rows of the tail that are coded.
        new: Rows written that are coded, the first ones.
    """

    held: Extents
    start: int
    count: int
    closed: int
    again: int
    new: int

    @property
    def coded(self) -> int:
        """Rows in the groups that it closes."""
        return self.again + self.new

    @property
    def reread(self) -> Extents:
        """Where the rows of the tail are that are coded."""
        return slice_rows(self.held, self.closed, self.closed + self.again)

    def result(self, coded: Extent | None, tail: Extent | None) -> Extents:
        """The layer after it, given where its own rows are."""
        end = self.start + self.count
        return joined(
            (
                *slice_rows(self.held, 0, self.closed),
                *(() if coded is None else (coded,)),
                *slice_rows(self.held, self.closed + self.again, self.start),
                *(() if tail is None else (tail,)),
                *slice_rows(self.held, end, max(end, rows_of(self.held))),
            )
        )


def closing(spec: LayerSpec, held: Extents, layer: int, start: int, count: int) -> Closing:
    """What writing rows [start, start + count) does to a layer, which has at least `start` rows.

    Raises:
        ClosedGroup: It would overwrite a part of the closed groups.
    """
    end, rows = start + count, rows_of(held)
    closed = rows_of(tuple(extent for extent in held if not is_tail(extent[0])))
    if start < closed:
        if end < rows:
            raise ClosedGroup(layer, start, closed)
        closed = start
    kept = cut(held, start) if end >= rows else held
    ready = spec.coded_rows(max(end, rows) - closed)
    again = min(ready, start - closed)
    return Closing(kept, start, count, closed, again, min(ready - again, count))

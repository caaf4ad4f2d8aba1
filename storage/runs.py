"""Runs of stored rows: the bytes that an extent stands for, and which rows of them are meant.

Rows that were coded together are decoded together: a run that begins or ends within a group has the whole
group's bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pionkv.kernels import Element, Heads, LayerSpec, unpack

from .extents import Extents, is_tail

View = Callable[[int, int, int], memoryview]
"""(page, first page row, rows) -> the bytes of these rows."""

_PLAIN = {Element.F32: "fp32", Element.F16: "fp16", Element.BF16: "bf16"}


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of a layer that lie together.

    Attributes:
        spec: How these are stored; of rows not coded yet `LayerSpec.wire` of their layer.
        data: Bytes of whole groups, or rows; read-only, valid as long as it is referenced.
        count: Number of rows.
        skip: Rows of the first group that are not meant.
    """

    spec: LayerSpec
    data: memoryview
    count: int
    skip: int = 0

    def cut(self, start: int, end: int) -> Run:
        """Rows [start, end) of these."""
        group, size = self.spec.details.tokens, self.spec.row_bytes
        first, skip = divmod(self.skip + start, group)
        last = -(-(self.skip + end) // group)
        return Run(self.spec, self.data[first * group * size : last * group * size], end - start, skip)

    def unpack(self, element: Element, out: memoryview, layout: Heads | None = None) -> None:
        """Decode the rows. `out` and `layout` are as for `kernels.unpack`."""
        if not self.skip:
            unpack(self.spec, self.data, self.count, element, out, layout=layout)
            return
        head = min(self.count, self.spec.details.tokens - self.skip)
        plain = LayerSpec(_PLAIN[element], self.spec.dim)
        elements = memoryview(bytearray((self.skip + head) * plain.row_bytes))
        unpack(self.spec, self.data, self.skip + head, element, elements)
        unpack(plain, elements[self.skip * plain.row_bytes :], head, element, out, layout=layout)
        if head < self.count:
            step = plain.row_bytes if layout is None else layout.row_stride * element.itemsize
            self.cut(head, self.count).unpack(element, out[head * step :], layout)


def runs_of(spec: LayerSpec, extents: Extents, view: View) -> list[Run]:
    """The runs of a layer's extents, or of a part of them."""
    group = spec.details.tokens
    runs = []
    for page, row, count in extents:
        if is_tail(page):
            runs.append(Run(spec.wire, view(page, row, count), count))
            continue
        skip = row % group
        whole = -(-(skip + count) // group) * group
        runs.append(Run(spec, view(page, row - skip, whole), count, skip))
    return runs

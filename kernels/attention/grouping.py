"""Query heads sorted by the key/value head that they share, so that one product serves a group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .forms import AttentionError, HeadMap


@dataclass(frozen=True, slots=True)
class Grouping:
    """Query heads as a table with a line for each key/value head.

    Lines are as long as the longest: shorter ones are filled up with heads whose results nobody reads.

    Attributes:
        kv_heads: Key/value heads.
        share: Places of a line.
        heads: The query head in each place, line by line.
        places: The place of each query head.
    """

    kv_heads: int
    share: int
    heads: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the heads are in the table's order already."""
        return self.heads == tuple(range(len(self.places)))


@lru_cache(maxsize=256)
def group(head_map: HeadMap, kv_heads: int) -> Grouping:
    """The table of a head map.

    Raises:
        AttentionError: The map is empty or names a head that there is not.
    """
    if not head_map or not 0 <= min(head_map) <= max(head_map) < kv_heads:
        raise AttentionError(f"a head map of {len(head_map)} heads does not fit {kv_heads} key/value heads")
    lines: list[list[int]] = [[] for _ in range(kv_heads)]
    for head, source in enumerate(head_map):
        lines[source].append(head)
    share = max(map(len, lines))
    heads = [head for line in lines for head in (line + [0] * share)[:share]]
    column = {head: place for line in lines for place, head in enumerate(line)}
    places = tuple(source * share + column[head] for head, source in enumerate(head_map))
    return Grouping(kv_heads, share, tuple(heads), places)

"""Runs: commands of one client that came one after the other and have one name.

What a pipeline costs besides the commands themselves is paid once for each of its runs: finding the command,
what the client may do, and what is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from .arguments import Argument

if TYPE_CHECKING:
    from .dispatch import Entry

Run: TypeAlias = "tuple[Entry, Sequence[Sequence[Argument]]]"
"""A command, and its arguments each time that it came."""

_name = itemgetter(0)


def by_name(commands: list[list[bytes]]) -> list[tuple[bytes, list[list[bytes]]]]:
    """Neighbours that have one name, letter by letter."""
    return [(name, [*same]) for name, same in groupby(commands, _name)]


def split(runs: Sequence[Run], count: int) -> tuple[list[Run], list[Run]]:
    """The first `count` commands, and the others."""
    first: list[Run] = []
    for at, (entry, lines) in enumerate(runs):
        if count < len(lines):
            if count:
                first.append((entry, lines[:count]))
            return first, [(entry, lines[count:]), *runs[at + 1 :]]
        first.append((entry, lines))
        count -= len(lines)
    return first, []


def entries_of(runs: Iterable[Run]) -> Iterator[Entry]:
    """The command of each command line."""
    return chain.from_iterable(repeat(entry, len(lines)) for entry, lines in runs)

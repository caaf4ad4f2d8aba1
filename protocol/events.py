"""What the parsers report."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias


class NeedData(enum.Enum):
    """The type of `NEED_DATA`."""

    NEED_DATA = "NEED_DATA"


NEED_DATA: Final = NeedData.NEED_DATA
"""Everything that arrived has been reported. An ordinary result, not an error."""

NeedDataType: TypeAlias = Literal[NeedData.NEED_DATA]


@dataclass(frozen=True, slots=True)
class Body:
    """Stands in a command or reply for a large bulk string whose bytes went where the caller said."""

    length: int
    discarded: bool = False
    """At least a part of it was dropped."""


Argument: TypeAlias = bytes | memoryview | Body
"""One argument: bytes when small, a read-only view when collected, a `Body` when directed or discarded."""


class Command:
    """A whole command; `args[0]` is its name. The list belongs to the caller."""

    __slots__ = ("args",)

    def __init__(self, args: list[Argument]) -> None:
        self.args = args

    def __repr__(self) -> str:
        return f"Command({self.args!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Command) and self.args == other.args

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class BulkStart:
    """A large argument was announced; none of its body has been handed over.

    The next call must be `direct`, `collect` or `discard`.
    """

    args: list[Argument]
    """The arguments before it. To be read only: the parser goes on filling it."""
    length: int
    """Bytes of the body."""

    @property
    def index(self) -> int:
        """Its position among the arguments."""
        return len(self.args)


@dataclass(frozen=True, slots=True)
class BulkMore:
    """The buffer given to `direct` is full and the body is not over.

    The next call must be `direct` with another buffer, or `discard`.
    """

    remaining: int
    """Bytes of the body still to come."""


@dataclass(frozen=True, slots=True)
class ReplyBulkStart:
    """As `BulkStart`, in a reply."""

    path: tuple[int, ...]
    """Where it stands: one position for each aggregate around it, outermost first. Keys and values of a map
    count one by one. Empty for a reply that is a bulk string itself."""
    length: int


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply."""

    value: object


@dataclass(frozen=True, slots=True)
class Push:
    """A RESP3 push message: no answer to a command, it may come between any two replies."""

    items: list[object]

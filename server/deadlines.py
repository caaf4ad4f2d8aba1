"""When a key ends, as commands say it: in seconds or milliseconds, from now or since 1970."""

from __future__ import annotations

from dataclasses import dataclass

from pionkv.protocol.errors import CommandError
from pionkv.storage.keyspace.numbers import INT64_MAX, INT64_MIN

from .arguments import Argument, integer


@dataclass(frozen=True, slots=True)
class Unit:
    """How a time is given."""

    milliseconds: int
    from_now: bool


SECONDS, MILLISECONDS = Unit(1000, from_now=True), Unit(1, from_now=True)
AT_SECONDS, AT_MILLISECONDS = Unit(1000, from_now=False), Unit(1, from_now=False)
UNITS = {"EX": SECONDS, "PX": MILLISECONDS, "EXAT": AT_SECONDS, "PXAT": AT_MILLISECONDS}


def deadline(now: int, unit: Unit, argument: Argument, command: str, *, past: bool = False) -> int:
    """A time in milliseconds since 1970.

    Args:
        now: The time now.
        unit: How it is given.
        argument: The number.
        command: Who asks, for the error.
        past: Whether the number may be zero or less.

    Raises:
        CommandError: The argument is no integer, or the time is not within 64 bits.
    """
    number = integer(argument)
    given = number * unit.milliseconds
    at = given + now if unit.from_now else given
    if (number <= 0 and not past) or given < INT64_MIN or max(given, at) > INT64_MAX:
        raise CommandError("ERR", f"invalid expire time in '{command}' command")
    return at

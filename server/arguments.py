"""Reading command arguments: strict integers, keywords, and a cursor over what is left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn, TypeAlias

from pionkv.protocol.errors import CommandError

from .receiving import Receiver

Argument: TypeAlias = bytes | memoryview | Receiver
"""A bulk string; a large one is a view of the bytes, or what has received them elsewhere."""

_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_INT64_LIMIT = 1 << 63
INTEGERS_KEPT = 4096
"""Numbers whose text is known: reading one takes ten times as long."""
OPTIONS_KEPT, OPTIONS_BYTES = 256, 256
"""So many endings of commands, of so many bytes at most, are read once: a prefix has but one."""
NOT_AN_INTEGER = "value is not an integer or out of range"


def integer(argument: Argument) -> int:
    """A decimal 64-bit integer: an optional minus and digits; no plus, space or leading zero.

    Raises:
        CommandError: It is none.
    """
    # No larger argument than bytes can be an integer: the parser gathers small ones so.
    if not isinstance(argument, bytes):
        raise CommandError("ERR", NOT_AN_INTEGER)
    return _integer(argument)


@lru_cache(INTEGERS_KEPT)
def _integer(argument: bytes) -> int:
    if _INTEGER.fullmatch(argument):
        value = int(argument)
        if -_INT64_LIMIT <= value < _INT64_LIMIT:
            return value
    raise CommandError("ERR", NOT_AN_INTEGER)


def integer_within(argument: Argument, low: int, high: int, message: str) -> int:
    """A strict integer within low..high, both included; outside of it the error says `message`."""
    value = integer(argument)
    if not low <= value <= high:
        raise CommandError("ERR", message)
    return value


def blob(argument: Argument) -> bytes:
    """An argument as bytes of its own."""
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, Receiver):
        raise CommandError("ERR", f"argument of {argument.length} bytes is too large here")
    return bytes(argument)


def keyword(argument: Argument) -> str:
    """An argument as an upper-case word; anything that cannot be a keyword reads as an empty string."""
    return argument.decode("latin-1").upper() if isinstance(argument, bytes) else ""


def shown(argument: Argument, limit: int = 64) -> str:
    """An argument as it may appear in an error text: printable, on one line, bounded."""
    if isinstance(argument, Receiver):
        return f"({argument.length} bytes)"
    text = bytes(argument[: limit + 1]).decode("utf-8", "replace")
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= limit else text[:limit] + "..."


class Cursor:
    """The arguments of one command, taken one by one from the left."""

    def __init__(self, arguments: Sequence[Argument], start: int = 0) -> None:
        self._arguments = arguments
        self._next = start

    def __bool__(self) -> bool:
        return self._next < len(self._arguments)

    @property
    def left(self) -> int:
        """Number of arguments not taken yet."""
        return len(self._arguments) - self._next

    def take(self) -> Argument:
        """The next argument.

        Raises:
            IndexError: None is left; callers check the count first.
        """
        argument = self._arguments[self._next]
        self._next += 1
        return argument

    def take_keyword(self, word: str) -> bool:
        """Take the next argument if it is this keyword, in any case."""
        if self and keyword(self._arguments[self._next]) == word:
            self._next += 1
            return True
        return False

    def end(self, command: str) -> None:
        """Nothing may be left.

        Raises:
            CommandError: Something is; the text names it.
        """
        if self:
            unknown_option(command, self.take())


def unknown_option(command: str, argument: Argument) -> NoReturn:
    """Refuse a trailing argument."""
    raise CommandError("ERR", f"{command}: unknown option '{shown(argument)}'")


def pairs(arguments: Sequence[Argument], start: int, command: str) -> list[tuple[Argument, Argument]]:
    """The arguments from `start` on, two by two.

    Raises:
        CommandError: One is left over.
    """
    rest = arguments[start:]
    if len(rest) % 2:
        raise CommandError("ERR", f"wrong number of arguments for '{command}' command")
    return list(zip(rest[::2], rest[1::2], strict=True))

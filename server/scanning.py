"""What SCAN, HSCAN and ZSCAN have in common: their arguments, and the shape of their replies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError

from .arguments import Argument, Cursor, blob, integer
from .glob import compile_glob

CURSOR_LIMIT = 1 << 64
DEFAULT_COUNT = 10
_DIGITS = re.compile(rb"[0-9]{1,20}")


def read_cursor(argument: Argument) -> int:
    """A cursor. Raises `CommandError`."""
    text = blob(argument)
    if not _DIGITS.fullmatch(text) or int(text) >= CURSOR_LIMIT:
        raise CommandError("ERR", "invalid cursor")
    return int(text)


@dataclass(frozen=True, slots=True)
class Scan:
    """One step of a scan."""

    cursor: int
    count: int = DEFAULT_COUNT
    pattern: re.Pattern[bytes] | None = None
    kind: bytes | None = None

    @classmethod
    def read(cls, args: Sequence[Argument], start: int, *, kinds: bool = False) -> Scan:
        """From the arguments from the cursor on; `kinds` allows TYPE."""
        at, count, pattern, kind = read_cursor(args[start]), DEFAULT_COUNT, None, None
        cursor = Cursor(args, start + 1)
        while cursor:
            if cursor.left >= 2 and cursor.take_keyword("COUNT"):
                count = integer(cursor.take())
                if count < 1:
                    raise CommandError("ERR", "syntax error")
            elif cursor.left >= 2 and cursor.take_keyword("MATCH"):
                pattern = compile_glob(blob(cursor.take()))
            elif kinds and cursor.left >= 2 and cursor.take_keyword("TYPE"):
                kind = blob(cursor.take()).lower()
            else:
                raise CommandError("ERR", "syntax error")
        return cls(at, count, pattern, kind)

    def wants(self, name: bytes) -> bool:
        """Whether the pattern matches."""
        return self.pattern is None or self.pattern.fullmatch(name) is not None


def scanned(cursor: int, items: Iterable[bytes], protocol: int) -> bytes:
    """The reply: the next cursor and what was found."""
    return reply.encode([b"%d" % cursor, list(items)], protocol)

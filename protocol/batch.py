"""Pipelines of small commands, parsed by hiredis in one go.

hiredis makes lists of bytes several times faster than Python can, but it was written for replies: it takes
any RESP type as an argument, does not look at the two bytes after a bulk string, allocates what a header
announces, and cannot be asked where in its input it stands. So it gets nothing but what is known to be whole
canonical commands, which it reads right; a compiled loop finds them (see scanning.py). All else is parsed by
hand, and everything as long as nobody has given `use` that loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import hiredis

from .scanning import ALIKE_BIT, COUNT_SHIFT, END_MASK

LONGEST = 16 * 1024
"""Bytes of input that are tried at once; a command that is longer is parsed by hand."""

Scan: TypeAlias = Callable[[bytes, int], int]
"""As `scanning.scan`."""

_readers: list[hiredis.Reader] = []
"""Readers that have no input left."""


def _nothing(data: bytes, size: int) -> int:
    return 0


_scan: Scan = _nothing


def use(scan: Scan) -> None:
    """Find whole commands with this function from now on, in every parser of the process."""
    global _scan  # noqa: PLW0603
    _scan = scan


def parse_batch(data: bytes) -> tuple[list[list[bytes]], bool, int] | None:
    """The whole, canonical commands that `data` begins with.

    Args:
        data: At most `LONGEST` bytes.

    Returns:
        The arguments of each; whether they are known to have one name, letter by letter, and one number of
        arguments; and how many bytes they were. None if there are none.
    """
    found = _scan(data, len(data))
    count, end = found >> COUNT_SHIFT, found & END_MASK
    if not count:
        return None
    reader = _readers.pop() if _readers else hiredis.Reader(notEnoughData=None)
    # An array of the commands: one call answers with all of them.
    reader.feed(b"*%d\r\n%b" % (count, data if end == len(data) else data[:end]))
    commands = reader.gets()
    _readers.append(reader)
    return commands, found & ALIKE_BIT != 0, end

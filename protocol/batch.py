r"""Pipelines of small commands, parsed by hiredis in one go.

hiredis makes lists of bytes several times faster than Python can, but it was written for replies: it takes
any RESP type as an argument, does not look at the two bytes after a bulk string, and cannot be asked where in
its input it stands. So what it finds is written down again, as canonical commands, and counts only when that
gives the input to the byte: then the input was nothing but whole canonical commands, and those hiredis reads
right. Other input may be right, too; it is parsed by hand.

What hiredis allocates on the strength of a header alone is bounded by looking for large headers before.
"""

from __future__ import annotations

import re

import hiredis

from .events import Command

LONGEST = 16 * 1024
"""Bytes of input that are tried at once; a command that is longer is parsed by hand."""

_HUGE_ARRAY = re.compile(rb"\*\d{5}").search
_HUGE_OTHER = re.compile(rb"[~>|%]\d{5}").search


def parse_batch(data: bytes) -> list[Command] | None:
    """The commands that `data` consists of.

    Args:
        data: At most `LONGEST` bytes.

    Returns:
        One command or more; None when the input is not found to be whole, canonical, non-empty commands.
    """
    if _HUGE_ARRAY(data) or (_may_hold_others(data) and _HUGE_OTHER(data)):
        return None
    reader = hiredis.Reader(notEnoughData=None)
    reader.feed(data)
    try:
        commands = list(iter(reader.gets, None))
        written = b"".join(map(hiredis.pack_command, map(tuple, commands)))
    except (hiredis.HiredisError, TypeError):
        return None
    if written != data or not commands or not all(commands):
        return None
    return list(map(Command, commands))


def _may_hold_others(data: bytes) -> bool:
    # Looking for single bytes is a hundred times faster than a pattern, and most input has none of them.
    return b"~" in data or b">" in data or b"|" in data or b"%" in data

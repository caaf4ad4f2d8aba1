r"""Pipelines of small commands, parsed by hiredis in one go.

hiredis makes lists of bytes several times faster than Python can, but it was written for replies: it takes
any RESP type as an argument, does not look at the two bytes after a bulk string, allocates an array on the
strength of its header, and cannot be asked where in its input it stands. So it gets whole commands only, and
what it finds counts only when it can be shown that nothing but canonical commands can have led to it:

1. There is no array header of 10,000 elements or more in the input, and no set, push, attribute, map or
   verbatim string (a type character followed by a digit). So hiredis allocates next to nothing, and a list in
   its result was an array.
2. All arguments are `bytes`: `bytes.join` takes nothing else. So there are no nested arrays, numbers, nulls
   or errors. What is left is bulk strings, and the one-line types `+` and `(`, which also come as bytes.
3. No argument holds a CR, and the input holds exactly one CRLF for each command and two for each argument.
   A bulk string accounts for two if its body is followed by CRLF, else for one; a one-line type for one. So
   there are only bulk strings, and every body is followed by CRLF. (Without a CR at the end of a body, no
   CRLF can lie half in it.)
4. No command is empty: an empty one-line type in the place of a command would look like one.

The numbers in headers are canonical because hiredis insists on that, too. Input that fails the test may still
be right (an argument with a CR in it, say): it is then parsed by hand.
"""

from __future__ import annotations

import re
from itertools import chain

import hiredis

from .events import Command

LONGEST = 16 * 1024
"""Bytes of input that are tried at once; a command that is longer is parsed by hand."""

_HUGE_ARRAY = re.compile(rb"\*\d{5}").search
_OTHER_TYPE = re.compile(rb"[~>|%=]\d").search


def parse_batch(data: bytes) -> list[Command] | None:
    """The commands that `data` consists of.

    Args:
        data: At most `LONGEST` bytes, beginning with `*`.

    Returns:
        One command or more; None when the input is not shown to be whole canonical commands.
    """
    if _HUGE_ARRAY(data) or _may_hold_other_types(data):
        return None
    reader = hiredis.Reader(notEnoughData=None)
    reader.feed(data)
    try:
        commands = list(iter(reader.gets, None))
        args = list(chain.from_iterable(commands))
        joined = b"".join(args)
    except (hiredis.HiredisError, TypeError):
        return None
    lines = len(commands) + 2 * len(args)
    if b"\r" in joined or data.count(b"\r\n") != lines or not lines or not all(commands):
        return None
    return list(map(Command, commands))


def _may_hold_other_types(data: bytes) -> bool:
    # Looking for single bytes is a hundred times faster than a pattern, and most input has none of them.
    suspicious = b"=" in data or b">" in data or b"%" in data or b"|" in data or b"~" in data
    return suspicious and _OTHER_TYPE(data) is not None

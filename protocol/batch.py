r"""Pipelines of small commands, parsed by hiredis in one go.

hiredis makes lists of bytes several times faster than Python can, but it was written for replies: it takes
any RESP type as an argument, does not look at the two bytes after a bulk string, and cannot be asked where in
its input it stands. So what it finds is written down again, as canonical commands, and counts only when that
gives the input to the byte: then the input was nothing but whole canonical commands, and those hiredis reads
right. Other input may be right, too; it is parsed by hand.

Both steps are one call for the whole pipeline. hiredis gets an array's header in front, so that it answers
with all commands at once. And the text around the arguments depends on their lengths alone: it is kept as a
template, because the pipelines of one client look alike.

What hiredis allocates on the strength of a header alone is bounded by looking for large headers before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

import hiredis

LONGEST = 16 * 1024
"""Bytes of input that are tried at once; a command that is longer is parsed by hand."""

TEMPLATES_KEPT = 512
TEMPLATE_ARGUMENTS = 256
"""So many templates are kept, those of pipelines with at most so many arguments."""

_HUGE_ARRAY = re.compile(rb"\*\d{5}").search
_HUGE_OTHER = re.compile(rb"[~>|%]\d{5}").search
_OTHERS = b"~>|%"

_readers: list[hiredis.Reader] = []
"""Readers that have no input left."""
_templates: dict[tuple[int, ...], bytes] = {}
"""Lengths of all arguments -> the text of a pipeline with such arguments, as seen last."""


def parse_batch(data: bytes) -> list[list[bytes]] | None:
    """The commands that `data` consists of, each as its arguments.

    Args:
        data: At most `LONGEST` bytes.

    Returns:
        One command or more; None when the input is not found to be whole, canonical, non-empty commands.
    """
    if _HUGE_ARRAY(data) or (_may_hold_others(data) and _HUGE_OTHER(data)):
        return None
    try:
        reader = _readers.pop()
    except IndexError:
        reader = hiredis.Reader(notEnoughData=None)
    try:
        # The number of commands, unless an argument looks like the beginning of one.
        reader.feed(b"*%d\r\n%b" % (data.count(b"\r\n*") + 1, data))
        commands = reader.gets()
        if commands is None:
            reader = hiredis.Reader(notEnoughData=None)
            reader.feed(data)
            commands = list(iter(reader.gets, None))
        if not commands or not _are(data, commands):
            return None
    except (hiredis.HiredisError, TypeError):
        return None
    _readers.append(reader)
    return commands  # type: ignore[no-any-return]


def _are(data: bytes, commands: list[list[bytes]]) -> bool:
    """Whether these commands, in canonical form, are this input. Raises `TypeError` if they are none."""
    arguments = tuple(chain.from_iterable(commands))
    lengths = tuple(map(len, arguments))
    template = _templates.get(lengths)
    if template is not None and template % arguments == data:
        return True
    template = b"".join(map(_template, commands))
    if template % arguments != data or not all(commands):
        return False
    if len(lengths) <= TEMPLATE_ARGUMENTS:
        if len(_templates) >= TEMPLATES_KEPT:
            _templates.clear()
        _templates[lengths] = template
    return True


def _template(command: Sequence[bytes]) -> bytes:
    """The canonical form of a command, with `%b` for each argument."""
    count = len(command)
    return b"*%d\r\n" % count + b"$%d\r\n%%b\r\n" * count % tuple(map(len, command))


def _may_hold_others(data: bytes) -> bool:
    # Looking for single bytes is a hundred times faster than a pattern, and most input has none of them.
    # As numbers: `bytes in bytes` begins with an exception, since bytes are no number.
    return any(map(data.__contains__, _OTHERS))

r"""Inline commands: one line of words, as somebody types it into a terminal. The quoting rules are Redis'.

Words are separated by whitespace. Within double quotes `\n \r \t \b \a`, `\xHH` and a backslash before any
other character are escapes; within single quotes only `\'` is. A closing quote must end the word.
"""

from __future__ import annotations

import re

from .errors import ProtocolError

_WORD = re.compile(
    rb"""
    \s*+ ([^\s"']*)                         # what stands before a quote
    (?: "((?: \\. | [^"\\] )*+)"            # `*+` never gives back: an escape stays whole
      | '((?: \\' | [^'] )*+)' )?
    (?= \s | \Z )
    """,
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROL = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_inline(line: bytes) -> list[bytes]:
    """The words of an inline command; none for a blank line.

    Raises:
        ProtocolError: Quotes are not balanced.
    """
    if b'"' not in line and b"'" not in line:
        return line.split()
    words = []
    end = len(line.rstrip())
    at = 0
    while at < end:
        match = _WORD.match(line, at)
        if match is None:
            raise ProtocolError("unbalanced quotes in request")
        bare, double, single = match.groups()
        words.append(bare + _ESCAPE.sub(_unescape, double or b"") + (single or b"").replace(rb"\'", b"'"))
        at = match.end()
    return words


def _unescape(match: re.Match[bytes]) -> bytes:
    code, character = match.groups()
    return bytes.fromhex(code.decode()) if code else _CONTROL.get(character, character)

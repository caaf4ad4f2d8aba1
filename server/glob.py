"""Redis' patterns: `*`, `?`, `[abc]`, `[^a-z]`, and a backslash before what is meant as it is.

Unlike a shell's, a class negates with `^` only, its ranges may run backwards, and one that is never closed
ends with the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

_BACKSLASH, _CARET, _CLOSE, _DASH = b"\\^]-"


@lru_cache(maxsize=256)
def compile_glob(pattern: bytes) -> re.Pattern[bytes]:
    """A pattern as a regular expression for `fullmatch`."""
    return re.compile(b"".join(_translate(pattern)), re.DOTALL)


def matches(pattern: bytes, text: bytes) -> bool:
    """Whether a pattern matches the whole text."""
    return compile_glob(pattern).fullmatch(text) is not None


def _translate(pattern: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(pattern):
        char = pattern[at : at + 1]
        at += 1
        if char == b"*":
            # `**` means `*`; as two it would make the expression slow.
            at += len(pattern[at:]) - len(pattern[at:].lstrip(b"*"))
            yield b".*"
        elif char == b"?":
            yield b"."
        elif char == b"[":
            piece, at = _class(pattern, at)
            yield piece
        else:
            if char == b"\\" and at < len(pattern):
                char = pattern[at : at + 1]
                at += 1
            yield re.escape(char)


def _class(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The expression for a class that begins at `at`, and where the pattern goes on."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    allowed = bytearray()
    while at < len(pattern) and pattern[at] != _CLOSE:
        if pattern[at] == _BACKSLASH and at + 1 < len(pattern):
            allowed.append(pattern[at + 1])
            at += 2
        elif at + 2 < len(pattern) and pattern[at + 1] == _DASH:
            low, high = sorted((pattern[at], pattern[at + 2]))
            allowed += bytes(range(low, high + 1))
            at += 3
        else:
            allowed.append(pattern[at])
            at += 1
    inside = b"".join(b"\\x%02x" % byte for byte in sorted(set(allowed)))
    if not inside:
        return (b"." if negated else b"(?!)"), at + 1
    return b"[%s%s]" % (b"^" if negated else b"", inside), at + 1

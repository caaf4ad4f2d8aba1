"""Writing commands, for a client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

LEAVE_FROM = 16 * 1024
"""Arguments of this many bytes and more are passed on as they are instead of being copied."""

Word: TypeAlias = bytes | bytearray | memoryview | str | int | float


def encode_command(args: Iterable[Word], leave_from: int = LEAVE_FROM) -> list[bytes | memoryview]:
    """One command, as buffers for a vectored write.

    Args:
        args: The name and its arguments; text is sent as UTF-8, numbers as decimal text.
        leave_from: Byte strings of at least this size become buffers of their own, uncopied.

    Raises:
        TypeError: An argument is of another type, or a view that is not contiguous.
    """
    words = [_data(word) for word in args]
    pieces: list[bytes | memoryview] = []
    small: list[bytes | bytearray | memoryview] = [b"*%d\r\n" % len(words)]
    for word in words:
        if len(word) < leave_from:
            small += [b"$%d\r\n" % len(word), word, b"\r\n"]
        else:
            small.append(b"$%d\r\n" % len(word))
            pieces += [b"".join(small), memoryview(word)]
            small = [b"\r\n"]
    pieces.append(b"".join(small))
    return pieces


def _data(word: Word) -> bytes | bytearray | memoryview:
    match word:
        case bytes() | bytearray():
            return word
        case str():
            return word.encode()
        case memoryview():
            return word.cast("B") if word.nbytes else b""
        case bool():
            raise TypeError("a bool is no argument")
        case int() | float():
            return repr(word).encode()
    raise TypeError(f"a {type(word).__name__} is no argument")

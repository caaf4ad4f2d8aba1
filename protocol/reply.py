"""The one place that writes RESP. Where RESP2 and RESP3 differ, a function takes the protocol, 2 or 3."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from .errors import CommandError, ProtocolError, UsageError
from .values import Simple, Verbatim

CRLF = b"\r\n"
OK = b"+OK\r\n"
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def simple(text: str) -> bytes:
    """A status line. CR and LF in it become spaces."""
    return b"+%b\r\n" % _one_line(text)


def error(code: str, message: str) -> bytes:
    """An error reply: `-<code> <message>`. CR and LF in it become spaces."""
    return b"-%b\r\n" % _one_line(f"{code} {message}" if message else code)


def protocol_error(broken: ProtocolError) -> bytes:
    """The last reply on a connection whose client broke the framing."""
    return error("ERR", f"Protocol error: {broken}")


def integer(value: int) -> bytes:
    """A 64-bit integer."""
    return b":%d\r\n" % value


def bulk(data: bytes | bytearray | memoryview) -> bytes:
    """A bulk string as one piece; write large ones as `bulk_header`, the bytes, `CRLF` instead."""
    if type(data) is bytes:
        return b"$%d\r\n%b\r\n" % (len(data), data)
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    return b"".join((b"$%d\r\n" % size, data, CRLF))


def bulks(data: Sequence[bytes]) -> bytes:
    """Bulk strings in a row, one or more."""
    lengths = {*map(len, data)}
    if len(lengths) > 1:
        return b"".join(map(bulk, data))
    header = bulk_header(lengths.pop())
    return header + (CRLF + header).join(data) + CRLF


def bulk_header(length: int) -> bytes:
    """What stands before `length` bytes and a CRLF."""
    return b"$%d\r\n" % length


def null(protocol: int) -> bytes:
    """No value; in RESP2 the null bulk string."""
    return b"_\r\n" if protocol == 3 else b"$-1\r\n"


def null_array(protocol: int) -> bytes:
    """No value where an array was expected."""
    return b"_\r\n" if protocol == 3 else b"*-1\r\n"


def array_header(count: int) -> bytes:
    """What stands before `count` elements."""
    return b"*%d\r\n" % count


def map_header(count: int, protocol: int) -> bytes:
    """What stands before `count` pairs of key and value; in RESP2 a flat array."""
    return b"%%%d\r\n" % count if protocol == 3 else b"*%d\r\n" % (2 * count)


def set_header(count: int, protocol: int) -> bytes:
    """What stands before `count` members; in RESP2 an array."""
    return b"~%d\r\n" % count if protocol == 3 else b"*%d\r\n" % count


def push_header(count: int, protocol: int) -> bytes:
    """What stands before `count` elements of a message that answers no command; in RESP2 an array."""
    return b">%d\r\n" % count if protocol == 3 else b"*%d\r\n" % count


def double(value: float, protocol: int) -> bytes:
    """A floating-point number, in the shortest text that reads back as the same; in RESP2 a bulk string."""
    text = double_text(value)
    return b",%b\r\n" % text if protocol == 3 else bulk(text)


def boolean(value: bool, protocol: int) -> bytes:
    """True or false; in RESP2 1 or 0."""
    if protocol == 3:
        return b"#t\r\n" if value else b"#f\r\n"
    return b":1\r\n" if value else b":0\r\n"


def big_number(value: int, protocol: int) -> bytes:
    """An integer of any size; in RESP2 a bulk string."""
    return b"(%d\r\n" % value if protocol == 3 else bulk(b"%d" % value)


def verbatim(text: str | bytes, protocol: int, kind: str = "txt") -> bytes:
    """A text for people; `kind` is three letters, `txt` or `mkd`. In RESP2 a bulk string."""
    data = text.encode() if isinstance(text, str) else text
    if protocol != 3:
        return bulk(data)
    return b"=%d\r\n%b:%b\r\n" % (len(data) + 4, kind.encode("ascii"), data)


def encode(value: object, protocol: int) -> bytes:
    """Any Python value that has a reply type.

    None, bool, int, float, bytes-like and str (bulk strings), `Simple`, `Verbatim`, `CommandError`, and of
    these: list or tuple, dict, set.

    Raises:
        UsageError: The value, or something in it, has no reply type.
    """
    out: list[bytes] = []
    _encode(value, protocol, out)
    return b"".join(out)


def _encode(value: object, protocol: int, out: list[bytes]) -> None:
    if isinstance(value, Mapping):
        out.append(map_header(len(value), protocol))
        for key, item in value.items():
            _encode(key, protocol, out)
            _encode(item, protocol, out)
    elif isinstance(value, AbstractSet):
        out.append(set_header(len(value), protocol))
        for item in value:
            _encode(item, protocol, out)
    elif isinstance(value, list | tuple) and not isinstance(value, Verbatim):
        out.append(array_header(len(value)))
        for item in value:
            _encode(item, protocol, out)
    else:
        out.append(_encode_scalar(value, protocol))


def _encode_scalar(value: object, protocol: int) -> bytes:
    match value:
        case None:
            return null(protocol)
        case bool():
            return boolean(value, protocol)
        case int():
            return integer(value) if INT64_MIN <= value <= INT64_MAX else big_number(value, protocol)
        case float():
            return double(value, protocol)
        case Simple():
            return simple(value)
        case str():
            return bulk(value.encode())
        case bytes() | bytearray() | memoryview():
            return bulk(value)
        case Verbatim():
            return verbatim(value.text, protocol, value.kind)
        case CommandError():
            return error(value.code, value.message)
    raise UsageError(f"a {type(value).__name__} has no reply type")


def _one_line(text: str) -> bytes:
    return text.replace("\r", " ").replace("\n", " ").encode("utf-8", "surrogateescape")


def double_text(value: float) -> bytes:
    """A floating-point number in the shortest text that reads back as the same."""
    if math.isfinite(value):
        return (repr(value).removesuffix(".0")).encode()
    return b"nan" if math.isnan(value) else b"inf" if value > 0 else b"-inf"

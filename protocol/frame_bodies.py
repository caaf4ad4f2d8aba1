"""What the bodies of the binary lane's requests hold: to the words of the command, and from values to bytes.

Only opcodes with a command of this server are here. Numbers are little-endian, tensors fp32.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import CommandError
from .events import Argument

_SHORT, _WORD = struct.Struct("<H"), struct.Struct("<I")
_FUSED = struct.Struct("<HHHHII")
"""Layer, query heads, head dim, K/V heads, queries, rows of the suffix."""
ELEMENT_BYTES = 4

PING, AUTH, AUTH_USER = 0xFF, 0x37, 0x38
ATTEND_CREATE, ATTEND_STORE, ATTEND_FINALIZE, ATTEND_QUERY = 0x20, 0x21, 0x22, 0x23
ATTEND_PREFIX_QUERY_FUSED = 0x24
FOREIGN: Mapping[int, str] = {
    0x01: "KV_STORE", 0x02: "KV_FETCH", 0x10: "LAYER_STORE", 0x11: "LAYER_FETCH", 0x12: "LAYER_FETCH_BATCH",
    0x13: "LAYER_EXTEND", 0x31: "MOE", 0x32: "MOE", 0x33: "MOE", 0x34: "MOE", 0x35: "MOE", 0x36: "MOE",
}  # fmt: skip
"""Opcodes of the original that this server has no use for."""


@dataclass(frozen=True, slots=True)
class Opcode:
    """One opcode that is served.

    Attributes:
        name: As messages name it.
        command: The command that it stands for.
        words: From a body to the words of that command; raises `CommandError` when the body is not one.
    """

    name: str
    command: str
    words: Callable[[memoryview], list[Argument]]


class Fields:
    """Takes a body apart from its beginning on."""

    def __init__(self, name: str, body: memoryview) -> None:
        self._name = name
        self._body = body
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that have not been taken."""
        return self._body.nbytes - self._at

    def take(self, size: int, what: str) -> memoryview:
        """The next bytes.

        Raises:
            CommandError: There are not so many.
        """
        if size > self.left:
            raise CommandError(
                "ERR", f"{self._name}: {what} needs {size} bytes, the body has {self.left} left"
            )
        self._at += size
        return self._body[self._at - size : self._at]

    def numbers(self, form: struct.Struct, what: str) -> tuple[int, ...]:
        """The next numbers."""
        return form.unpack(self.take(form.size, what))

    def name(self, what: str) -> bytes:
        """A name with its length before it."""
        (length,) = self.numbers(_SHORT, f"the length of {what}")
        return bytes(self.take(length, what))

    def end(self) -> None:
        """See that nothing is left.

        Raises:
            CommandError: Something is.
        """
        if self.left:
            raise CommandError("ERR", f"{self._name}: {self.left} bytes after the body's last field")


def _ping(body: memoryview) -> list[Argument]:
    Fields("PING", body).end()
    return [b"PING"]


def _auth(body: memoryview) -> list[Argument]:
    return [b"AUTH", bytes(body)]


def _auth_user(body: memoryview) -> list[Argument]:
    fields = Fields("AUTH_USER", body)
    user = fields.name("the user")
    return [b"AUTH", user, bytes(fields.take(fields.left, "the password"))]


def _create(body: memoryview) -> list[Argument]:
    fields = Fields("ATTEND_CREATE", body)
    session = fields.name("the session")
    dims = [_decimal(*fields.numbers(_SHORT, what)) for what in ("key_dim", "value_dim")]
    if fields.left:
        raise CommandError("ERR", "ATTEND_CREATE: formats are chosen with the command ATTEND.CREATE")
    return [b"ATTEND.CREATE", session, *dims]


def _store(body: memoryview) -> list[Argument]:
    """Keys and values stay one blob: where it is cut only the session tells."""
    fields = Fields("ATTEND_STORE", body)
    session = fields.name("the session")
    place = [_decimal(*fields.numbers(form, what)) for form, what in ((_SHORT, "layer"), (_WORD, "n"))]
    return [b"ATTEND.STORE", session, *place, fields.take(fields.left, "keys and values")]


def _finalize(body: memoryview) -> list[Argument]:
    fields = Fields("ATTEND_FINALIZE", body)
    words: list[Argument] = [b"ATTEND.FINALIZE", fields.name("the session")]
    words.append(_decimal(*fields.numbers(_SHORT, "layer")))
    fields.end()
    return words


def _query(body: memoryview) -> list[Argument]:
    fields = Fields("ATTEND_QUERY", body)
    session = fields.name("the session")
    place = [_decimal(*fields.numbers(_SHORT, what)) for what in ("layer", "k")]
    return [b"ATTEND.QUERY", session, *place, fields.take(fields.left, "the query")]


def _query_fused(body: memoryview) -> list[Argument]:
    fields = Fields("ATTEND_PREFIX_QUERY_FUSED", body)
    session = fields.name("the session")
    layer, heads, dim, kv_heads, queries, rows = fields.numbers(_FUSED, "the shape")
    query = fields.take(heads * queries * dim * ELEMENT_BYTES, "Q")
    keys = fields.take(kv_heads * rows * dim * ELEMENT_BYTES, "K_suf")
    values = fields.take(kv_heads * rows * dim * ELEMENT_BYTES, "V_suf")
    head_map = fields.take(heads, "head_map")
    window = [_decimal(*fields.numbers(_WORD, "fa_window"))] if fields.left else []
    fields.end()
    shape = [_decimal(number) for number in (layer, heads, dim, rows, kv_heads)]
    return [b"ATTEND.PREFIX.QUERY_FUSED", session, *shape, query, keys, values, bytes(head_map), *window]


OPCODES: Mapping[int, Opcode] = {
    PING: Opcode("PING", "PING", _ping),
    AUTH: Opcode("AUTH", "AUTH", _auth),
    AUTH_USER: Opcode("AUTH_USER", "AUTH", _auth_user),
    ATTEND_CREATE: Opcode("ATTEND_CREATE", "ATTEND.CREATE", _create),
    ATTEND_STORE: Opcode("ATTEND_STORE", "ATTEND.STORE", _store),
    ATTEND_FINALIZE: Opcode("ATTEND_FINALIZE", "ATTEND.FINALIZE", _finalize),
    ATTEND_QUERY: Opcode("ATTEND_QUERY", "ATTEND.QUERY", _query),
    ATTEND_PREFIX_QUERY_FUSED: Opcode("ATTEND_PREFIX_QUERY_FUSED", "ATTEND.PREFIX.QUERY_FUSED", _query_fused),
}
"""What is served. AUTH_USER is this server's own: the original has no users."""


def name_of(opcode: int) -> str:
    """An opcode as messages show it."""
    known = OPCODES.get(opcode)
    name = FOREIGN.get(opcode) if known is None else known.name
    return f"0x{opcode:02X}" + (f" ({name}), which this server does not have" if name else "")


def auth_body(user: str | None, password: str) -> tuple[int, bytes]:
    """The opcode and body that say who a client is."""
    if user is None:
        return AUTH, password.encode()
    name = user.encode()
    return AUTH_USER, _SHORT.pack(len(name)) + name + password.encode()


def query_fused_beginning(
    session: bytes, layer: int, heads: int, dim: int, kv_heads: int, queries: int, rows: int
) -> bytes:
    """What stands before Q, K_suf, V_suf and head_map in the body of ATTEND_PREFIX_QUERY_FUSED.

    Args:
        session: Name of the attention session, at most 65,535 bytes.
        layer: The layer.
        heads: Query heads.
        dim: Elements of one head.
        kv_heads: Heads of keys and values.
        queries: Queries of each head.
        rows: Rows of the suffix.
    """
    shape = _FUSED.pack(layer, heads, dim, kv_heads, queries, rows)
    return _SHORT.pack(len(session)) + session + shape


def window_field(window: int | None) -> bytes:
    """The optional last field of that body."""
    return b"" if window is None else _WORD.pack(window)


def _decimal(number: int) -> bytes:
    return b"%d" % number

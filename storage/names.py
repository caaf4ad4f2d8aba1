"""Names: how long they may be, which namespace a session belongs to, and their keys in the catalog.

Sessions `<ns>_pk` and `<ns>_pv` are the K and V side of namespace `<ns>`. Every other session is alone and
is the unit of visibility and eviction by itself. A unit is a kind byte (`p` prefix, `s` single) followed by
the name.
"""

from __future__ import annotations

import hashlib

from .page import K_SIDE, V_SIDE

K_SUFFIX, V_SUFFIX = b"_pk", b"_pv"
PREFIX, SINGLE = b"p", b"s"

LONGEST_PLAIN_KEY = 254
_HASHED_HEAD = 223


def unit_of(sid: bytes) -> tuple[bytes, int]:
    """The unit a session belongs to, and its side there."""
    if len(sid) > len(K_SUFFIX):
        if sid.endswith(K_SUFFIX):
            return PREFIX + sid[: -len(K_SUFFIX)], K_SIDE
        if sid.endswith(V_SUFFIX):
            return PREFIX + sid[: -len(V_SUFFIX)], V_SIDE
    return SINGLE + sid, K_SIDE


def unit_of_namespace(namespace: bytes) -> bytes:
    """The unit of a prefix namespace."""
    return PREFIX + namespace


def sids_of(unit: bytes) -> tuple[bytes, ...]:
    """The sessions a unit may have, K first."""
    name = unit[1:]
    return (name + K_SUFFIX, name + V_SUFFIX) if unit[:1] == PREFIX else (name,)


def key_of(name: bytes) -> bytes:
    """The catalog key of a name: LMDB takes 511 bytes, so a long name ends in its BLAKE2b-256."""
    if len(name) <= LONGEST_PLAIN_KEY:
        return name
    return name[:_HASHED_HEAD] + hashlib.blake2b(name, digest_size=32).digest()

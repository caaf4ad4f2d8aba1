"""What became of units that are no more: why they went, and when. The last ones only."""

from __future__ import annotations

import struct
from typing import NamedTuple

from .catalog import Reader, Writer
from .names import key_of

KEPT = 4096
FORGOTTEN = 1024
"""So many of the oldest go when there are more."""
EVICTED, EXPIRED, DROPPED = "evicted", "expired", "dropped"
_TIME = struct.Struct("<d")


class Gone(NamedTuple):
    """Why a unit is no more, and since when."""

    why: str
    at: float


def note(writer: Writer, unit: bytes, why: str, now: float) -> None:
    """A unit was removed."""
    writer.put("gone", key_of(unit), _TIME.pack(now) + why.encode())
    if writer.entries("gone") > KEPT:
        oldest = sorted(writer.scan("gone"), key=lambda item: _TIME.unpack_from(item[1])[0])[:FORGOTTEN]
        for key, _ in oldest:
            writer.delete("gone", key)


def forget(writer: Writer, unit: bytes) -> None:
    """It is there again."""
    writer.delete("gone", key_of(unit))


def find(reader: Reader, unit: bytes) -> Gone | None:
    """What became of a unit, if that is still known."""
    raw = reader.get("gone", key_of(unit))
    return None if raw is None else Gone(raw[_TIME.size :].decode(), _TIME.unpack_from(raw)[0])

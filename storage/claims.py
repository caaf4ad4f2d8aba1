"""Claims: who computes a prefix that several want at the same time.

A claim is a mark in the catalog, so that every process on the directory sees it. It lasts as long as its
lease, or until it is given back; nothing else depends on it.
"""

from __future__ import annotations

import enum
import struct

from .catalog import Reader, Writer
from .engine import Engine
from .names import K_SUFFIX, key_of, unit_of_namespace

_CLAIM = struct.Struct("<d")


class Answer(enum.Enum):
    """What comes of a claim."""

    CLAIMED = "CLAIMED"
    """It is the caller's."""
    HELD = "HELD"
    """Somebody else has it."""
    HIT = "HIT"
    """The prefix can be restored: there is nothing to compute."""


def claim(engine: Engine, namespace: bytes, owner: bytes, lease: float) -> Answer:
    """See `Store.claim`."""
    engine.check_name(namespace + K_SUFFIX)
    unit = unit_of_namespace(namespace)
    key = key_of(unit)

    def change(writer: Writer) -> Answer:
        if _can_be_restored(engine, writer, unit):
            return Answer.HIT
        holder = _holder(writer, key, engine.clock())
        if holder is not None and holder != owner:
            return Answer.HELD
        writer.put("claims", key, _CLAIM.pack(engine.clock() + lease) + owner)
        return Answer.CLAIMED

    return engine.catalog.write(change)


def release(engine: Engine, namespace: bytes, owner: bytes) -> bool:
    """See `Store.release_claim`."""
    key = key_of(unit_of_namespace(namespace))

    def change(writer: Writer) -> bool:
        return _holder(writer, key, 0.0) == owner and writer.delete("claims", key)

    return engine.catalog.write(change)


def is_claimed(engine: Engine, namespace: bytes) -> bool:
    """See `Store.is_claimed`."""
    with engine.catalog.snapshot() as reader:
        return _holder(reader, key_of(unit_of_namespace(namespace)), engine.clock()) is not None


def sweep(engine: Engine) -> int:
    """Remove claims whose leases are over; how many."""
    now = engine.clock()
    with engine.catalog.snapshot() as reader:
        over = [key for key, raw in reader.scan("claims") if _CLAIM.unpack_from(raw)[0] <= now]
    if not over:
        return 0

    def change(writer: Writer) -> int:
        return sum(_holder(writer, key, now) is None and writer.delete("claims", key) for key in over)

    return engine.catalog.write(change)


def _holder(reader: Reader, key: bytes, now: float) -> bytes | None:
    raw = reader.get("claims", key)
    return None if raw is None or _CLAIM.unpack_from(raw)[0] <= now else raw[_CLAIM.size :]


def _can_be_restored(engine: Engine, reader: Reader, unit: bytes) -> bool:
    record = reader.namespace(unit)
    return record is not None and record.is_hit and not engine.is_spent(reader, record)

"""What another tier holds of the prefixes here, and which drops it has not been told of.

A mark is a note, made by who writes to that tier, about one generation of a prefix: as long as the
generation stands, and neither manifest nor time to live have changed, the tier holds the prefix as it is
here. A prefix without a valid mark would be lost if it went from here.

Key: the unit; value of `marks`: generation u64, little-endian, and the note; of `untold`: a serial number.
"""

from __future__ import annotations

import struct

from .catalog import Reader, Writer
from .names import PREFIX, key_of
from .records import NamespaceRecord

_GENERATION = struct.Struct("<Q")


def find(reader: Reader, record: NamespaceRecord) -> bytes | None:
    """The note of a prefix, if it is about what is there now."""
    raw = reader.get("marks", key_of(record.unit))
    if raw is None or _GENERATION.unpack_from(raw)[0] != record.generation:
        return None
    return raw[_GENERATION.size :]


def put(writer: Writer, record: NamespaceRecord, note: bytes) -> None:
    """Note what the tier holds of a prefix as it is now."""
    writer.put("marks", key_of(record.unit), _GENERATION.pack(record.generation) + note)


def remove(writer: Writer, unit: bytes) -> None:
    """Something changed that does not move the generation."""
    writer.delete("marks", key_of(unit))


def would_be_lost(reader: Reader, record: NamespaceRecord) -> bool:
    """Whether a unit is a prefix that can be restored, and only from here."""
    return record.unit[:1] == PREFIX and record.is_hit and find(reader, record) is None


def tell(writer: Writer, unit: bytes) -> None:
    """The tier is to be told that a prefix was dropped."""
    if unit[:1] == PREFIX:
        writer.put("untold", key_of(unit), writer.new_serial().to_bytes(8, "big") + unit[1:])

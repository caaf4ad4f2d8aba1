"""What is kept beside the rows of a namespace and says what they are: its block table and its manifest."""

from __future__ import annotations

import msgpack

from . import prompts
from .catalog import Reader, Writer
from .names import key_of
from .records import NamespaceRecord

IMMUTABLE = "immutable"
"""Field of a manifest: its rows are an artifact, which nobody appends to or cuts in place."""


def manifest_of(reader: Reader, record: NamespaceRecord) -> bytes | None:
    """The manifest of a namespace."""
    return reader.get("manifests", _key(record))


def put_manifest(writer: Writer, record: NamespaceRecord, manifest: bytes) -> None:
    """Set the manifest of a namespace, and keep its rows from changing when it says so."""
    writer.put("manifests", _key(record), manifest)
    if msgpack.unpackb(manifest).get(IMMUTABLE):
        writer.put("immutable", key_of(record.unit), b"")
    else:
        writer.delete("immutable", key_of(record.unit))


def inherit(writer: Writer, parent: NamespaceRecord, child: NamespaceRecord, tokens: int | None) -> None:
    """Give a namespace the block table, cut to `tokens` tokens, and the manifest of another.

    What may not change in place may change in a fork.
    """
    prompts.copy_blocks(writer, parent, child, tokens)
    manifest = manifest_of(writer, parent)
    if manifest is not None:
        fields = msgpack.unpackb(manifest)
        fields.pop(IMMUTABLE, None)
        put_manifest(writer, child, msgpack.packb(fields))


def forget(writer: Writer, record: NamespaceRecord) -> None:
    """Remove both."""
    prompts.drop_blocks(writer, record)
    writer.delete("manifests", _key(record))
    writer.delete("immutable", key_of(record.unit))


def _key(record: NamespaceRecord) -> bytes:
    return record.uid.to_bytes(8, "big")

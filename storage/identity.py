"""What is kept beside the rows of a namespace and says what they are: its block table and its manifest."""

from __future__ import annotations

from . import prompts
from .catalog import Reader, Writer
from .records import NamespaceRecord


def manifest_of(reader: Reader, record: NamespaceRecord) -> bytes | None:
    """The manifest of a namespace."""
    return reader.get("manifests", _key(record))


def put_manifest(writer: Writer, record: NamespaceRecord, manifest: bytes) -> None:
    """Set the manifest of a namespace."""
    writer.put("manifests", _key(record), manifest)


def inherit(writer: Writer, parent: NamespaceRecord, child: NamespaceRecord, tokens: int | None) -> None:
    """Give a namespace the block table, cut to `tokens` tokens, and the manifest of another."""
    prompts.copy_blocks(writer, parent, child, tokens)
    manifest = manifest_of(writer, parent)
    if manifest is not None:
        put_manifest(writer, child, manifest)


def forget(writer: Writer, record: NamespaceRecord) -> None:
    """Remove both."""
    prompts.drop_blocks(writer, record)
    writer.delete("manifests", _key(record))


def _key(record: NamespaceRecord) -> bytes:
    return record.uid.to_bytes(8, "big")

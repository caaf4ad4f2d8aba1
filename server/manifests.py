"""Manifests as they come over the wire: one msgpack map whose keys are texts."""

from __future__ import annotations

from typing import Any

import msgpack
from pionkv.protocol.errors import CommandError
from pionkv.protocol.limits import Limits


def checked_manifest(command: str, packed: bytes, limits: Limits) -> bytes:
    """The same bytes, if they are a manifest.

    Raises:
        CommandError: They are too long, or no msgpack map with texts as keys.
    """
    if len(packed) > limits.manifest_bytes:
        raise CommandError(
            "ERR", f"{command}: manifest of {len(packed)} bytes (limit {limits.manifest_bytes})"
        )
    read_manifest(command, packed)
    return packed


def read_manifest(command: str, packed: bytes) -> dict[str, Any]:
    """The fields of a manifest. Raises `CommandError` when it is none."""
    try:
        found = msgpack.unpackb(packed)
    except (ValueError, msgpack.UnpackException, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise CommandError("ERR", f"{command}: the manifest is not a msgpack map with texts as keys")
    return found

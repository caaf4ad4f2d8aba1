"""What a prefix was made by, and whether someone else would have made the same rows.

A manifest is a msgpack map. Its fields are identity, and must be equal for rows to be reused, unless they are
listed as provenance. What the store knows itself (layers, schemas, tokens) is compared with what it has, not
with what the manifest says.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, NamedTuple

import msgpack
import numpy as np

from . import prompts
from .catalog import Reader
from .engine import Engine
from .errors import Incompatible, Uneven, UnknownNamespace
from .identity import manifest_of
from .names import unit_of_namespace
from .records import NamespaceRecord
from .schema import Schema
from .units import sessions_of

ORDER = (
    "weights", "architecture",
    "layers", "kv_heads", "head_dim", "head_map",
    "tokenizer", "template",
    "tokens",
    "positions", "hidden_prefix",
    "rope_stage", "rope_base", "rope_scaling", "rope_pairing",
    "adapter", "dtype",
    "k_schema", "v_schema", "axes", "group", "zero_point",
    "scales", "codebooks", "artifact", "artifact_label", "calibration_excludes",
    "window", "states", "kernels",
)  # fmt: skip
"""Identity fields in the order in which they are compared; fields that are not listed follow, by name."""

PROVENANCE = frozenset(
    {"host", "versions", "prefill_ms", "created", "quality", "provenance", "immutable", "reserved_bytes"}
)
"""Fields that are recorded and never compared."""

SHOWN = 64
"""Letters of a value that an error shows."""
_ID_BYTES = 4


class Admission(NamedTuple):
    """Rows that may be reused.

    Attributes:
        namespace: The prefix.
        generation: Its generation; reading `AT` it gives the rows that were compared, or an error.
        tokens: How many rows: all, or as many as the tokens asked about are the same.
    """

    namespace: bytes
    generation: int
    tokens: int


class Difference(NamedTuple):
    """The first field that differs, and its values as they are shown."""

    field: str
    stored: str
    asked: str


def admit(engine: Engine, namespace: bytes, asked: Mapping[str, Any]) -> Admission:
    """See `Store.admit`."""
    unit = unit_of_namespace(namespace)
    with engine.catalog.snapshot() as reader:
        record = reader.namespace(unit)
        if record is None or record.has_expired(engine.clock()):
            raise UnknownNamespace(namespace)
        engine.check_quarantine(reader, unit)
        if record.tokens <= 0:
            raise Uneven(namespace)
        packed = manifest_of(reader, record)
        if packed is None:
            raise Incompatible("manifest", "nothing", f"{len(asked)} fields")
        stored: dict[str, Any] = msgpack.unpackb(packed)
        known = _known(reader, record, stored.keys() | asked.keys())
    difference = first_difference({**stored, **known}, asked)
    if difference is not None:
        raise Incompatible(*difference)
    engine.usage.note(unit, engine.clock())
    ids = asked.get("tokens")
    held = record.tokens
    return Admission(namespace, record.generation, held if ids is None else min(held, len(ids) // _ID_BYTES))


def first_difference(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> Difference | None:
    """The first identity field in which two manifests differ; a field that is left out is one value, too."""
    listed = [name for name in ORDER if name in stored or name in asked]
    others = sorted((stored.keys() | asked.keys()) - set(ORDER) - PROVENANCE)
    for name in (*listed, *others):
        ours, theirs = stored.get(name), asked.get(name)
        difference = _tokens(ours, theirs) if name == "tokens" else _differing(name, ours, theirs)
        if difference is not None:
            return difference
    return None


def _known(reader: Reader, record: NamespaceRecord, mentioned: Set[str]) -> dict[str, Any]:
    """What the store knows better than any manifest, as far as one of them mentions it."""
    found: dict[str, Any] = {"layers": record.layers}
    for name, session in zip(("k_schema", "v_schema"), sessions_of(reader, record.unit), strict=True):
        found[name] = [spec_text(session.schema, layer) for layer in range(record.layers)]
    table = prompts.get_blocks(reader, record)
    if table is not None and table[0] == 1:
        found["tokens"] = np.frombuffer(table[1], "<u8").astype("<u4").tobytes()
    return {name: value for name, value in found.items() if name in mentioned}


def spec_text(schema: Schema, layer: int) -> str:
    """A layer's spec as KV.PREFIX.REGISTER … SCHEMA takes it."""
    spec = schema.layer(layer)
    rope = f",rope={spec.rope}" if spec.rope else ""
    head = f",head={spec.head_dim}" if spec.head_dim else ""
    return f"fmt={spec.format},dim={spec.dim}{rope}{head}"


def _tokens(stored: Any, asked: Any) -> Difference | None:
    """Token ids agree when one list begins with the other."""
    if not isinstance(stored, bytes) or not isinstance(asked, bytes) or len(asked) % _ID_BYTES or not asked:
        return _differing("tokens", stored, asked)
    count = min(len(stored), len(asked)) // _ID_BYTES
    ours, theirs = (np.frombuffer(ids, "<u4", count) for ids in (stored, asked))
    differing = np.flatnonzero(ours != theirs)
    if not differing.size:
        return None
    first = int(differing[0])
    return Difference(f"tokens[{first}]", str(ours[first]), str(theirs[first]))


def _differing(where: str, stored: Any, asked: Any) -> Difference | None:
    """The first difference within a value."""
    if isinstance(stored, dict) and isinstance(asked, dict):
        for key in sorted(stored.keys() | asked.keys(), key=str):
            found = _differing(f"{where}.{key}", stored.get(key), asked.get(key))
            if found is not None:
                return found
        return None
    if isinstance(stored, list) and isinstance(asked, list) and len(stored) == len(asked):
        for index, pair in enumerate(zip(stored, asked, strict=True)):
            found = _differing(f"{where}[{index}]", *pair)
            if found is not None:
                return found
        return None
    if stored == asked and isinstance(stored, bool) == isinstance(asked, bool):
        return None
    return Difference(where, _text(stored), _text(asked))


def _text(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else value.hex() if isinstance(value, bytes) else repr(value)
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."

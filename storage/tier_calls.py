"""What a store does for a second tier: says what a prefix is, and keeps what that tier has of it."""

from __future__ import annotations

from typing import NamedTuple

from . import gone, marks, namespaces, prompts
from .catalog import Writer
from .engine import Engine
from .identity import manifest_of
from .names import key_of, unit_of_namespace
from .records import NamespaceRecord
from .schema import Schema
from .states import scan_states
from .units import sessions_of


class Image(NamedTuple):
    """A prefix that can be restored, without its rows.

    Attributes:
        record: Its record.
        schemas: Those of the K and the V side; None when it has no two sessions.
        layers: The layers that hold rows, `record.tokens` each.
        states: Number and length of each state.
        blocks: Tokens per block, hashes and model, as registered.
        manifest: The manifest.
        mark: What was noted about this very content; see `TierCalls.set_mark`.
    """

    record: NamespaceRecord
    schemas: tuple[Schema, Schema] | None
    layers: tuple[int, ...]
    states: tuple[tuple[int, int], ...]
    blocks: tuple[int, bytes, bytes] | None
    manifest: bytes | None
    mark: bytes | None


class Untold(NamedTuple):
    """A drop that the tier has not been told of."""

    namespace: bytes
    serial: int


class TierCalls:
    """The calls of a `Store` that a second tier needs."""

    _engine: Engine

    def image(self, namespace: bytes) -> Image | None:
        """A prefix as it is now; None when it cannot be restored."""
        engine, unit = self._engine, unit_of_namespace(namespace)
        with engine.catalog.snapshot() as reader:
            record = reader.namespace(unit)
            if record is None or not record.is_hit or engine.is_spent(reader, record):
                return None
            sessions = sessions_of(reader, unit)
            rows = sessions[0].rows if sessions and record.tokens else ()
            return Image(
                record,
                (sessions[0].schema, sessions[1].schema) if len(sessions) == 2 else None,
                tuple(layer for layer, count in enumerate(rows) if count),
                tuple((number, state.length) for number, state in scan_states(reader, record)),
                prompts.table_of(reader, record),
                manifest_of(reader, record),
                marks.find(reader, record),
            )

    def mark(self, namespace: bytes) -> bytes | None:
        """What was noted about a prefix as it is now; None when nothing was, or it has changed since."""
        with self._engine.catalog.snapshot() as reader:
            record = reader.namespace(unit_of_namespace(namespace))
            return None if record is None else marks.find(reader, record)

    def set_mark(
        self, namespace: bytes, generation: int, note: bytes, *, expires: float, manifest: bytes | None
    ) -> bool:
        """Note what the tier holds of a prefix; False when it is another one by now.

        Args:
            namespace: The prefix.
            generation: The generation that the tier holds.
            note: The note.
            expires: When it ends in the tier, as in its record.
            manifest: The manifest that the tier holds.
        """

        def change(writer: Writer) -> bool:
            record = writer.namespace(unit_of_namespace(namespace))
            if record is None or (record.generation, record.expires) != (generation, expires):
                return False
            if manifest_of(writer, record) != manifest:
                return False
            marks.put(writer, record, note)
            return True

        return self._engine.catalog.write(change)

    def unmark(self, namespace: bytes) -> None:
        """The tier holds it no longer."""
        self._engine.catalog.write(lambda writer: marks.remove(writer, unit_of_namespace(namespace)))

    def has_namespace(self, namespace: bytes) -> bool:
        """Whether there is such a namespace, whatever is in it."""
        with self._engine.catalog.snapshot() as reader:
            return reader.namespace(unit_of_namespace(namespace)) is not None

    def tell(self, namespace: bytes) -> None:
        """The tier is to be told that a prefix was dropped."""
        self._engine.catalog.write(lambda writer: marks.tell(writer, unit_of_namespace(namespace)))

    def evict(self, namespace: bytes) -> None:
        """Let a prefix go that the tier has another version of, or none; the tier is not told."""
        namespaces.drop_units(self._engine, (unit_of_namespace(namespace),), gone.EVICTED)

    def unmarked(self, after: bytes | None, count: int) -> tuple[list[tuple[bytes, int]], bytes | None]:
        """Prefixes that can be restored, and only from here.

        Args:
            after: The name after which to begin; None for the first one.
            count: How many namespaces are looked at.

        Returns:
            Names and generations; and the last name that was looked at, None when there are no more.
        """
        prefix = unit_of_namespace(b"")
        start = prefix if after is None else key_of(unit_of_namespace(after)) + b"\0"
        found: list[tuple[bytes, int]] = []
        looked_at = 0
        with self._engine.catalog.snapshot() as reader:
            for _, raw in reader.scan("namespaces", start=start, prefix=prefix):
                record = NamespaceRecord.decode(raw)
                if marks.would_be_lost(reader, record) and not self._engine.is_spent(reader, record):
                    found.append((record.namespace, record.generation))
                looked_at += 1
                if looked_at == count:
                    return found, record.namespace
        return found, None

    def untold(self, limit: int = 1024) -> list[Untold]:
        """Drops that the tier has not been told of."""
        found: list[Untold] = []
        with self._engine.catalog.snapshot() as reader:
            for _, raw in reader.scan("untold"):
                found.append(Untold(raw[8:], int.from_bytes(raw[:8], "big")))
                if len(found) == limit:
                    break
        return found

    def untold_of(self, namespace: bytes) -> Untold | None:
        """The drop of one prefix, if the tier has not been told of it."""
        with self._engine.catalog.snapshot() as reader:
            raw = reader.get("untold", key_of(unit_of_namespace(namespace)))
        return None if raw is None else Untold(namespace, int.from_bytes(raw[:8], "big"))

    def told(self, drop: Untold) -> None:
        """The tier was told of this drop; one that came later stays."""
        key = key_of(unit_of_namespace(drop.namespace))

        def change(writer: Writer) -> None:
            raw = writer.get("untold", key)
            if raw is not None and int.from_bytes(raw[:8], "big") == drop.serial:
                writer.delete("untold", key)

        self._engine.catalog.write(change)

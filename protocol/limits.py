"""Every bound of the wire contract, in one place."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """What a peer may ask for. Texts that refuse something name the limit and the value met.

    The first group bounds the frame and is checked on a header, before anything it announces arrives.
    """

    bulk_bytes: int = 512 * MIB
    """Bytes of one bulk string."""
    array_elements: int = 1_048_576
    """Arguments of one command, elements of one aggregate in a reply."""
    inline_bytes: int = 64 * KIB
    """Bytes of an inline command, and of a one-line reply."""
    command_bytes: int = 256 * MIB
    """Bytes of all arguments of one command that the parser keeps in its own memory."""
    unauthenticated_bulk_bytes: int = 16 * KIB
    """Bytes of one bulk string before the password was given."""
    unauthenticated_array_elements: int = 10
    """Arguments of one command before the password was given."""
    reply_depth: int = 32
    """Aggregates within aggregates in a reply."""

    name_bytes: int = 512
    """Bytes of the name of a session or namespace."""
    layers: int = 1024
    """Layers of a session."""
    rows: int = 4_194_304
    """Rows of one layer."""
    dim: int = 8192
    """Elements of one row."""
    fetch_ids: int = 65_536
    """Row ids of one V.FETCH."""
    block_size: int = 8192
    """Tokens that one hash of a BLOCKS table stands for."""
    block_hashes: int = 1_048_576
    """Hashes of a BLOCKS table, and of one membership question."""
    prefill_ms: int = 86_400_000
    """Milliseconds that PREFILL_MS may report: one day."""
    tokens: int = 100_000_000
    """Tokens that a LOOKUP may report."""
    transactions: int = 64
    """Prefix transactions that one connection may have begun and not ended."""
    lease_ms: int = 86_400_000
    """Milliseconds that a transaction may ask to be left alone: one day."""
    ttl_seconds: int = 3_153_600_000
    """Seconds that a prefix may be given to live: a hundred years."""
    attend_queries: int = 8192
    """Queries of each head in one attention command."""
    manifest_bytes: int = 64 * KIB
    """Bytes of a manifest."""


DEFAULT_LIMITS = Limits()

"""Receipts: what publishing a transaction answered, kept so that it can be answered again.

They outlive the connection, the process and the namespace; the oldest go when there are too many. Keys are
`t` and the transaction's id, and `o` and a serial number that gives their order.
"""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from .catalog import Reader, Writer
from .records import seal, unseal

KEPT = 16_384
"""Receipts kept, some 2 MB of catalog."""

_ORDER = b"o"


class Receipt(NamedTuple):
    """What was published.

    Attributes:
        namespace: The prefix.
        generation: The generation that this made; reading `AT` it gives these rows or an error.
        tokens: Rows that each layer of both sides holds.
        digest: Of the rows that the transaction brought: xxh3-64 over the xxh3-64 (u64 LE each) of the packed
            rows of k0 v0 k1 v1 …
    """

    namespace: bytes
    generation: int
    tokens: int
    digest: int


def find(reader: Reader, txn: bytes) -> Receipt | None:
    """The receipt of a transaction, if it was published and is not forgotten."""
    raw = reader.get("receipts", _key(txn))
    return None if raw is None else Receipt(*msgpack.unpackb(unseal(raw)))


def keep(writer: Writer, txn: bytes, receipt: Receipt) -> None:
    """Store a receipt; the oldest goes when there are `KEPT` of them."""
    writer.put("receipts", _key(txn), seal(msgpack.packb(receipt)))
    writer.put("receipts", _ORDER + writer.new_serial().to_bytes(8, "big"), txn)
    while writer.entries("receipts") > 2 * KEPT:
        key, oldest = next(writer.scan("receipts", prefix=_ORDER))
        writer.delete("receipts", key)
        writer.delete("receipts", _key(oldest))


def _key(txn: bytes) -> bytes:
    return b"t" + txn

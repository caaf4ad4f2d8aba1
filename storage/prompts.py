"""Token ids of prefixes, and the index that finds the longest stored one.

The ids are the table of `KV.PREFIX.REGISTER … BLOCKS` with blocks of one token. A prefix of N tokens has an
entry for each of its boundaries 0, 64, 128 … N: a hash of model and tokens up to there, the next 64 tokens
(fewer at its end), its uid. Entries sort so that of those with the same hash the neighbors of what is asked
share the most tokens with it. The index only finds candidates; each is compared token by token. Tenants
share no entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from .accounts import Listing, tag_of, tenant_of
from .catalog import Reader, Writer
from .names import key_of
from .records import NamespaceRecord

if TYPE_CHECKING:
    from .engine import Engine

BLOCK = 64
"""Tokens from one boundary to the next."""
TOKEN_LIMIT = 0xFFFF_FFFF
"""Token ids are below it."""
MODEL_BYTES = 128
"""Longest digest of a model."""
MOST_CANDIDATES = 1024
"""Prefixes looked at in one search; beyond them the best so far is the answer."""

_COUNTS, _TENANT_COUNTS = b"\xff" * 8, b"\xff" * 7 + b"\xfe"
"""Before a model's digest in `models`, or a tenant's tag and the digest: no uid is so large."""
_SIZE = struct.Struct("<I")
_ID_BYTES = 4
_TAIL_BYTES = BLOCK * _ID_BYTES
_HEAD_BYTES = 16
_HASHES = np.dtype("<u8")
_SORTED = np.dtype(">u4")

Ids = NDArray[np.uint32]


class Match(NamedTuple):
    """The longest stored prefix of some tokens.

    Attributes:
        record: Its namespace.
        tokens: How many of the tokens asked for it holds, from the first on.
    """

    record: NamespaceRecord
    tokens: int


class _Found(NamedTuple):
    shared: int
    uid: bytes


def set_blocks(writer: Writer, record: NamespaceRecord, size: int, hashes: bytes, model: bytes) -> None:
    """Keep a unit's table of blocks, and have it found when it lists tokens. Replaces the one before."""
    drop_blocks(writer, record)
    uid = _uid(record)
    writer.put("blocks", uid, _SIZE.pack(size) + hashes)
    ids = _token_ids(size, hashes)
    if ids is None:
        return
    writer.put("models", uid, bytes((len(model),)) + model + record.unit)
    tenant = tenant_of(record.namespace)
    _count(writer, tenant, model, 1)
    for key in _entries(tenant, model, ids, uid):
        writer.put("prompts", key, b"")


def drop_blocks(writer: Writer, record: NamespaceRecord) -> None:
    """Remove a unit's table of blocks."""
    uid = _uid(record)
    raw, model = writer.get("blocks", uid), writer.get("models", uid)
    if raw is None:
        return
    writer.delete("blocks", uid)
    ids = _token_ids(*_split(raw))
    if model is None or ids is None:
        return
    writer.delete("models", uid)
    tenant = tenant_of(record.namespace)
    _count(writer, tenant, _model_of(model), -1)
    for key in _entries(tenant, _model_of(model), ids, uid):
        writer.delete("prompts", key)


def cut_blocks(writer: Writer, record: NamespaceRecord, tokens: int) -> None:
    """A unit's rows were cut: what is stored after them may be of other tokens."""
    copy_blocks(writer, record, record, tokens)


def copy_blocks(writer: Writer, parent: NamespaceRecord, child: NamespaceRecord, tokens: int | None) -> None:
    """Give `child` the table of the first `tokens` tokens (default all) of `parent`."""
    raw = writer.get("blocks", _uid(parent))
    if raw is None:
        return
    size, hashes = _split(raw)
    kept = hashes if tokens is None else hashes[: tokens // size * _HASHES.itemsize]
    if child is not parent or len(kept) < len(hashes):
        model = writer.get("models", _uid(parent))
        set_blocks(writer, child, size, kept, b"" if model is None else _model_of(model))


def table_of(reader: Reader, record: NamespaceRecord) -> tuple[int, bytes, bytes] | None:
    """Tokens per block, hashes and model digest of a unit's table, as `set_blocks` takes them."""
    raw, owner = reader.get("blocks", _uid(record)), reader.get("models", _uid(record))
    return None if raw is None else (*_split(raw), b"" if owner is None else _model_of(owner))


def get_blocks(reader: Reader, record: NamespaceRecord) -> tuple[int, bytes] | None:
    """Tokens per block and hashes of a unit's table, if it has one."""
    raw = reader.get("blocks", _uid(record))
    return None if raw is None else _split(raw)


def models(engine: Engine, tenant: bytes) -> dict[bytes, int]:
    """See `Store.models`."""
    before = _counts_of(tenant)
    with engine.catalog.snapshot() as reader:
        found = reader.scan("models", prefix=before)
        return {key[len(before) :]: int.from_bytes(value, "little") for key, value in found}


def _counts_of(tenant: bytes) -> bytes:
    return _TENANT_COUNTS + tag_of(tenant) if tenant else _COUNTS


def _count(writer: Writer, tenant: bytes, model: bytes, step: int) -> None:
    key = _counts_of(tenant) + model
    count = int.from_bytes(writer.get("models", key) or b"", "little") + step
    if count:
        writer.put("models", key, count.to_bytes(8, "little"))
    else:
        writer.delete("models", key)


def match(
    engine: Engine,
    ids: Ids,
    model: bytes,
    fewest: int,
    whole: bool,
    listing: Listing,
) -> Match | None:
    """See `Store.match`."""
    beyond = np.flatnonzero(ids == TOKEN_LIMIT)
    asked = ids[: beyond[0]] if beyond.size else ids
    with engine.catalog.snapshot() as reader:
        heads = boundaries(model, asked, tenant_of(listing.tag))
        best = _search(reader, asked, heads, whole, engine.clock(), listing)
    if best is None or best.tokens < fewest:
        return None
    engine.usage.note(best.record.unit, engine.clock())
    return best


def _search(
    reader: Reader, ids: Ids, heads: list[bytes], whole: bool, now: float, listing: Listing
) -> Match | None:
    best: Match | None = None
    seen: set[bytes] = set()
    for level in range(_deepest(reader, heads), -1, -1):
        tail = _tail(ids, level)
        found = _wholes(reader, heads[level], tail) if whole else _nearest(reader, heads[level], tail)
        for shared, uid in found:
            if best is not None and level * BLOCK + shared <= best.tokens:
                break
            if uid in seen:
                continue
            if len(seen) == MOST_CANDIDATES:
                return best
            seen.add(uid)
            candidate = _check(reader, uid, ids, whole, now, listing)
            if candidate is not None and (best is None or candidate.tokens > best.tokens):
                best = candidate
        if best is not None and best.tokens >= level * BLOCK:
            return best
    return best


def _check(reader: Reader, uid: bytes, ids: Ids, whole: bool, now: float, listing: Listing) -> Match | None:
    """What a candidate holds of the tokens, when it can be read."""
    owner, raw = reader.get("models", uid), reader.get("blocks", uid)
    if owner is None or raw is None:
        return None
    unit = owner[1 + owner[0] :]
    record = reader.namespace(unit)
    if record is None or not record.is_hit or 0 < record.expires <= now:
        return None
    if not listing.holds(record.namespace):
        return None
    if reader.get("quarantine", key_of(unit)) is not None:
        return None
    stored = np.frombuffer(raw, _HASHES, offset=_SIZE.size)
    held = min(len(stored), record.tokens or len(stored))
    tokens = min(_shared(stored, ids), held)
    if not tokens or (whole and not tokens == held == len(stored)):
        return None
    return Match(record, tokens)


def _nearest(reader: Reader, head: bytes, tail: bytes) -> Iterator[_Found]:
    """Entries with this hash, those that share most tokens with the tail first."""
    start = head + tail
    with (
        reader.txn.cursor(db=reader.tables["prompts"]) as above,
        reader.txn.cursor(db=reader.tables["prompts"]) as below,
    ):
        more = above.set_range(start)
        less = below.prev() if below.set_range(start) else below.last()
        up = _candidate(above, head, tail) if more else None
        down = _candidate(below, head, tail) if less else None
        while up is not None or down is not None:
            if down is None or (up is not None and up.shared >= down.shared):
                assert up is not None
                yield up
                up = _candidate(above, head, tail) if above.next() else None
            else:
                yield down
                down = _candidate(below, head, tail) if below.prev() else None


def _wholes(reader: Reader, head: bytes, tail: bytes) -> Iterator[_Found]:
    """Entries with this hash at which a prefix ends that the tail begins with, the longest first."""
    length = min(_length(tail), BLOCK - 1)
    while length >= 0:
        end = head + tail[: length * _ID_BYTES].ljust(_TAIL_BYTES, b"\0")
        for key, _ in reader.scan("prompts", prefix=end):
            yield _Found(length, key[-8:])
        before = reader.at_or_before("prompts", end)
        if before is None or not before.startswith(head):
            return
        length = min(length - 1, _shared_bytes(before[_HEAD_BYTES:-8], tail))


def _candidate(cursor: Any, head: bytes, tail: bytes) -> _Found | None:
    key: bytes = cursor.key()
    if not key.startswith(head):
        return None
    return _Found(_shared_bytes(key[_HEAD_BYTES:-8], tail), key[-8:])


def _deepest(reader: Reader, heads: list[bytes]) -> int:
    """The last boundary that some stored prefix reaches with the same tokens; -1 for none."""
    low, high = -1, len(heads) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if next(reader.scan("prompts", prefix=heads[middle]), None) is None:
            high = middle - 1
        else:
            low = middle
    return low


def _entries(tenant: bytes, model: bytes, ids: Ids, uid: bytes) -> Iterator[bytes]:
    for level, head in enumerate(boundaries(model, ids, tenant)):
        yield head + _tail(ids, level) + uid


def boundaries(model: bytes, ids: Ids, tenant: bytes = b"") -> list[bytes]:
    """The hash of each boundary 0, `BLOCK`, 2 x `BLOCK` … up to the last one within the tokens.

    A tenant's are its own, so that a search meets nobody else's.
    """
    head = xxhash.xxh3_128_digest(_counts_of(tenant) + model if tenant else model)
    heads = [head]
    data = ids.tobytes()
    for start in range(0, len(data) - _TAIL_BYTES + 1, _TAIL_BYTES):
        head = xxhash.xxh3_128_digest(head + data[start : start + _TAIL_BYTES])
        heads.append(head)
    return heads


def _tail(ids: Ids, level: int) -> bytes:
    """The tokens after a boundary as they sort: each plus 1, and 0 where there are none."""
    part = ids[level * BLOCK : (level + 1) * BLOCK]
    return (part + np.uint32(1)).astype(_SORTED).tobytes().ljust(_TAIL_BYTES, b"\0")


def _length(tail: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(tail, _SORTED)))


def _shared_bytes(tail: bytes, other: bytes) -> int:
    return min(_shared(np.frombuffer(tail, _SORTED), np.frombuffer(other, _SORTED)), _length(tail))


def _shared(one: NDArray[Any], other: NDArray[Any]) -> int:
    """How many elements from the first on are equal."""
    count = min(len(one), len(other))
    differing = np.flatnonzero(one[:count] != other[:count])
    return int(differing[0]) if differing.size else count


def _split(raw: bytes) -> tuple[int, bytes]:
    return _SIZE.unpack_from(raw)[0], raw[_SIZE.size :]


def _token_ids(size: int, hashes: bytes) -> Ids | None:
    """The token ids of a table; None for one that has none."""
    if size != 1 or not hashes:
        return None
    values = np.frombuffer(hashes, _HASHES)
    return None if int(values.max()) >= TOKEN_LIMIT else values.astype(np.uint32)


def _model_of(owner: bytes) -> bytes:
    return owner[1 : 1 + owner[0]]


def _uid(record: NamespaceRecord) -> bytes:
    return record.uid.to_bytes(8, "big")

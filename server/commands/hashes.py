"""Hashes under plain keys."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.storage.keyspace import generic, hashes
from pionkv.storage.keyspace.access import KeyReader, KeyWriter
from pionkv.storage.keyspace.entry import Kind

from ..arguments import Argument, blob, integer, pairs
from ..keyed import Answer, Change, Read, handlers, value
from ..scanning import Scan, read_cursor, scanned
from .strings import OK


def get(keys: KeyReader, args: Sequence[Argument], protocol: int) -> Answer:
    """HGET key field."""
    return value(hashes.get(keys, blob(args[1]), blob(args[2])), protocol)


def get_many(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """HMGET key field [field ...]."""
    return reply.encode(hashes.get_many(keys, blob(args[1]), [*map(blob, args[2:])]), protocol)


def get_all(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """HGETALL key."""
    return reply.encode(dict(hashes.items(keys, blob(args[1]))), protocol)


def fields(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """HKEYS key."""
    return reply.encode([field for field, _ in hashes.items(keys, blob(args[1]))], protocol)


def values(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """HVALS key."""
    return reply.encode([value for _, value in hashes.items(keys, blob(args[1]))], protocol)


def exists(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """HEXISTS key field."""
    return reply.integer(hashes.get(keys, blob(args[1]), blob(args[2])) is not None)


def length(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """HLEN key."""
    return reply.integer(hashes.length(keys, blob(args[1])))


def value_length(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """HSTRLEN key field."""
    return reply.integer(len(hashes.get(keys, blob(args[1]), blob(args[2])) or b""))


def scan(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """HSCAN key cursor [MATCH pattern] [COUNT n]."""
    read_cursor(args[2])
    entry = keys.get(blob(args[1]), Kind.HASH)
    if entry is None:
        return scanned(0, (), protocol)
    step = Scan.read(args, 2)
    cursor, found = generic.scan_fields(keys, entry, step.cursor, step.count)
    return scanned(cursor, (part for item in found if step.wants(item[0]) for part in item), protocol)


def _given(args: Sequence[Argument], command: str) -> dict[bytes, bytes]:
    return {blob(field): blob(value) for field, value in pairs(args, 2, command)}


def put(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """HSET key field value [field value ...]."""
    return reply.integer(hashes.put(keys, blob(args[1]), _given(args, "hset")))


def put_quietly(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """HMSET key field value [field value ...]."""
    hashes.put(keys, blob(args[1]), _given(args, "hmset"))
    return OK


def put_new(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """HSETNX key field value."""
    return reply.integer(hashes.put_new(keys, blob(args[1]), blob(args[2]), blob(args[3])))


def delete(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """HDEL key field [field ...]."""
    return reply.integer(hashes.delete(keys, blob(args[1]), [*map(blob, args[2:])]))


def increment(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """HINCRBY key field increment."""
    step = integer(args[3])
    return reply.integer(hashes.increment(keys, blob(args[1]), blob(args[2]), step))


def increment_float(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """HINCRBYFLOAT key field increment."""
    return reply.bulk(hashes.increment_float(keys, blob(args[1]), blob(args[2]), blob(args[3])))


READS: dict[str, Read] = {
    "HEXISTS": exists,
    "HGET": get,
    "HGETALL": get_all,
    "HKEYS": fields,
    "HLEN": length,
    "HMGET": get_many,
    "HSCAN": scan,
    "HSTRLEN": value_length,
    "HVALS": values,
}
CHANGES: dict[str, Change] = {
    "HDEL": delete,
    "HINCRBY": increment,
    "HINCRBYFLOAT": increment_float,
    "HMSET": put_quietly,
    "HSET": put,
    "HSETNX": put_new,
}
HANDLERS = handlers(READS, CHANGES)

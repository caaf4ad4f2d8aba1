"""A Valkey or Redis server, or a cluster of them, as a tier.

Everything about one name has one hash tag and so lies on one shard. After the prefix (`pionkv:` by default):

    {tag}:<name>:h      hash: n last version given, v version of the record, r record, d dropped
    {tag}:<name>:p<id>  string: a piece; ends by itself unless a record names it
    {tag}:<name>:c      string: who has the right to compute the prefix
    i:<key>             sorted set: names in the index

The tag is 16 hex digits of the name's BLAKE2b; the name follows, so that key patterns can be granted.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from pionkv.protocol.errors import CommandError

from .interface import (
    NO_VERSION,
    Commit,
    Head,
    Moved,
    PieceGone,
    State,
    Tier,
    TierAway,
    TierError,
    TierFull,
    TierRefused,
)
from .shards import Shards
from .wire import Command, parse

CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")
ORPHAN_SECONDS = 3600
"""A piece that no record names by then ends: its writer is dead."""
TOMBSTONE_SECONDS = 86_400
"""How long it is known that a prefix was dropped."""
INDEX_SECONDS = 30 * 86_400
NAMES_A_KEY = 8
NAMES_ASKED = 3
SEED_BITS = 48
"""Versions begin at a random number: one that the tier lost with its record is not given again."""

COMMIT = """
local seen = redis.call('HGET', KEYS[1], 'v') or '0'
if seen ~= ARGV[1] then return {-1, seen} end
local pieces = tonumber(ARGV[4])
for i = 2, pieces + 1 do
  if redis.call('EXISTS', KEYS[i]) == 0 then return {-2, KEYS[i]} end
end
redis.call('HSETNX', KEYS[1], 'n', ARGV[5])
redis.call('HINCRBY', KEYS[1], 'n', 1)
local version = redis.call('HGET', KEYS[1], 'n')
redis.call('HSET', KEYS[1], 'v', version, 'r', ARGV[2])
redis.call('HDEL', KEYS[1], 'd')
for i = 1, pieces + 1 do
  if ARGV[3] == '0' then redis.call('PERSIST', KEYS[i]) else redis.call('PEXPIREAT', KEYS[i], ARGV[3]) end
end
for i = pieces + 2, #KEYS do redis.call('UNLINK', KEYS[i]) end
return {1, version}
"""
REMOVE = """
local seen = redis.call('HGET', KEYS[1], 'v') or '0'
if seen ~= ARGV[1] then return {-1, seen} end
for i = 2, #KEYS do redis.call('UNLINK', KEYS[i]) end
redis.call('HINCRBY', KEYS[1], 'n', 1)
redis.call('HDEL', KEYS[1], 'v', 'r')
if ARGV[2] == '1' then redis.call('HSET', KEYS[1], 'd', '1') end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {1, seen}
"""
CLAIM = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end"

_AWAY = frozenset({"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN", "BUSY"})
_REFUSED = frozenset({"NOAUTH", "NOPERM", "WRONGPASS"})


class RedisTier(Tier):
    """One server or a cluster; which of them is found out when it is first asked.

    Args:
        url: `redis://`, `rediss://`, or with `+cluster` and any number of hosts, parted by commas.
        prefix: What all keys begin with.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._prefix = prefix.encode()
        parts = urlsplit(url)
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        addresses, login = parse(url)
        self._shards = Shards(addresses, login, clustered=True if parts.scheme in CLUSTER_SCHEMES else None)

    def shard_of(self, name: bytes) -> str:
        """The address of the node that has the name's slot; before anything was asked, that of the tier."""
        return self._shard(self._key(name, b"h"))

    def shard_of_index(self, key: bytes) -> str:
        """The same for a key of the index."""
        return self._shard(self._index(key))

    async def state(self, name: bytes) -> State:
        """See `Tier`."""
        version, dropped = await self._ask(self._key(name, b"h"), "HMGET", "v", "d")
        return State(int(version or NO_VERSION), dropped is not None)

    async def head(self, name: bytes) -> Head | None:
        """See `Tier`."""
        version, record = await self._ask(self._key(name, b"h"), "HMGET", "v", "r")
        return None if version is None or record is None else Head(int(version), record)

    async def put_piece(self, name: bytes, piece: bytes, data: bytes | memoryview) -> None:
        """See `Tier`."""
        await self._ask(self._piece(name, piece), "SET", data, "EX", ORPHAN_SECONDS)

    async def get_piece(self, name: bytes, piece: bytes) -> bytes | memoryview:
        """See `Tier`."""
        found: bytes | memoryview | None = await self._ask(self._piece(name, piece), "GET")
        if found is None:
            raise PieceGone(f"piece {piece.hex()} is gone")
        return found

    async def commit(self, name: bytes, commit: Commit) -> int:
        """See `Tier`."""
        keys = [self._piece(name, piece) for piece in (*commit.pieces, *commit.garbage)]
        seed = secrets.randbits(SEED_BITS)
        words = (commit.after, commit.record, commit.expires, len(commit.pieces), seed)
        return await self._script(COMMIT, [self._key(name, b"h"), *keys], words)

    async def drop(self, name: bytes, after: int, pieces: Sequence[bytes]) -> None:
        """See `Tier`."""
        await self._remove(name, after, pieces, dropped=True)

    async def forget(self, name: bytes, after: int, pieces: Sequence[bytes]) -> None:
        """See `Tier`."""
        await self._remove(name, after, pieces, dropped=False)

    async def claim(self, name: bytes, owner: bytes, lease_ms: int) -> bool:
        """See `Tier`."""
        return bool(await self._eval(CLAIM, [self._key(name, b"c")], (owner, lease_ms)))

    async def release(self, name: bytes, owner: bytes) -> None:
        """See `Tier`."""
        await self._eval(RELEASE, [self._key(name, b"c")], (owner,))

    async def is_claimed(self, name: bytes) -> bool:
        """See `Tier`."""
        return bool(await self._ask(self._key(name, b"c"), "EXISTS"))

    async def note(self, keys: Sequence[bytes], name: bytes) -> None:
        """See `Tier`."""
        now = int(time.time())
        asked = [
            (key, command)
            for key in map(self._index, keys)
            for command in (
                ("ZADD", key, now, name),
                ("ZREMRANGEBYRANK", key, 0, -NAMES_A_KEY - 1),
                ("EXPIRE", key, INDEX_SECONDS),
            )
        ]
        await self._ask_each(asked)

    async def find(self, keys: Sequence[bytes]) -> list[list[bytes]]:
        """See `Tier`."""
        asked = [(key, ("ZREVRANGE", key, 0, NAMES_ASKED - 1)) for key in map(self._index, keys)]
        return cast(list[list[bytes]], await self._ask_each(asked))

    async def unnote(self, key: bytes, name: bytes) -> None:
        """See `Tier`."""
        await self._ask(self._index(key), "ZREM", name)

    async def close(self) -> None:
        """See `Tier`."""
        self._shards.close()

    async def _remove(self, name: bytes, after: int, pieces: Sequence[bytes], *, dropped: bool) -> None:
        keys = [self._key(name, b"h"), *(self._piece(name, piece) for piece in pieces)]
        await self._script(REMOVE, keys, (after, int(dropped), TOMBSTONE_SECONDS))

    async def _script(self, script: str, keys: Sequence[bytes], words: Sequence[Any]) -> int:
        done, said = await self._eval(script, keys, words)
        if done == -1:
            raise Moved(f"its version is {int(said)}, {words[0]} was seen")
        if done == -2:
            raise PieceGone("a piece has gone before its record could name it")
        return int(said)

    async def _eval(self, script: str, keys: Sequence[bytes], words: Sequence[Any]) -> Any:
        return await self._run(keys[0], ("EVAL", script, len(keys), *keys, *words))

    async def _ask(self, key: bytes, command: str, *words: Any) -> Any:
        return await self._run(key, (command, key, *words))

    async def _run(self, key: bytes, command: Command) -> Any:
        try:
            return _answer((await self._shards.ask(key, command))[0])
        except (CommandError, OSError) as error:
            raise _translated(error) from error

    async def _ask_each(self, asked: Sequence[tuple[bytes, Command]]) -> list[object]:
        keys, commands = zip(*asked, strict=True)
        try:
            return [_answer(each) for each in await self._shards.ask_each(keys, commands)]
        except (CommandError, OSError) as error:
            raise _translated(error) from error

    def _shard(self, key: bytes) -> str:
        address = self._shards.address_of(key)
        return self.address if address is None else str(address)

    def _key(self, name: bytes, what: bytes) -> bytes:
        tag = hashlib.blake2b(name, digest_size=8).hexdigest().encode()
        return self._prefix + b"{" + tag + b"}:" + name + b":" + what

    def _piece(self, name: bytes, piece: bytes) -> bytes:
        return self._key(name, b"p" + piece.hex().encode())

    def _index(self, key: bytes) -> bytes:
        return self._prefix + b"i:" + key.hex().encode()


def _answer(reply: object) -> object:
    if isinstance(reply, CommandError):
        raise reply
    return reply


def _translated(error: CommandError | OSError) -> TierError:
    """What went wrong, in the tier's words."""
    if isinstance(error, OSError):
        return TierAway(f"{type(error).__name__}: {error}")
    if error.code in _AWAY:
        return TierAway(str(error))
    if error.code in _REFUSED or "AUTH" in error.message:
        return TierRefused(str(error))
    return TierFull(str(error)) if "OOM" in str(error) else TierError(str(error))

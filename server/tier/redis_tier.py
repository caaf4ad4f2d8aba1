"""A Valkey or Redis server, or a cluster of them, as a tier.

Everything about one name has one hash tag and so lies on one shard. After the prefix (`pionkv:` by default):

    {tag}:<name>:h      hash: n last version given, v version of the record, r record, d dropped
    {tag}:<name>:p<id>  string: a piece; ends by itself unless a record names it
    {tag}:<name>:c      string: who has the right to compute the prefix
    i:<key>             sorted set: names in the index

The tag is 16 hex digits of the name's BLAKE2b; the name follows, so that key patterns can be granted.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from redis import exceptions as failures
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

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

T = TypeVar("T")

CLUSTER_SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
ORPHAN_SECONDS = 3600
"""A piece that no record names by then ends: its writer is dead."""
TOMBSTONE_SECONDS = 86_400
"""How long it is known that a prefix was dropped."""
INDEX_SECONDS = 30 * 86_400
NAMES_A_KEY = 8
NAMES_ASKED = 3
TRANSFER_SECONDS = 30.0
"""No single reply may take longer; how long it should take is decided by who asks."""
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

_AWAY = (
    failures.ConnectionError,
    failures.TimeoutError,
    failures.ClusterDownError,
    failures.BusyLoadingError,
    failures.MasterDownError,
    failures.ReadOnlyError,
    failures.RedisClusterException,
    OSError,
)
_REFUSED = (
    failures.AuthenticationError,
    failures.AuthorizationError,
    failures.NoPermissionError,
)


class RedisTier(Tier):
    """One server or a cluster; which of them is found out when it is first asked.

    Args:
        url: `redis://`, `rediss://`, or with `+cluster` and any number of hosts, parted by commas.
        prefix: What all keys begin with.
        connect_seconds: How long connecting may take.
    """

    def __init__(self, url: str, prefix: str, connect_seconds: float) -> None:
        self._url = url
        self._prefix = prefix.encode()
        self._options: dict[str, Any] = {
            "socket_connect_timeout": connect_seconds,
            "socket_timeout": TRANSFER_SECONDS,
            "protocol": 2,
        }
        parts = urlsplit(url)
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._client: Any = None
        self._connecting = asyncio.Lock()

    def shard_of(self, name: bytes) -> str:
        """The address of the node that has the name's slot; before anything was asked, that of the tier."""
        return self._shard(self._key(name, b"h"))

    def shard_of_index(self, key: bytes) -> str:
        """The same for a key of the index."""
        return self._shard(self._index(key))

    async def state(self, name: bytes) -> State:
        """See `Tier`."""
        version, dropped = await self._run(lambda client: client.hmget(self._key(name, b"h"), "v", "d"))
        return State(int(version or NO_VERSION), dropped is not None)

    async def head(self, name: bytes) -> Head | None:
        """See `Tier`."""
        version, record = await self._run(lambda client: client.hmget(self._key(name, b"h"), "v", "r"))
        return None if version is None or record is None else Head(int(version), record)

    async def put_piece(self, name: bytes, piece: bytes, data: bytes | memoryview) -> None:
        """See `Tier`."""
        key = self._piece(name, piece)
        await self._run(lambda client: client.set(key, data, ex=ORPHAN_SECONDS))

    async def get_piece(self, name: bytes, piece: bytes) -> bytes | memoryview:
        """See `Tier`."""
        found: bytes | None = await self._run(lambda client: client.get(self._piece(name, piece)))
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
        key = self._key(name, b"c")
        return bool(await self._run(lambda client: client.eval(CLAIM, 1, key, owner, lease_ms)))

    async def release(self, name: bytes, owner: bytes) -> None:
        """See `Tier`."""
        key = self._key(name, b"c")
        await self._run(lambda client: client.eval(RELEASE, 1, key, owner))

    async def is_claimed(self, name: bytes) -> bool:
        """See `Tier`."""
        return bool(await self._run(lambda client: client.exists(self._key(name, b"c"))))

    async def note(self, keys: Sequence[bytes], name: bytes) -> None:
        """See `Tier`."""
        now = int(time.time())

        async def run(client: Any) -> Any:
            pipe = client.pipeline(transaction=False)
            for key in map(self._index, keys):
                pipe.zadd(key, {name: now})
                pipe.zremrangebyrank(key, 0, -NAMES_A_KEY - 1)
                pipe.expire(key, INDEX_SECONDS)
            return await pipe.execute()

        await self._run(run)

    async def find(self, keys: Sequence[bytes]) -> list[list[bytes]]:
        """See `Tier`."""

        async def run(client: Any) -> Any:
            pipe = client.pipeline(transaction=False)
            for key in map(self._index, keys):
                pipe.zrevrange(key, 0, NAMES_ASKED - 1)
            return await pipe.execute()

        found: list[list[bytes]] = await self._run(run)
        return found

    async def unnote(self, key: bytes, name: bytes) -> None:
        """See `Tier`."""
        await self._run(lambda client: client.zrem(self._index(key), name))

    async def close(self) -> None:
        """See `Tier`."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _remove(self, name: bytes, after: int, pieces: Sequence[bytes], *, dropped: bool) -> None:
        keys = [self._key(name, b"h"), *(self._piece(name, piece) for piece in pieces)]
        await self._script(REMOVE, keys, (after, int(dropped), TOMBSTONE_SECONDS))

    async def _script(self, script: str, keys: Sequence[bytes], words: Sequence[Any]) -> int:
        done, said = await self._run(lambda client: client.eval(script, len(keys), *keys, *words))
        if done == -1:
            raise Moved(f"its version is {int(said)}, {words[0]} was seen")
        if done == -2:
            raise PieceGone("a piece has gone before its record could name it")
        return int(said)

    async def _run(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """Ask, and say in our own errors what went wrong."""
        try:
            return await call(await self._connected())
        except _REFUSED as error:
            raise TierRefused(str(error)) from error
        except failures.OutOfMemoryError as error:
            raise TierFull(str(error)) from error
        except _AWAY as error:
            raise TierAway(f"{type(error).__name__}: {error}") from error
        except failures.RedisError as error:
            if "OOM" in str(error):
                raise TierFull(str(error)) from error
            raise TierError(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            # The client's own: it uses connections that were closed under it.
            raise TierAway(f"{type(error).__name__}: {error}") from error

    async def _connected(self) -> Any:
        if self._client is None:
            async with self._connecting:
                if self._client is None:
                    self._client = await self._connect()
        return self._client

    async def _connect(self) -> Redis | RedisCluster:
        parts = urlsplit(self._url)
        if parts.scheme in CLUSTER_SCHEMES:
            return await self._cluster()
        client = Redis.from_url(self._url, retry=_once(), **self._options)
        try:
            info: dict[str, Any] = await client.info("cluster")
        except BaseException:
            await client.aclose()
            raise
        if not int(info.get("cluster_enabled", 0)):
            return client
        await client.aclose()
        return await self._cluster()

    async def _cluster(self) -> RedisCluster:
        """A client of the cluster that these hosts belong to."""
        parts = urlsplit(self._url)
        scheme = CLUSTER_SCHEMES.get(parts.scheme, parts.scheme)
        login, _, hosts = parts.netloc.rpartition("@")
        urls = [
            f"{scheme}://{login + '@' if login else ''}{host}/?{parts.query}" for host in hosts.split(",")
        ]
        probe = Redis.from_url(urls[0])
        kwargs = dict(probe.connection_pool.connection_kwargs)
        await probe.aclose()
        for word in ("host", "port", "db", "retry", *self._options):
            kwargs.pop(word, None)
        if scheme == "rediss":
            kwargs["ssl"] = True
        nodes = [
            ClusterNode(found.hostname or "localhost", found.port or 6379) for found in map(urlsplit, urls)
        ]
        client = RedisCluster(
            startup_nodes=nodes,
            require_full_coverage=False,
            retry=_once(),
            reinitialize_steps=1,
            **{name: kwargs[name] for name in kwargs if name in _CLUSTER_OPTIONS or name.startswith("ssl")},
            **self._options,
        )
        try:
            return await client.initialize()
        except BaseException:
            await client.aclose()
            raise

    def _shard(self, key: bytes) -> str:
        if not isinstance(self._client, RedisCluster):
            return self.address
        try:
            node = self._client.get_node_from_key(key)  # type: ignore[arg-type]
        except Exception:
            # While it learns the slots anew it raises all sorts.
            return self.address
        return self.address if node is None else str(node.name)

    def _key(self, name: bytes, what: bytes) -> bytes:
        tag = hashlib.blake2b(name, digest_size=8).hexdigest().encode()
        return self._prefix + b"{" + tag + b"}:" + name + b":" + what

    def _piece(self, name: bytes, piece: bytes) -> bytes:
        return self._key(name, b"p" + piece.hex().encode())

    def _index(self, key: bytes) -> bytes:
        return self._prefix + b"i:" + key.hex().encode()


_CLUSTER_OPTIONS = frozenset({"username", "password", "client_name"})


def _once() -> Retry:
    """One more try: the first one tells that a kept connection is dead."""
    return Retry(NoBackoff(), 1)

"""An object store (S3 and what speaks like it), or a folder, as a tier, by obstore.

    <prefix><tag>/h         last version u64, version u64, dropped u8, record
    <prefix><tag>/p<id>     a piece
    <prefix><tag>/c         until when u64 (milliseconds since 1970), and who has the right to compute it
    <prefix>i/<key>/<tag>   a name under a key of the index

A record is replaced on condition that it still has the e-tag that was read. A folder has no such condition:
of two servers that write the same prefix at the same moment the last one wins. Nothing ends by itself: a
prefix whose time is over goes when it is next asked for, and what a crash left goes by a rule of the bucket.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import struct
import time
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
from obstore import exceptions as failures
from obstore.store import LocalStore, S3Store

from .interface import (
    NO_VERSION,
    Commit,
    Head,
    Moved,
    PieceGone,
    State,
    Tier,
    TierAway,
    TierRefused,
)

T = TypeVar("T")

INDEX_STEP = 512
"""Each entry of the index is a request: there are fewer than where they are cheap."""
NAMES_ASKED = 3
TRANSFER_SECONDS = 30
SEED_BITS = 48
_HEAD = struct.Struct("<QQB")
_CLAIM = struct.Struct("<Q")
_MISSING = (FileNotFoundError, failures.NotFoundError)
_CONFLICTS = (failures.AlreadyExistsError, failures.PreconditionError)


class Found(NamedTuple):
    """The head of a name and what tells it from a later one; zeros and None when there is none."""

    last: int
    version: int
    dropped: bool
    record: bytes
    etag: str | None


class ObjectTier(Tier):
    """A bucket or a folder.

    Args:
        url: `s3://bucket/path?option=value`, with obstore's options of S3; or `file:///folder`.
        prefix: What all names begin with.
        connect_seconds: How long connecting may take.

    Raises:
        OSError: An option is not known, or the folder cannot be made.
    """

    index_step = INDEX_STEP

    def __init__(self, url: str, prefix: str, connect_seconds: float) -> None:
        parts = urlsplit(url)
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._prefix = prefix
        self._store: S3Store | LocalStore
        if parts.scheme == "file":
            folder = Path(unquote(parts.path))
            folder.mkdir(parents=True, exist_ok=True)
            self._store = LocalStore(folder)
        else:
            config: dict[str, Any] = dict(parse_qsl(parts.query))
            try:
                self._store = _bucket(parts.netloc, parts.path.strip("/"), config, connect_seconds)
            except failures.BaseError as error:
                raise OSError(f"tier {self.address}: {str(error).splitlines()[0]}") from error

    def shard_of(self, name: bytes) -> str:
        """There is one part."""
        return self.address

    def shard_of_index(self, key: bytes) -> str:
        """There is one part."""
        return self.address

    async def state(self, name: bytes) -> State:
        """See `Tier`."""
        path = self._path(name, "h")
        raw = await self._read(obstore.get_range_async(self._store, path, start=0, length=_HEAD.size))
        if raw is None:
            return State(NO_VERSION, False)
        _, version, dropped = _HEAD.unpack(bytes(raw))
        return State(version, bool(dropped))

    async def head(self, name: bytes) -> Head | None:
        """See `Tier`."""
        found = await self._head(name)
        return None if found.version == NO_VERSION else Head(found.version, found.record)

    async def put_piece(self, name: bytes, piece: bytes, data: bytes | memoryview) -> None:
        """See `Tier`."""
        await _run(obstore.put_async(self._store, self._piece(name, piece), data, use_multipart=False))

    async def get_piece(self, name: bytes, piece: bytes) -> bytes | memoryview:
        """See `Tier`."""
        raw = await self._get(self._piece(name, piece))
        if raw is None:
            raise PieceGone(f"piece {piece.hex()} is gone")
        return memoryview(raw[0])

    async def commit(self, name: bytes, commit: Commit) -> int:
        """See `Tier`. What is written is there for everybody at once, so pieces are not looked for again."""
        version = await self._replace(name, commit.after, commit.record, dropped=False)
        await self._delete(name, commit.garbage)
        return version

    async def drop(self, name: bytes, after: int, pieces: Sequence[bytes]) -> None:
        """See `Tier`."""
        await self._replace(name, after, b"", dropped=True)
        await self._delete(name, pieces)

    async def forget(self, name: bytes, after: int, pieces: Sequence[bytes]) -> None:
        """See `Tier`."""
        await self._replace(name, after, b"", dropped=False)
        await self._delete(name, pieces)

    async def claim(self, name: bytes, owner: bytes, lease_ms: int) -> bool:
        """See `Tier`. Leases are compared with the clocks of the servers."""
        path, now = self._path(name, "c"), int(time.time() * 1000)
        raw = await self._get(path)
        if raw is not None:
            until, holder = _CLAIM.unpack_from(raw[0])[0], raw[0][_CLAIM.size :]
            if until > now and holder != owner:
                return False
        etag = None if raw is None else raw[1]
        return await self._put_if(path, _CLAIM.pack(now + lease_ms) + owner, etag, new=raw is None)

    async def release(self, name: bytes, owner: bytes) -> None:
        """See `Tier`."""
        path = self._path(name, "c")
        raw = await self._get(path)
        if raw is not None and raw[0][_CLAIM.size :] == owner:
            await _run(obstore.delete_async(self._store, path))

    async def is_claimed(self, name: bytes) -> bool:
        """See `Tier`."""
        raw = await self._get(self._path(name, "c"))
        return raw is not None and _CLAIM.unpack_from(raw[0])[0] > time.time() * 1000

    async def note(self, keys: Sequence[bytes], name: bytes) -> None:
        """See `Tier`."""
        puts = (obstore.put_async(self._store, self._entry(key, name), name) for key in keys)
        await asyncio.gather(*map(_run, puts))

    async def find(self, keys: Sequence[bytes]) -> list[list[bytes]]:
        """See `Tier`. Which of the names are answered is not said."""
        return list(await asyncio.gather(*map(self._names, keys)))

    async def unnote(self, key: bytes, name: bytes) -> None:
        """See `Tier`."""
        await self._read(obstore.delete_async(self._store, self._entry(key, name)))

    async def close(self) -> None:
        """There is nothing to let go."""

    async def _names(self, key: bytes) -> list[bytes]:
        prefix = f"{self._prefix}i/{key.hex()}/"
        listed = await _run(_first(obstore.list(self._store, prefix=prefix, chunk_size=NAMES_ASKED)))
        found = await asyncio.gather(*(self._get(item["path"]) for item in listed[:NAMES_ASKED]))
        return [raw[0] for raw in found if raw is not None]

    async def _head(self, name: bytes) -> Found:
        raw = await self._get(self._path(name, "h"))
        if raw is None:
            return Found(0, NO_VERSION, False, b"", None)
        last, version, dropped = _HEAD.unpack_from(raw[0])
        return Found(last, version, bool(dropped), raw[0][_HEAD.size :], raw[1])

    async def _replace(self, name: bytes, after: int, record: bytes, *, dropped: bool) -> int:
        found = await self._head(name)
        if found.version != after:
            raise Moved(f"its version is {found.version}, {after} was seen")
        last = (found.last or secrets.randbits(SEED_BITS)) + 1
        version = last if record else NO_VERSION
        data = _HEAD.pack(last, version, dropped) + record
        if not await self._put_if(self._path(name, "h"), data, found.etag, new=found.last == 0):
            raise Moved("another server has written it meanwhile")
        return version

    async def _put_if(self, path: str, data: bytes, etag: str | None, *, new: bool) -> bool:
        """Write an object unless it is another one by now; whether it was written."""
        mode: Any = "create" if new else {"e_tag": etag}
        if isinstance(self._store, LocalStore) and not new:
            mode = "overwrite"
        try:
            await _run(obstore.put_async(self._store, path, data, mode=mode))
        except _CONFLICTS:
            return False
        return True

    async def _delete(self, name: bytes, pieces: Sequence[bytes]) -> None:
        if pieces:
            # One that is gone already is an error of some stores, and as it should be.
            await self._read(
                obstore.delete_async(self._store, [self._piece(name, piece) for piece in pieces])
            )

    async def _get(self, path: str) -> tuple[bytes, str | None] | None:
        """The bytes of an object and its e-tag."""

        async def get() -> tuple[bytes, str | None]:
            result = await obstore.get_async(self._store, path)
            return bytes(await result.bytes_async()), result.meta["e_tag"]

        return await self._read(get())

    async def _read(self, work: Awaitable[T]) -> T | None:
        """None when the object is not there."""
        try:
            return await _run(work)
        except _MISSING:
            return None

    def _path(self, name: bytes, what: str) -> str:
        return f"{self._prefix}{_tag(name)}/{what}"

    def _piece(self, name: bytes, piece: bytes) -> str:
        return self._path(name, f"p{piece.hex()}")

    def _entry(self, key: bytes, name: bytes) -> str:
        return f"{self._prefix}i/{key.hex()}/{_tag(name)}"


def _bucket(name: str, path: str, config: dict[str, Any], connect_seconds: float) -> S3Store:
    plain = str(config.get("endpoint", "")).startswith("http://")
    return S3Store(
        name,
        prefix=path or None,
        config=config,  # type: ignore[arg-type]
        client_options={
            "allow_http": plain,
            "connect_timeout": timedelta(seconds=connect_seconds),
            "timeout": timedelta(seconds=TRANSFER_SECONDS),
        },
        retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=TRANSFER_SECONDS)},
    )


def _tag(name: bytes) -> str:
    return hashlib.blake2b(name, digest_size=16).hexdigest()


async def _first(stream: Any) -> Any:
    """The first part of a listing."""
    async for part in stream:
        return part
    return []


async def _run(work: Awaitable[T]) -> T:
    """Say in our own errors what went wrong; what is not there, or there already, is for the caller."""
    try:
        return await work
    except (*_MISSING, *_CONFLICTS):
        raise
    except (failures.PermissionDeniedError, failures.UnauthenticatedError) as error:
        raise TierRefused(str(error).splitlines()[0]) from error
    except (failures.BaseError, OSError) as error:
        raise TierAway(str(error).splitlines()[0]) from error

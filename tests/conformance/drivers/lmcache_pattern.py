"""What LMCache's Redis connector sends, over redis-py's asyncio client: two keys a chunk, many connections.

A chunk is stored as its bytes first and its metadata second; it is there when its metadata are.
Argument: port.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
import sys

import redis.asyncio

URL = f"redis://127.0.0.1:{sys.argv[1]}?socket_timeout=120"
CHUNKS, CONNECTIONS = 24, 150
SHAPE = (2, 30, 256, 192)  # keys and values of 256 tokens of 30 layers, float16
BYTES = 2 * SHAPE[0] * SHAPE[1] * SHAPE[2] * SHAPE[3]
RANDOM = os.urandom(BYTES + CHUNKS)


def name(index: int) -> str:
    digest = hashlib.sha256(str(index).encode()).hexdigest()[:16]
    return f"SmolLM2@1@0@{digest}@half"


def body(index: int) -> memoryview:
    return memoryview(RANDOM)[index : index + BYTES]


async def put(client: redis.asyncio.Redis, index: int) -> None:
    await client.set(name(index) + "kv_bytes", body(index))
    await client.set(name(index) + "metadata", struct.pack("<7i", BYTES, 1, 2, *SHAPE))


async def get(client: redis.asyncio.Redis, index: int) -> bytes | None:
    metadata = await client.get(name(index) + "metadata")
    if metadata is None:
        return None
    assert struct.unpack("<7i", metadata)[0] == BYTES
    found = await client.get(name(index) + "kv_bytes")
    if found is None:
        await client.delete(name(index) + "metadata")
    return found


async def contained(client: redis.asyncio.Redis, count: int) -> int:
    for index in range(count):
        if not await client.exists(name(index) + "metadata"):
            return index
    return count


async def main() -> None:
    pool = redis.asyncio.ConnectionPool.from_url(URL, max_connections=CONNECTIONS)
    client = redis.asyncio.Redis.from_pool(pool)
    assert await get(client, 0) is None and await contained(client, 3) == 0
    await asyncio.gather(*(put(client, index) for index in range(CHUNKS)))
    assert await contained(client, CHUNKS + 1) == CHUNKS
    for index, found in enumerate(await asyncio.gather(*(get(client, index) for index in range(CHUNKS)))):
        assert found == body(index), f"chunk {index} differs"
    both = await client.mget([name(i) + end for i in (0, CHUNKS) for end in ("metadata", "kv_bytes")])
    assert [value is not None for value in both] == [True, True, False, False]
    assert await client.strlen(name(1) + "kv_bytes") == BYTES
    listed = {key async for key in client.scan_iter(match="SmolLM2@*metadata", count=10)}
    assert listed == {f"{name(index)}metadata".encode() for index in range(CHUNKS)}
    await client.delete(name(2) + "kv_bytes")
    assert await get(client, 2) is None and not await client.exists(name(2) + "metadata")
    await client.delete(*(name(i) + end for i in range(CHUNKS) for end in ("metadata", "kv_bytes")))
    assert await contained(client, 1) == 0
    await client.aclose()
    await pool.disconnect()


asyncio.run(main())
print(f"{CHUNKS} chunks of {BYTES} bytes over {CONNECTIONS} connections")

"""LMCache's own connectors on a CPU: the one over redis-py and the one in C++. Argument: port."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector.redis_connector import RedisConnector, RESPConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

PORT = int(sys.argv[1])
CHUNKS = 8
SHAPE = (2, 30, 256, 192)


def key(kind: str, index: int) -> CacheEngineKey:
    return CacheEngineKey("SmolLM2", 1, 0, hash((kind, index)) & (1 << 62) - 1, torch.float16)


async def drive(kind: str, connector: Any, local: LocalCPUBackend) -> None:
    keys = [key(kind, index) for index in range(CHUNKS)]
    chunks = [torch.randn(SHAPE, dtype=torch.float32).to(torch.float16) for _ in keys]
    assert not await connector.exists(keys[0])
    for name, chunk in zip(keys, chunks, strict=True):
        held = local.allocate(torch.Size(SHAPE), torch.float16, MemoryFormat.KV_2LTD)
        held.tensor.copy_(chunk)
        await connector.put(name, held)
        held.ref_count_down()
    for name, chunk in zip(keys, chunks, strict=True):
        assert await connector.exists(name)
        found = await connector.get(name)
        assert torch.equal(found.tensor.view(torch.int16).reshape(-1), chunk.view(torch.int16).reshape(-1))
        found.ref_count_down()


def main() -> None:
    config = LMCacheEngineConfig.from_defaults(chunk_size=SHAPE[2], max_local_cpu_size=1.0)
    shape = (SHAPE[1], SHAPE[0], SHAPE[2], 3, 64)
    metadata = LMCacheMetadata("SmolLM2", 1, 1, 0, 0, torch.float16, shape)
    local = LocalCPUBackend(config, metadata, dst_device="cpu")
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    connectors = {
        "RedisConnector": RedisConnector(f"redis://127.0.0.1:{PORT}", loop, local),
        "RESPConnector": RESPConnector("127.0.0.1", PORT, loop, local, num_threads=4),
    }
    for kind, connector in connectors.items():
        asyncio.run_coroutine_threadsafe(drive(kind, connector, local), loop).result(timeout=240)
    print(f"{', '.join(connectors)}: {CHUNKS} chunks each", flush=True)


main()
# The C++ client's threads wait for ever for more work.
sys.stdout.flush()
import os  # noqa: E402

os._exit(0)

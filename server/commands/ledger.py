"""V.LEDGER: where the bytes are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pionkv.protocol import reply

from ..arguments import Argument, Cursor, blob
from ..clients import Client
from ..dispatch import Handler
from ..memory import read_memory

LEDGER = "V.LEDGER"


async def ledger(client: Client, args: Sequence[Argument]) -> bytes:
    """V.LEDGER [sid or ns]: every byte in exactly one term, for one session, one prefix, or all."""
    cursor = Cursor(args, 1)
    name = blob(cursor.take()) if cursor else None
    cursor.end(LEDGER)
    count = client.service.store.ledger(name)
    for _ in count.steps():
        # Others have their turn between the steps.
        await asyncio.sleep(0)
    numbers = dict(count.ledger.lines())
    if name is None:
        numbers |= _whole_store(client)
    return reply.bulk("".join(f"{key}:{value}\r\n" for key, value in numbers.items()).encode())


def _whole_store(client: Client) -> dict[str, int]:
    """What belongs to no prefix: plain keys, the catalog, workspace; and what is not stored but was read."""
    service = client.service
    info = service.store.info()
    memory = read_memory(filter(None, (numbers.get("pid") for numbers in service.sums.workers())))
    return {
        "plain_keys_bytes": service.store.keyspace.info().bytes,
        "budget_used_bytes": info.bytes,
        "catalog_bytes": info.catalog_bytes,
        "workspace_bytes": service.store.workspace_bytes,
        "process_resident_bytes": memory.resident,
        "process_anonymous_bytes": memory.anonymous,
        "read_bytes_since_start": sum(service.sums.all_metrics().rows_out.values()),
    }


HANDLERS: dict[str, Handler] = {LEDGER: ledger}

"""MEMORY, LOLWUT."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
from collections.abc import Sequence
from importlib.metadata import version

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import UnknownNamespace

from ..arguments import Argument, Cursor, blob, integer
from ..clients import Client
from ..dispatch import Handler
from ..memory import read_memory
from ..service import REDIS_VERSION, Service
from .command import help

NEARLY_FULL = 0.9
MUCH_MEMORY = 1 << 30
ALIVE, DEAD = "█", " "
WIDTH, HEIGHT = 79, 24
RULE = 30


def usage(client: Client, args: Sequence[Argument]) -> bytes:
    """MEMORY USAGE name [SAMPLES n]: a plain key, or a prefix."""
    cursor = Cursor(args, 3)
    while cursor:
        if cursor.left < 2 or not cursor.take_keyword("SAMPLES") or integer(cursor.take()) < 0:
            raise CommandError("ERR", "syntax error")
    store, name = client.service.store, blob(args[2])
    entry = store.keyspace.read(lambda keys: keys.find(name), note_use=False)
    if entry is not None:
        return reply.integer(entry.cost)
    try:
        return reply.integer(store.namespace(name).bytes)
    except UnknownNamespace:
        return reply.null(client.protocol)


def stats(client: Client, args: Sequence[Argument]) -> bytes:
    """MEMORY STATS."""
    return reply.encode(
        {name.encode(): value for name, value in _stats(client.service).items()}, client.protocol
    )


def _stats(service: Service) -> dict[str, int | float]:
    memory = read_memory(filter(None, (numbers.get("pid") for numbers in service.sums.workers())))
    totals, keys = service.store.info(), service.store.keyspace.info()
    budget = service.settings.max_bytes
    return {
        "peak.allocated": memory.peak_resident,
        "total.allocated": memory.anonymous,
        "resident": memory.resident,
        "mapped.resident": memory.resident - memory.anonymous,
        "keys.count": keys.keys,
        "keys.bytes-per-key": keys.bytes // keys.keys if keys.keys else 0,
        "namespaces.count": totals.namespaces,
        "catalog.bytes": totals.catalog_bytes,
        "dataset.bytes": totals.bytes,
        "dataset.percentage": 100 * totals.bytes / budget if budget else 0.0,
        "clients.normal": service.clients(),
    }


def doctor(client: Client, args: Sequence[Argument]) -> bytes:
    """MEMORY DOCTOR."""
    figures, budget = _stats(client.service), client.service.settings.max_bytes
    found = []
    if budget and figures["dataset.bytes"] > NEARLY_FULL * budget:
        found.append(
            f"The budget is {figures['dataset.percentage']:.0f} % full: prefixes are evicted to make room. "
            "CONFIG SET maxmemory raises it."
        )
    if figures["total.allocated"] > MUCH_MEMORY:
        found.append(
            f"The process itself holds {int(figures['total.allocated'])} bytes, beside the mapped files: "
            "large commands or many connections. MEMORY PURGE gives back what is free."
        )
    return reply.verbatim("".join(f"{line}\n" for line in found or ["Nothing stands out."]), client.protocol)


def purge(client: Client, args: Sequence[Argument]) -> bytes:
    """MEMORY PURGE."""
    gc.collect()
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)
    return reply.OK


def lolwut(client: Client, args: Sequence[Argument]) -> bytes:
    """LOLWUT [VERSION n]: a cellular automaton, begun by chance."""
    cells = [random.random() < 0.5 for _ in range(WIDTH)]
    lines = []
    for _ in range(HEIGHT):
        lines.append("".join(ALIVE if cell else DEAD for cell in cells))
        cells = [
            bool(RULE >> (4 * cells[i - 1] + 2 * cells[i] + cells[(i + 1) % WIDTH]) & 1) for i in range(WIDTH)
        ]
    text = "\n".join(lines) + f"\n\nRedis ver. {REDIS_VERSION}, pionkv ver. {version('pionkv')}\n"
    return reply.verbatim(text, client.protocol)


HANDLERS: dict[str, Handler] = {
    "LOLWUT": lolwut,
    "MEMORY|DOCTOR": doctor,
    "MEMORY|HELP": help,
    "MEMORY|PURGE": purge,
    "MEMORY|STATS": stats,
    "MEMORY|USAGE": usage,
}

"""What the page shows, as JSON: numbers of the server, its prefixes as a tree, and what was missed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pionkv.storage import StorageError
from pionkv.storage.records import NamespaceRecord

if TYPE_CHECKING:
    from ..acl.user import User
    from ..service import Service

MOST_PREFIXES = 500
MILLION = 1_000_000
QUANTILES = (0.5, 0.99)
COMMANDS_SHOWN = 12
K_SUFFIX, V_SUFFIX = b"_pk", b"_pv"

Json = dict[str, Any]


def overview(service: Service) -> Json:
    """Numbers of the server as of now. Times are seconds, sizes bytes; counters only grow."""
    metrics, receipt = service.sums.all_metrics(), service.sums.all_receipts()
    store = service.store.info()
    times = service.command_times()
    busiest = sorted(times, key=lambda name: -times[name][0].total_ns)[:COMMANDS_SHOWN]
    return {
        "time": service.clock(),
        "uptime": service.uptime(),
        "workers": len(service.sums.workers()),
        "clients": service.clients(),
        "budget": service.settings.max_bytes,
        "stored": store.bytes,
        "namespaces": store.namespaces,
        "sessions": store.sessions,
        "pages": store.pages,
        "evictions": store.evictions,
        "quarantined": store.quarantined,
        "commands": metrics.commands,
        "errors": metrics.errors,
        "received": metrics.received,
        "sent": metrics.sent,
        "hits": metrics.hits,
        "misses": metrics.misses,
        "miss_reasons": metrics.miss_reasons,
        "restores": receipt.hits,
        "tokens_served": receipt.tokens,
        "seconds_saved": receipt.us_saved / MILLION,
        "loop_lag": service.lag.mean,
        "latency": [
            {
                "command": name.replace("|", " "),
                "calls": times[name][0].calls,
                "failures": times[name][1],
                **{f"p{round(part * 100)}": times[name][0].percentile(part) / MILLION for part in QUANTILES},
            }
            for name in busiest
        ],
    }


async def prefixes(service: Service, user: User) -> Json:
    """The prefixes a user may see, at most `MOST_PREFIXES` of them, each with the one it shares pages with.

    Others get their turn now and then: it is many reads of the catalog.
    """
    visible = (record for record in service.store.namespaces() if user.lists(record.namespace))
    found = list(islice(visible, MOST_PREFIXES + 1))
    shown = found[:MOST_PREFIXES]
    parents = _parents(shown, await _files(service, shown))
    described = []
    for record in shown:
        described.append(_prefix(service, record, parents.get(record.namespace)))
        await asyncio.sleep(0)
    return {"more": len(found) > len(shown), "prefixes": described}


def misses(service: Service, user: User) -> list[Json]:
    """What was looked up in vain lately, the last first."""
    return [
        {"namespace": _text(miss.namespace), "reason": miss.reason, "count": miss.count, "at": miss.at}
        for miss in service.misses.recent
        if user.lists(miss.namespace)
    ]


def _prefix(service: Service, record: NamespaceRecord, parent: bytes | None) -> Json:
    return {
        "name": _text(record.namespace),
        "parent": None if parent is None else _text(parent),
        "tokens": record.tokens,
        "layers": record.layers,
        "states": record.states,
        "bytes": record.bytes,
        "formats": _formats(service, record),
        "hits": record.hits,
        "seconds_saved": record.hits * record.prefill_us / MILLION,
        "generation": record.generation,
        "created": record.created,
        "used": record.used,
        "expires": record.expires or None,
        "pinned": record.pins > 0,
        "readable": record.is_hit and not record.has_expired(service.clock()),
    }


def _formats(service: Service, record: NamespaceRecord) -> Json:
    """For each side the formats of its layers, in order, equal neighbours together: `fp16 x 4`."""
    found: Json = {}
    for side, suffix in (("k", K_SUFFIX), ("v", V_SUFFIX)):
        try:
            view = service.store.session(record.namespace + suffix)
        except StorageError:
            continue
        found[side] = _runs(view.schema.layer(layer).format for layer in range(view.num_layers))
    return found


def _runs(formats: Iterable[str]) -> list[list[Any]]:
    runs: list[list[Any]] = []
    for format in formats:
        if runs and runs[-1][0] == format:
            runs[-1][1] += 1
        else:
            runs.append([format, 1])
    return runs


async def _files(service: Service, records: list[NamespaceRecord]) -> dict[bytes, list[Path]]:
    """The page files of each prefix; none for one that was dropped meanwhile."""
    found: dict[bytes, list[Path]] = {}
    for record in records:
        with suppress(StorageError):
            found[record.namespace] = service.store.page_files(record.namespace)
        await asyncio.sleep(0)
    return found


def _parents(records: list[NamespaceRecord], files: dict[bytes, list[Path]]) -> dict[bytes, bytes]:
    """For each prefix the oldest one whose pages it shares, if that is older."""
    sharing: dict[Path, list[NamespaceRecord]] = defaultdict(list)
    for record in records:
        for file in files.get(record.namespace, ()):
            sharing[file].append(record)
    found: dict[bytes, bytes] = {}
    for record in records:
        others = [other for file in files.get(record.namespace, ()) for other in sharing[file]]
        oldest = min(others, key=attrgetter("uid"), default=record)
        if oldest.uid < record.uid:
            found[record.namespace] = oldest.namespace
    return found


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")

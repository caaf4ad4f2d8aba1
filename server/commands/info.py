"""INFO: Redis' sections and field names, so that tools read them, and our own `pion` and `workers`."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

from pionkv.kernels import backend_report
from pionkv.protocol import reply

from ..arguments import Argument, keyword
from ..clients import Client
from ..dispatch import Handler
from ..memory import read_memory
from ..metrics import Metrics
from ..place import ATTEND_GAUGES
from ..service import REDIS_VERSION, Service

Lines = Mapping[str, object]
ATTEND_COUNTERS = ("loads", "demoted", "rehydrated", "cold_misses")
DAY = 86400


def info(client: Client, args: Sequence[Argument]) -> bytes:
    """INFO [section ...]."""
    wanted = {keyword(argument).lower() for argument in args[1:]}
    everything = wanted & {"all", "everything"}
    usual = everything or not wanted or "default" in wanted
    sections = [(name, section, usual) for name, section in SECTIONS.items()]
    if client.service.tier is not None:
        sections.append(("tier", _tier, usual))
    sections += [(name, section, everything) for name, section in EXTRA_SECTIONS.items()]
    texts = [
        f"# {name.capitalize()}\r\n"
        + "".join(f"{key}:{value}\r\n" for key, value in section(client.service).items())
        for name, section, given in sections
        if given or name in wanted
    ]
    return reply.verbatim("\r\n".join(texts), client.protocol)


def _server(service: Service) -> Lines:
    uptime = service.uptime()
    return {
        "redis_version": REDIS_VERSION,
        "pionkv_version": version("pionkv"),
        "redis_mode": "standalone",
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "arch_bits": sys.maxsize.bit_length() + 1,
        "multiplexing_api": "uvloop",
        "process_id": os.getpid(),
        "run_id": service.place.run_id,
        "tcp_port": service.ports.tls if service.ports.tcp < 0 else service.ports.tcp,
        "tls_port": max(service.ports.tls, 0),
        "binary_port": service.ports.binary,
        "http_port": service.http_port,
        "metrics_port": service.metrics_port,
        "server_time_usec": int(service.clock() * 1e6),
        "uptime_in_seconds": uptime,
        "uptime_in_days": uptime // DAY,
        "executable": sys.executable,
    }


def _clients(service: Service) -> Lines:
    return {
        "connected_clients": service.clients(),
        "maxclients": service.settings.max_clients,
        "blocked_clients": 0,
    }


def _memory(service: Service) -> Lines:
    memory = read_memory(filter(None, (numbers.get("pid") for numbers in service.sums.workers())))
    budget = service.settings.max_bytes
    return {
        "used_memory": memory.anonymous,
        "used_memory_human": _human(memory.anonymous),
        "used_memory_rss": memory.resident,
        "used_memory_rss_human": _human(memory.resident),
        "used_memory_peak": memory.peak_resident,
        "used_memory_peak_human": _human(memory.peak_resident),
        "maxmemory": budget,
        "maxmemory_human": _human(budget),
        "maxmemory_policy": "volatile-ttl",
    }


def _persistence(service: Service) -> Lines:
    return {
        "loading": 0,
        "rdb_bgsave_in_progress": 0,
        "rdb_last_bgsave_status": "ok",
        "aof_enabled": 0,
        "durability": service.settings.durability,
    }


def _stats(service: Service) -> Lines:
    metrics, keys = service.sums.all_metrics(), service.store.keyspace.info()
    return {
        "total_connections_received": metrics.connections,
        "total_commands_processed": metrics.commands,
        "total_net_input_bytes": metrics.received.total(),
        "total_net_output_bytes": metrics.sent.total(),
        "rejected_connections": metrics.rejected_connections,
        "expired_keys": keys.expired,
        "evicted_keys": service.store.info().evictions + keys.evicted,
        "keyspace_hits": metrics.hits,
        "keyspace_misses": metrics.misses,
        "total_error_replies": metrics.errors,
    }


def _cpu(service: Service) -> Lines:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "used_cpu_sys": f"{own.ru_stime:.6f}",
        "used_cpu_user": f"{own.ru_utime:.6f}",
        "used_cpu_sys_children": f"{children.ru_stime:.6f}",
        "used_cpu_user_children": f"{children.ru_utime:.6f}",
    }


def _keyspace(service: Service) -> Lines:
    keys = service.store.keyspace.info()
    count = keys.keys + service.store.info().namespaces
    return {"db0": f"keys={count},expires={keys.deadlines},avg_ttl=0"} if count else {}


def _replication(service: Service) -> Lines:
    return {"role": "master", "connected_slaves": 0}


def _command_statistics(service: Service) -> Lines:
    return {
        f"cmdstat_{name.lower()}": f"calls={times.calls},usec={times.total_us},"
        f"usec_per_call={times.total_us / times.calls:.2f},rejected_calls=0,failed_calls={failed}"
        for name, (times, failed) in sorted(service.command_times().items())
    }


def _latency_statistics(service: Service) -> Lines:
    return {
        f"latency_percentiles_usec_{name.lower()}": ",".join(
            f"p{part:g}={times.percentile(part / 100)}" for part in (50, 99, 99.9)
        )
        for name, (times, _) in sorted(service.command_times().items())
    }


def _pion(service: Service) -> Lines:
    keys = service.store.keyspace.info()
    totals, metrics = service.store.info(), service.sums.all_metrics()
    budget, kernels = service.settings.max_bytes, backend_report()
    return {
        "sessions": totals.sessions,
        "namespaces": totals.namespaces,
        "pages": totals.pages,
        "rows": totals.rows,
        "plain_keys": keys.keys,
        "plain_key_bytes": keys.bytes,
        "stored_bytes": totals.bytes,
        "budget_bytes": budget,
        "catalog_bytes": totals.catalog_bytes,
        "evictions": totals.evictions,
        "quarantined": totals.quarantined,
        "rows_fetched": metrics.rows_fetched,
        **{f"bytes_in_{format}": count for format, count in sorted(metrics.rows_in.items())},
        **{f"bytes_out_{format}": count for format, count in sorted(metrics.rows_out.items())},
        **{f"transactions_{what}": metrics.transactions[what] for what in ("begun", "published", "ended")},
        **attention_lines(service, metrics),
        "kernels_loading": int(service.kernels.busy),
        "kernels_tried": ",".join(kernels.tried),
        "kernels_serving": ",".join(kernels.serving),
        "kernels_gpu_launches": kernels.gpu_launches,
        "kernels_fallbacks": kernels.fallbacks,
        "kernels_fallback_reason": kernels.reason,
        "loop_lag_mean_us": int(service.lag.mean * 1e6),
        "loop_lag_worst_us": int(service.lag.worst * 1e6),
    }


def attention_lines(service: Service, metrics: Metrics) -> Lines:
    """What attention over stored rows has done and keeps ready, in all workers."""
    return {
        "attend_queries": metrics.attend_queries.total(),
        "attend_passes": metrics.attend_passes,
        **{name: service.sums.gauge(name) for name in ATTEND_GAUGES},
        **{f"attend_{what}": getattr(metrics, f"attend_{what}") for what in ATTEND_COUNTERS},
    }


def _tier(service: Service) -> Lines:
    """The tier: what this worker sees of it, and the counters of all workers."""
    tier = service.tier
    if tier is None:
        return {}
    counts = service.sums.all_metrics().tier
    into, out = tier.bandwidth
    return {
        "tier": tier.address,
        "tier_state": "away: " + " ".join(tier.away) if tier.away else "asked",
        "tier_queued": service.sums.gauge("tier_queued"),
        "tier_queued_bytes": service.sums.gauge("tier_queued_bytes"),
        "tier_bytes_per_second_in": into,
        "tier_bytes_per_second_out": out,
        **{f"tier_{name.replace(':', '_').replace(' ', '_')}": counts[name] for name in sorted(counts)},
    }


def _tenants(service: Service) -> Lines:
    """What each tenant has stored, and how many connections a user has whose number is limited."""
    lines = {
        f"tenant_{name}": f"bytes={count},max_bytes={most}"
        for name, (count, most) in service.tenants().items()
    }
    for user in service.users:
        if user.max_connections:
            count, most = service.connections_of(user), user.max_connections
            lines[f"user_{user.name}"] = f"connections={count},max_connections={most}"
    return lines


def _workers(service: Service) -> Lines:
    """Who answers, and one line for each worker: its process, and its own numbers."""
    lines = {
        f"worker{number}": (
            f"pid={numbers.get('pid', 0)},lives={numbers.get('lives', 0) + 1},"
            f"clients={numbers.get('clients', 0)},commands={numbers.get('commands', 0)}"
        )
        for number, numbers in enumerate(service.sums.workers())
    }
    return {"worker_id": service.place.number, "workers": service.place.workers, **lines}


SECTIONS: dict[str, Callable[[Service], Lines]] = {
    "server": _server,
    "clients": _clients,
    "memory": _memory,
    "persistence": _persistence,
    "stats": _stats,
    "replication": _replication,
    "cpu": _cpu,
    "keyspace": _keyspace,
    "pion": _pion,
    "workers": _workers,
    "tenants": _tenants,
}
EXTRA_SECTIONS: dict[str, Callable[[Service], Lines]] = {
    "commandstats": _command_statistics,
    "latencystats": _latency_statistics,
}
"""Given when asked for, or with everything."""


def _human(count: int) -> str:
    size = float(count)
    for unit in ("B", "K", "M", "G"):
        if size < 1024:
            return f"{count}B" if unit == "B" else f"{size:.2f}{unit}"
        size /= 1024
    return f"{size:.2f}T"


HANDLERS: dict[str, Handler] = {"INFO": info}

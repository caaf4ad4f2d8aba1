"""The metrics page, in the format that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

from pionkv.kernels.report import backend_report
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ..memory import read_memory
from ..place import ATTEND_GAUGES, TIER_GAUGES
from ..timing import Histogram
from .families import FAMILIES, PREFIX, labelled, single

if TYPE_CHECKING:
    from ..service import Service

MILLION = 1_000_000
BUCKETS_SHOWN = 27
"""Bounds of a histogram: powers of two, from 1 microsecond to about a minute."""

ATTEND_COUNTERS = (
    "attend_passes",
    "attend_loads",
    "attend_demoted",
    "attend_rehydrated",
    "attend_cold_misses",
)

__all__ = ["CONTENT_TYPE_LATEST", "ServerCollector", "exposition"]


def exposition(service: Service) -> bytes:
    """All metrics of the server as of now, those of all workers added up."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServerCollector(service))
    return generate_latest(registry)


class ServerCollector(Collector):
    """Asks a server for its numbers whenever they are read.

    Args:
        service: The server.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> Iterable[Metric]:
        """Nothing is known in advance."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every metric there is."""
        yield from self._server()
        yield from self._traffic()
        yield from self._prefixes()
        yield from self._attention()
        yield from self._store()
        yield from self._tier()
        yield from self._tenants()
        yield from self._commands()

    def _server(self) -> Iterator[Metric]:
        service = self._service
        info = FAMILIES["info"]
        named = GaugeMetricFamily(PREFIX + "info", info.help, labels=info.labels)
        named.add_metric([version("pionkv"), service.settings.durability], 1)
        yield named
        yield single("uptime_seconds", service.uptime())
        workers = service.sums.workers()
        restarts = {str(number): numbers.get("lives", 0) for number, numbers in enumerate(workers)}
        yield single("workers", len(workers))
        yield labelled("worker_restarts", restarts)
        memory = read_memory(filter(None, (numbers.get("pid") for numbers in workers)))
        yield single("resident_bytes", memory.resident)
        yield single("anonymous_bytes", memory.anonymous)
        yield labelled("loop_lag_seconds", {"mean": service.lag.mean, "worst": service.lag.worst})
        yield single("kernel_fallbacks", backend_report().fallbacks)

    def _traffic(self) -> Iterator[Metric]:
        metrics = self._service.sums.all_metrics()
        yield single("clients", self._service.clients())
        yield single("connections", metrics.connections)
        yield single("rejected_connections", metrics.rejected_connections)
        yield single("commands", metrics.commands)
        yield single("error_replies", metrics.errors)
        yield labelled("received_bytes", metrics.received)
        yield labelled("sent_bytes", metrics.sent)
        yield labelled("row_bytes_in", metrics.rows_in)
        yield labelled("row_bytes_out", metrics.rows_out)
        yield single("rows_fetched", metrics.rows_fetched)

    def _prefixes(self) -> Iterator[Metric]:
        metrics, receipt = self._service.sums.all_metrics(), self._service.sums.all_receipts()
        yield single("hits", metrics.hits)
        yield labelled("misses", metrics.miss_reasons)
        yield labelled("transactions", metrics.transactions)
        yield single("restores", receipt.hits)
        yield single("tokens_served", receipt.tokens)
        yield single("prefill_saved_seconds", receipt.us_saved / MILLION)

    def _attention(self) -> Iterator[Metric]:
        sums, metrics = self._service.sums, self._service.sums.all_metrics()
        yield labelled("attend_queries", metrics.attend_queries)
        for name in ATTEND_COUNTERS:
            yield single(name, getattr(metrics, name))
        for name in ATTEND_GAUGES:
            yield single(name, sums.gauge(name))

    def _store(self) -> Iterator[Metric]:
        service = self._service
        store, keys = service.store.info(), service.store.keyspace.info()
        yield single("budget_bytes", service.settings.max_bytes)
        yield single("stored_bytes", store.bytes)
        yield single("catalog_bytes", store.catalog_bytes)
        yield single("sessions", store.sessions)
        yield single("namespaces", store.namespaces)
        yield single("pages", store.pages)
        yield single("rows", store.rows)
        yield single("plain_keys", keys.keys)
        yield single("plain_key_bytes", keys.bytes)
        yield labelled("evictions", {"prefix": store.evictions, "key": keys.evicted})
        yield single("expired_keys", keys.expired)
        yield single("quarantined", store.quarantined)

    def _tier(self) -> Iterator[Metric]:
        sums = self._service.sums
        if self._service.tier is None:
            return
        yield labelled("tier", sums.all_metrics().tier)
        for name in TIER_GAUGES:
            yield single(name, sums.gauge(name))

    def _tenants(self) -> Iterator[Metric]:
        service = self._service
        tenants = service.tenants()
        yield labelled("tenant_bytes", {name: count for name, (count, _) in tenants.items()})
        yield labelled("tenant_max_bytes", {name: most for name, (_, most) in tenants.items() if most})
        limited = [user for user in service.users if user.max_connections]
        yield labelled("user_connections", {user.name: service.connections_of(user) for user in limited})
        yield labelled("user_max_connections", {user.name: user.max_connections for user in limited})

    def _commands(self) -> Iterator[Metric]:
        family = FAMILIES["command_duration_seconds"]
        times = HistogramMetricFamily(PREFIX + "command_duration_seconds", family.help, labels=family.labels)
        failures: dict[str, float] = {}
        for name, (histogram, failed) in sorted(self._service.command_times().items()):
            command = name.lower().replace("|", " ")
            times.add_metric([command], _buckets(histogram), histogram.total_ns / 1e9)
            failures[command] = failed
        yield times
        yield labelled("command_failures", failures)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Upper bounds in seconds and how many took less, the last one without a bound."""
    found: list[tuple[str, float]] = []
    count = 0
    for place, more in enumerate(histogram.counts):
        count += more
        if place < BUCKETS_SHOWN:
            found.append((str((1 << place) / MILLION), count))
    return [*found, ("+Inf", count)]

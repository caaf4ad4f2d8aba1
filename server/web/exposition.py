"""The metrics page, in the format that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from pionkv.kernels.report import backend_report
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ..memory import read_memory
from ..timing import Histogram

if TYPE_CHECKING:
    from ..service import Service

MILLION = 1_000_000
BUCKETS_SHOWN = 27
"""Bounds of a histogram: powers of two, from 1 microsecond to about a minute."""

__all__ = ["CONTENT_TYPE_LATEST", "ServerCollector", "exposition"]


def exposition(service: Service) -> bytes:
    """All metrics of the server as of now, those of all workers added up."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServerCollector(service))
    return generate_latest(registry)


def _counter(name: str, help: str, values: Mapping[str, float], label: str) -> Metric:
    family = CounterMetricFamily(f"pionkv_{name}", help, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


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
        info = GaugeMetricFamily("pionkv_info", "Which server this is", labels=["version", "durability"])
        info.add_metric([version("pionkv"), service.settings.durability], 1)
        yield info
        yield GaugeMetricFamily("pionkv_uptime_seconds", "Since the server started", service.uptime())
        workers = service.sums.workers()
        restarts = {str(number): numbers.get("lives", 0) for number, numbers in enumerate(workers)}
        yield GaugeMetricFamily("pionkv_workers", "Processes that serve", len(workers))
        yield _counter("worker_restarts", "Processes that had a worker's place before", restarts, "worker")
        memory = read_memory(filter(None, (numbers.get("pid") for numbers in workers)))
        yield GaugeMetricFamily(
            "pionkv_resident_bytes", "Resident memory, mapped files included", memory.resident
        )
        yield GaugeMetricFamily("pionkv_anonymous_bytes", "Memory that no file backs", memory.anonymous)
        lag = GaugeMetricFamily("pionkv_loop_lag_seconds", "How late this worker's loop is", labels=["kind"])
        lag.add_metric(["mean"], service.lag.mean)
        lag.add_metric(["worst"], service.lag.worst)
        yield lag
        report = backend_report()
        yield CounterMetricFamily(
            "pionkv_kernel_fallbacks",
            "Operations done on the CPU though a GPU was wished for",
            report.fallbacks,
        )

    def _traffic(self) -> Iterator[Metric]:
        service, metrics = self._service, self._service.sums.all_metrics()
        yield GaugeMetricFamily("pionkv_clients", "Connections now", service.clients())
        yield CounterMetricFamily("pionkv_connections", "Connections accepted", metrics.connections)
        yield CounterMetricFamily(
            "pionkv_rejected_connections", "Connections beyond the limit", metrics.rejected_connections
        )
        yield CounterMetricFamily("pionkv_commands", "Commands received", metrics.commands)
        yield CounterMetricFamily("pionkv_error_replies", "Commands answered by an error", metrics.errors)
        yield _counter("received_bytes", "Bytes from clients", metrics.received, "lane")
        yield _counter("sent_bytes", "Bytes to clients", metrics.sent, "lane")
        yield _counter("row_bytes_in", "Bytes of rows received, by stored format", metrics.rows_in, "format")
        yield _counter("row_bytes_out", "Bytes of rows sent, by stored format", metrics.rows_out, "format")
        yield CounterMetricFamily("pionkv_rows_fetched", "Rows sent", metrics.rows_fetched)

    def _prefixes(self) -> Iterator[Metric]:
        metrics, receipt = self._service.sums.all_metrics(), self._service.sums.all_receipts()
        yield CounterMetricFamily("pionkv_hits", "Lookups that found a prefix", metrics.hits)
        yield _counter("misses", "Lookups that found none", metrics.miss_reasons, "reason")
        yield _counter(
            "transactions", "Transactions begun, published, ended unpublished", metrics.transactions, "what"
        )
        yield CounterMetricFamily("pionkv_restores", "Prefixes whose rows were fetched", receipt.hits)
        yield CounterMetricFamily("pionkv_tokens_served", "Tokens that need no prefill", receipt.tokens)
        yield CounterMetricFamily(
            "pionkv_prefill_saved_seconds", "Prefill time saved, estimated where not measured",
            receipt.us_saved / MILLION,
        )  # fmt: skip

    def _attention(self) -> Iterator[Metric]:
        sums, metrics = self._service.sums, self._service.sums.all_metrics()
        yield _counter("attend_queries", "Attention commands answered", metrics.attend_queries, "command")
        counters = {
            "passes": ("Passes over rows in which they were", metrics.attend_passes),
            "loads": ("Layers made ready for attention", metrics.attend_loads),
            "demoted": ("Layers let go for others", metrics.attend_demoted),
            "rehydrated": ("Layers made ready again after that", metrics.attend_rehydrated),
            "cold_misses": ("Queries refused because rows were not ready", metrics.attend_cold_misses),
        }
        for name, (help, value) in counters.items():
            yield CounterMetricFamily(f"pionkv_attend_{name}", help, value)
        gauges = {
            "resident_layers": "Layers kept ready for attention",
            "resident_bytes": "Bytes of the budget that they take",
            "cold_layers": "Layers let go and not made ready since",
        }
        for name, help in gauges.items():
            yield GaugeMetricFamily(f"pionkv_attend_{name}", help, sums.gauge(f"attend_{name}"))

    def _store(self) -> Iterator[Metric]:
        service = self._service
        store, keys = service.store.info(), service.store.keyspace.info()
        gauges = {
            "budget_bytes": ("Byte budget", service.settings.max_bytes),
            "stored_bytes": ("Bytes of the budget in use", store.bytes),
            "catalog_bytes": ("Size of the catalog's file", store.catalog_bytes),
            "sessions": ("Sessions", store.sessions),
            "namespaces": ("Prefixes and single sessions", store.namespaces),
            "pages": ("Page files", store.pages),
            "rows": ("Rows of all layers of all sessions", store.rows),
            "plain_keys": ("Plain keys", keys.keys),
            "plain_key_bytes": ("Bytes of the budget that plain keys take", keys.bytes),
        }
        for name, (help, value) in gauges.items():
            yield GaugeMetricFamily(f"pionkv_{name}", help, value)
        evicted = {"prefix": store.evictions, "key": keys.evicted}
        yield _counter("evictions", "Removed to make room", evicted, "what")
        yield CounterMetricFamily("pionkv_expired_keys", "Plain keys that have ended", keys.expired)
        yield CounterMetricFamily(
            "pionkv_quarantined", "Prefixes whose bytes failed a check", store.quarantined
        )

    def _tier(self) -> Iterator[Metric]:
        service = self._service
        if service.tier is None:
            return
        yield _counter(
            "tier", "What the tier was asked, and how it went", service.sums.all_metrics().tier, "what"
        )
        gauges = {
            "tier_queued": "Prefixes that wait to be written to the tier",
            "tier_queued_bytes": "Bytes of those",
            "tier_away": "Shards of the tier that are not asked now, counted by each worker",
        }
        for name, help in gauges.items():
            yield GaugeMetricFamily(f"pionkv_{name}", help, service.sums.gauge(name))

    def _tenants(self) -> Iterator[Metric]:
        service = self._service
        stored = GaugeMetricFamily("pionkv_tenant_bytes", "Bytes a tenant has stored", labels=["tenant"])
        quota = GaugeMetricFamily("pionkv_tenant_max_bytes", "What it may have stored", labels=["tenant"])
        for name, (count, most) in service.tenants().items():
            stored.add_metric([name], count)
            if most:
                quota.add_metric([name], most)
        now = GaugeMetricFamily(
            "pionkv_user_connections", "Connections of a user whose number is limited", labels=["user"]
        )
        limit = GaugeMetricFamily("pionkv_user_max_connections", "How many it may have", labels=["user"])
        for user in service.users:
            if user.max_connections:
                now.add_metric([user.name], service.connections_of(user))
                limit.add_metric([user.name], user.max_connections)
        yield from (stored, quota, now, limit)

    def _commands(self) -> Iterator[Metric]:
        times = HistogramMetricFamily(
            "pionkv_command_duration_seconds", "How long commands take", labels=["command"]
        )
        failures: dict[str, float] = {}
        for name, (histogram, failed) in sorted(self._service.command_times().items()):
            command = name.lower().replace("|", " ")
            times.add_metric([command], _buckets(histogram), histogram.total_ns / 1e9)
            failures[command] = failed
        yield times
        yield _counter("command_failures", "Commands answered by an error", failures, "command")


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Upper bounds in seconds and how many took less, the last one without a bound."""
    found: list[tuple[str, float]] = []
    count = 0
    for place, more in enumerate(histogram.counts):
        count += more
        if place < BUCKETS_SHOWN:
            found.append((str((1 << place) / MILLION), count))
    return [*found, ("+Inf", count)]

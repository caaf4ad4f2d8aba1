"""Every metric family there is: name, kind, labels, and what it says.

The exposition and the page of metrics in the documentation are made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

PREFIX: Final = "pionkv_"
_KINDS: Final[Mapping[str, type[GaugeMetricFamily] | type[CounterMetricFamily]]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
}


class Family(NamedTuple):
    """One family, named in `FAMILIES` without `pionkv_` and without a counter's `_total`."""

    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()

    def exported(self, name: str) -> str:
        """The name as it is exported, e.g. `pionkv_hits_total`."""
        return PREFIX + name + ("_total" if self.kind == "counter" else "")


def _gauge(help: str, *labels: str) -> Family:
    return Family("gauge", help, labels)


def _counter(help: str, *labels: str) -> Family:
    return Family("counter", help, labels)


GROUPS: Final[Mapping[str, Mapping[str, Family]]] = {
    "Server": {
        "info": _gauge("Which server this is", "version", "durability"),
        "uptime_seconds": _gauge("Since the server started"),
        "workers": _gauge("Processes that serve"),
        "worker_restarts": _counter("Processes that had a worker's place before", "worker"),
        "resident_bytes": _gauge("Resident memory, mapped files included"),
        "anonymous_bytes": _gauge("Memory that no file backs"),
        "loop_lag_seconds": _gauge("How late this worker's loop is: mean, worst", "kind"),
        "kernel_fallbacks": _counter("Operations done on the CPU though a GPU was wished for"),
    },
    "Traffic": {
        "clients": _gauge("Connections now"),
        "connections": _counter("Connections accepted"),
        "rejected_connections": _counter("Connections beyond the limit"),
        "commands": _counter("Commands received"),
        "error_replies": _counter("Commands answered by an error"),
        "received_bytes": _counter("Bytes from clients: tcp, unix, binary", "lane"),
        "sent_bytes": _counter("Bytes to clients: tcp, unix, binary", "lane"),
        "row_bytes_in": _counter("Bytes of rows received, by stored format", "format"),
        "row_bytes_out": _counter("Bytes of rows sent, by stored format", "format"),
        "rows_fetched": _counter("Rows sent"),
    },
    "Prefixes": {
        "hits": _counter("Lookups that found a prefix"),
        "misses": _counter(
            "Lookups that found none: absent, evicted, expired, dropped, incomplete, quarantined, "
            "no match (of tokens)", "reason",
        ),
        "transactions": _counter("Prefix transactions begun, published, ended (unpublished)", "what"),
        "restores": _counter("Prefixes whose rows were fetched"),
        "tokens_served": _counter("Tokens that need no prefill"),
        "prefill_saved_seconds": _counter("Prefill time saved, estimated where not measured"),
    },
    "Attention": {
        "attend_queries": _counter("Attention commands answered", "command"),
        "attend_passes": _counter("Passes over rows in which they were; waiting queries share one"),
        "attend_loads": _counter("Layers made ready for attention"),
        "attend_demoted": _counter("Layers let go for others"),
        "attend_rehydrated": _counter("Layers made ready again after that"),
        "attend_cold_misses": _counter("Queries refused because rows were not ready"),
        "attend_resident_layers": _gauge("Layers kept ready for attention"),
        "attend_resident_bytes": _gauge("Bytes of the budget that they take"),
        "attend_cold_layers": _gauge("Layers let go and not made ready since"),
    },
    "Store": {
        "budget_bytes": _gauge("Byte budget"),
        "stored_bytes": _gauge("Bytes of the budget in use"),
        "catalog_bytes": _gauge("Size of the catalog's file"),
        "sessions": _gauge("Sessions"),
        "namespaces": _gauge("Prefixes and single sessions"),
        "pages": _gauge("Page files"),
        "rows": _gauge("Rows of all layers of all sessions"),
        "plain_keys": _gauge("Plain keys"),
        "plain_key_bytes": _gauge("Bytes of the budget that plain keys take"),
        "evictions": _counter("Removed to make room: prefix, key", "what"),
        "expired_keys": _counter("Plain keys that have ended"),
        "quarantined": _counter("Prefixes whose bytes failed a check"),
    },
    "Tier": {
        "tier": _counter("What the tier was asked, and how it went", "what"),
        "tier_queued": _gauge("Prefixes that wait to be written to the tier"),
        "tier_queued_bytes": _gauge("Bytes of those"),
        "tier_away": _gauge("Shards of the tier that are not asked now, counted by each worker"),
    },
    "Tenants and users": {
        "tenant_bytes": _gauge("Bytes a tenant has stored", "tenant"),
        "tenant_max_bytes": _gauge("What it may have stored, where that is limited", "tenant"),
        "user_connections": _gauge("Connections of a user whose number is limited", "user"),
        "user_max_connections": _gauge("How many it may have", "user"),
    },
    "Commands": {
        "command_duration_seconds": Family(
            "histogram",
            "How long commands take, in powers of two from a microsecond on",
            ("command",),
        ),
        "command_failures": _counter("Commands answered by an error", "command"),
    },
}  # fmt: skip
FAMILIES: Final[Mapping[str, Family]] = {
    name: family for group in GROUPS.values() for name, family in group.items()
}


def single(name: str, value: float) -> Metric:
    """A gauge or counter without labels."""
    family = FAMILIES[name]
    return _KINDS[family.kind](PREFIX + name, family.help, value)


def labelled(name: str, values: Mapping[str, float]) -> Metric:
    """A gauge or counter with one label, a sample for each of its values."""
    family = FAMILIES[name]
    metric = _KINDS[family.kind](PREFIX + name, family.help, labels=family.labels)
    for label, value in sorted(values.items()):
        metric.add_metric([label], value)
    return metric

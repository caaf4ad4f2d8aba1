"""What all connections of one process share."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pionkv.protocol.limits import Limits
from pionkv.storage import Durability, Store

from . import control as channel
from .acl.log import Refusals
from .acl.user import DEFAULT, User
from .acl.users import Users
from .asking import Asking
from .attention.desk import Desk
from .buffers import ChunkPool, SpoolPool
from .config import Settings, changed
from .disk import Disk
from .exporting import Exports
from .listening import Ports
from .metrics import LoopLag
from .misses import NO_MATCH, Misses
from .monitor import Monitors
from .notices import Notices
from .output import Departures
from .place import Place, Sums
from .pubsub import Channels
from .questions import CAUGHT_UP, questions_of
from .receipt import Receipt
from .timing import Histogram, Timing
from .together import Group
from .warming import KernelLoader

if TYPE_CHECKING:
    from .clients import Client
    from .connection import Connection
    from .dispatch import Entry
    from .tier.link import TierLink

REDIS_VERSION = "7.2.0"
"""The Redis whose commands and fields are followed; clients look at it to choose what they send."""


class Service:
    """The store, the threads and the counters, handed to every command through its client."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], float] = time.time,
        request_stop: Callable[[], None] = lambda: None,
        place: Place | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.loop = loop
        self.clock = clock
        self.request_stop = request_stop
        self.place = place or Place()
        self.limits = Limits(bulk_bytes=settings.max_bulk_bytes)
        self.threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="pack")
        always = Durability(settings.durability) is Durability.ALWAYS
        self.disk = Disk(loop, self.threads, store) if always else None
        """Brings to the disk what is answered, if that is promised."""
        self.chunks = ChunkPool()
        self.spools = SpoolPool(settings.data_dir)
        self.kernels = KernelLoader()
        self.connections: dict[int, Connection] = {}
        self.users = Users(
            settings.data_dir,
            settings.password,
            on_removed=self._cut_off,
            on_changed=lambda: self.place.tell(channel.USERS),
            on_news=self._take_quotas,
        )
        self.channels = Channels(self.place.tell, self._elsewhere("listened"))
        self.monitors = Monitors(self.place.tell, self._elsewhere("monitors"))
        self.entries: Mapping[str, Entry] = {}
        """The commands and how they went."""
        self.attention = Desk(self)
        self.tier: TierLink | None = None
        """Where prefixes are that other servers have, if there is such a tier."""
        self.sums = Sums(self.place, self._gauges, self._command_numbers)
        self.metrics = self.sums.metrics
        self.timing = Timing(
            settings.slowlog_log_slower_than,
            settings.slowlog_max_len,
            settings.latency_monitor_threshold,
            self.place.ids(),
        )
        self.lag = LoopLag(loop, lambda late: self.timing.spike("event-loop", late, clock()))
        self.started_at = self.place.started_at
        self.receipt = Receipt(self.sums.receipt)
        self.misses = Misses(self.metrics)
        self.refusals = Refusals(self.place.ids())
        self.departures = Departures(loop)
        self.group = Group(loop, store, self.departures.leave)
        self.notices = Notices(self.channels, store)
        self.asking = Asking(self.place, questions_of(self))
        self.exports = Exports(settings.data_dir / "export", self.place.number)
        self.no_connections = asyncio.Event()
        self.no_connections.set()
        self.ports = Ports()
        self.http_port = 0
        self.metrics_port = 0
        self.stopping = False
        self._last_id = 0

    def next_client_id(self) -> int:
        """Ids are given in order and never again."""
        self._last_id += 1
        return self.place.client_id(self._last_id)

    def take_entries(self, entries: Mapping[str, Entry]) -> None:
        """The commands of the dispatcher; they go on from what an earlier process in this place did."""
        self.entries = entries
        for name, entry in entries.items():
            entry.times.add_numbers(self.sums.before, f"time:{name}")
            entry.failures += self.sums.before.get(f"failed:{name}", 0)

    def command_times(self) -> dict[str, tuple[Histogram, int]]:
        """How long the commands took that were run, and how many failed, summed over all workers."""
        numbers = self.sums.total()
        found: dict[str, tuple[Histogram, int]] = {}
        for name in self.entries:
            times = Histogram()
            times.add_numbers(numbers, f"time:{name}")
            if times.total_ns:
                found[name] = times, numbers.get(f"failed:{name}", 0)
        return found

    def missed(self, names: Sequence[bytes] = ()) -> None:
        """Lookups found nothing: of these namespaces, or one of any with some tokens."""
        count = len(names) or 1
        self.metrics.misses += count
        self.receipt.totals.misses += count
        if names:
            self.misses.note(names)
        else:
            self.metrics.miss_reasons[NO_MATCH] += 1

    def clients(self) -> int:
        """Connections of all workers."""
        return self.sums.gauge("clients")

    def connections_of(self, user: User) -> int:
        """Connections of all workers that a user with a limit has; else of this one.

        This worker's are shown to the others before theirs are read: of two that both add one, at least one
        sees the other's.
        """
        if user.max_connections:
            self.sums.flush()
        return self._own_connections()[user.name] + self.sums.elsewhere_of(f"user:{user.name}")

    def _own_connections(self) -> Counter[str]:
        clients = (connection.client for connection in self.connections.values())
        return Counter(client.user.name for client in clients if client.authenticated)

    def _take_quotas(self, users: Users) -> None:
        self.store.set_quotas({tenant.encode(): limit for tenant, limit in users.quotas().items()})

    def tenants(self) -> dict[str, tuple[int, int]]:
        """Each tenant's stored bytes, and how many it may have at most; 0: there is no limit."""
        held, quotas = self.store.accounts(), self.users.quotas()
        names = {user.tenant for user in self.users if user.tenant}
        return {
            name: (held[key].bytes if (key := name.encode()) in held else 0, quotas.get(name, 0))
            for name in sorted(names)
        }

    def uptime(self) -> int:
        """Whole seconds since the start."""
        return int(self.clock() - self.started_at)

    def configure(self, texts: Mapping[str, str]) -> None:
        """Other values for live settings, in every worker.

        Raises:
            ConfigError: A value is not usable; nothing changed.
            UsersError: The users cannot be written; nothing changed.
        """
        changed(self.settings, texts)
        if (password := texts.get("password")) is not None:
            self.users.change(DEFAULT, ("resetpass", f">{password}") if password else ("nopass",))
        self.take_over(texts)
        self.place.tell(channel.CONFIGURE, dict(texts))

    def take_over(self, texts: Mapping[str, str]) -> None:
        """Other values for settings in this process."""
        settings = self.settings = changed(self.settings, texts)
        self.share_budget()
        self.timing.configure(
            settings.slowlog_log_slower_than, settings.slowlog_max_len, settings.latency_monitor_threshold
        )

    async def announce(self, listeners: Channels | Monitors) -> None:
        """Return when the other workers know that somebody here listens, or is about to."""
        if self.place.workers > 1 and not listeners.here:
            listeners.coming += 1
            try:
                await self.asking.all(CAUGHT_UP)
            finally:
                listeners.coming -= 1

    def share_budget(self) -> None:
        """Rows kept ready for attention are in the byte budget: the store has the rest of it."""
        budget = self.settings.max_bytes
        self.store.set_budget(max(1, budget - self.sums.gauge("attend_resident_bytes")) if budget else None)

    def reset_statistics(self) -> None:
        """Begin to count anew, in every worker."""
        self.forget_statistics()
        self.place.tell(channel.RESET_STATISTICS)

    def forget_statistics(self) -> None:
        """Begin to count anew in this process."""
        self.metrics.reset()
        self.lag.worst = 0.0
        for entry in self.entries.values():
            entry.times.reset()
            entry.failures = 0

    def close_idle(self) -> None:
        """Close connections that were idle for longer than the setting allows; who listens may be idle."""
        seconds = self.settings.timeout
        if not seconds:
            return
        for connection in list(self.connections.values()):
            if connection.idle_since < self.clock() - seconds:
                connection.kill()

    def open_tier(self) -> None:
        """Begin to use the tier that the settings name."""
        # Nothing of a tier is loaded where there is none.
        from .tier.opening import open_tier

        self.tier = open_tier(self.settings, self.store, self.place, self.metrics.tier)
        if self.tier is not None:
            self.notices.on_change = self.tier.changed

    def release_claim(self, namespace: bytes, claimant: bytes) -> None:
        """Give a claim back, here and in the tier."""
        self.store.release_claim(namespace, claimant)
        if self.tier is not None:
            self.tier.release(namespace, claimant)

    def add(self, connection: Connection) -> None:
        """A client has connected."""
        self.connections[connection.client.id] = connection
        self.no_connections.clear()

    def note_refusal(
        self, client: Client, reason: str, object: bytes, context: str, *, user: str | None = None
    ) -> None:
        """A client was not allowed to do something. See `Refusals.add`."""
        shown = object.decode("utf-8", "backslashreplace")
        self.refusals.add(reason, context, shown, user or client.user.name, client.describe(), self.clock())

    def _cut_off(self, user: User) -> None:
        """A user is no more: its connections end."""
        for connection in list(self.connections.values()):
            if connection.client.user is user:
                connection.cut_off()

    def remove(self, connection: Connection) -> None:
        """A client is gone."""
        self.connections.pop(connection.client.id, None)
        self.channels.forget(connection.client)
        self.monitors.forget(connection.client)
        if not self.connections:
            self.no_connections.set()

    def _elsewhere(self, name: str) -> Callable[[], int] | None:
        """Asks for a gauge's sum over the other workers; None: there are no others."""
        return None if self.place.workers == 1 else lambda: self.sums.elsewhere_of(name)

    def _gauges(self) -> Mapping[str, int]:
        return {
            "clients": len(self.connections),
            "listened": self.channels.here + self.channels.coming,
            "attend_resident_layers": len(self.attention.residents),
            "attend_resident_bytes": self.attention.residents.nbytes,
            "attend_cold_layers": len(self.attention.residents.cold),
            "monitors": self.monitors.here + self.monitors.coming,
            "pid": os.getpid(),
            "lives": self.place.lives,
            **(self.tier.gauges() if self.tier is not None else {}),
            **self._limited_connections(),
        }

    def _limited_connections(self) -> dict[str, int]:
        """Connections of each user whose number is limited: the others have to know."""
        limited = [user.name for user in self.users if user.max_connections]
        own = self._own_connections() if limited else Counter()
        return {f"user:{name}": own[name] for name in limited}

    def _command_numbers(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, entry in self.entries.items():
            if entry.times.total_ns:
                found |= entry.times.numbers(f"time:{name}")
                found[f"failed:{name}"] = entry.failures
        return found

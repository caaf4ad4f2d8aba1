"""Counters of one process, and the lag of its event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Self

LAG_INTERVAL = 0.1
LAG_SMOOTHING = 0.1
NS_A_SECOND = 1_000_000_000


TCP, UNIX, BINARY = "tcp", "unix", "binary"
"""How the bytes of a connection travel."""


@dataclass(slots=True)
class Metrics:
    """What INFO and PION.STATS report. Counters only grow; times are seconds."""

    commands: int = 0
    errors: int = 0
    connections: int = 0
    rejected_connections: int = 0
    received: Counter[str] = field(default_factory=Counter)
    """Bytes from clients, by lane."""
    sent: Counter[str] = field(default_factory=Counter)
    """Bytes to clients, by lane."""
    rows_in: Counter[str] = field(default_factory=Counter)
    """Bytes of rows received, by stored format."""
    rows_out: Counter[str] = field(default_factory=Counter)
    """Bytes of rows sent, by stored format."""
    rows_fetched: int = 0
    """Rows served, the original's `total_fetches`."""
    hits: int = 0
    misses: int = 0
    miss_reasons: Counter[str] = field(default_factory=Counter)
    """Misses by why, as far as that was looked at; it is once a second."""
    transactions: Counter[str] = field(default_factory=Counter)
    """Prefix transactions begun, published, and ended without that."""
    attend_queries: Counter[str] = field(default_factory=Counter)
    """Attention commands answered, by name."""
    attend_hits: int = 0
    """ATTEND.QUERY that found rows."""
    attend_passes: int = 0
    """Passes over rows in which they were: queries that wait for the same rows share one."""
    attend_loads: int = 0
    """Layers made ready."""
    attend_demoted: int = 0
    """Layers let go for others."""
    attend_rehydrated: int = 0
    """Layers made ready again after that."""
    attend_cold_misses: int = 0
    """Queries refused because their rows were not ready."""

    tier: Counter[str] = field(default_factory=Counter)
    """What was read from the tier, written to it, and what failed."""

    def numbers(self) -> dict[str, int]:
        """All of them under one name each, to be added to those of other processes."""
        found: dict[str, int] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Counter):
                found |= {f"{name}:{key}": count for key, count in value.items()}
            else:
                found[name] = value
        return found

    @classmethod
    def of(cls, numbers: Mapping[str, int]) -> Self:
        """The metrics among some numbers."""
        metrics = cls()
        for name, count in numbers.items():
            counter, _, key = name.partition(":")
            if key and counter in cls.__slots__:
                getattr(metrics, counter)[key] = count
            elif name in cls.__slots__:
                setattr(metrics, name, count)
        return metrics

    def reset(self) -> None:
        """Begin to count anew."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Counter):
                value.clear()
            else:
                setattr(self, item.name, 0)


class LoopLag:
    """How late the event loop calls what is due: mean (smoothed) and worst since start, in seconds.

    Args:
        loop: The loop.
        on_lag: Told each time how late, in nanoseconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_lag: Callable[[int], None]) -> None:
        self._on_lag = on_lag
        self.mean = 0.0
        self.worst = 0.0
        self._loop = loop
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure."""
        self._due = self._loop.time() + LAG_INTERVAL
        self._handle = self._loop.call_at(self._due, self._tick)

    def stop(self) -> None:
        """Stop to measure."""
        if self._handle is not None:
            self._handle.cancel()

    def _tick(self) -> None:
        lag = max(0.0, self._loop.time() - self._due)
        self.mean += LAG_SMOOTHING * (lag - self.mean)
        self.worst = max(self.worst, lag)
        self._on_lag(int(lag * NS_A_SECOND))
        self.start()


class Every:
    """Calls a function again and again; once per interval."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._call = call
        self._handle = loop.call_later(seconds, self._run)

    def _run(self) -> None:
        self._handle = self._loop.call_later(self._seconds, self._run)
        self._call()

    def stop(self) -> None:
        """No further call."""
        self._handle.cancel()

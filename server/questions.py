"""What a worker knows by itself and the others may ask for; see `Asking`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import TYPE_CHECKING

from .asking import Question

if TYPE_CHECKING:
    from .clients import Filters
    from .service import Service

SLOW, FORGET_SLOW = "slow commands", "forget slow commands"
SPIKES, FORGET_SPIKES = "spikes", "forget spikes"
REFUSALS, FORGET_REFUSALS = "refusals", "forget refusals"
CLIENTS, KILL = "clients", "kill clients"
CHANNELS, PATTERNS = "channels", "patterns"
CAUGHT_UP = "caught up"
"""Answered by a worker that has read all messages sent before, and has shown and seen the numbers of all."""


def questions_of(service: Service) -> Mapping[str, Question]:
    """What can be asked of a worker."""
    return {
        SLOW: lambda: [tuple(slow) for slow in service.timing.slow],
        FORGET_SLOW: lambda: service.timing.slow.clear(),
        SPIKES: lambda: _spikes(service),
        FORGET_SPIKES: lambda events: service.timing.forget_spikes(events),
        REFUSALS: lambda: [astuple(refusal) for refusal in service.refusals.all()],
        FORGET_REFUSALS: lambda: service.refusals.clear(),
        CLIENTS: lambda: [
            (connection.client.id, connection.client.describe())
            for connection in service.connections.values()
        ],
        KILL: lambda filters, spared: _kill(service, filters, spared),
        CHANNELS: lambda: [(name, len(those)) for name, those in service.channels.channels.items()],
        PATTERNS: lambda: list(service.channels.patterns),
        CAUGHT_UP: lambda: service.sums.flush(),
    }


def _spikes(service: Service) -> list[tuple[str, int, list[tuple[int, int]]]]:
    timing = service.timing
    return [(event, timing.worst[event], list(samples)) for event, samples in timing.spikes.items()]


def _kill(service: Service, filters: Filters, spared: int) -> int:
    """End the clients that are meant, but for one; how many there were."""
    meant = [
        connection
        for connection in service.connections.values()
        if connection.client.id != spared and connection.client.is_meant(filters)
    ]
    for connection in meant:
        connection.kill()
    return len(meant)

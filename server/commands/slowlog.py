"""SLOWLOG, LATENCY."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError

from ..arguments import Argument, blob, integer
from ..clients import Client
from ..dispatch import Handler
from ..timing import histograms
from .command import help

SHOWN = 10
ALL = -1
BAD_COUNT = CommandError("ERR", "count should be greater than or equal to -1")


def get(client: Client, args: Sequence[Argument]) -> bytes:
    """SLOWLOG GET [count]."""
    count = integer(args[2]) if len(args) > 2 else SHOWN
    if count < ALL:
        raise BAD_COUNT.again()
    slow = list(client.service.timing.slow)
    rows = [
        [one.id, one.at, one.microseconds, one.words, one.address, one.name]
        for one in (slow if count == ALL else slow[:count])
    ]
    return reply.encode(rows, client.protocol)


def length(client: Client, args: Sequence[Argument]) -> bytes:
    """SLOWLOG LEN."""
    return reply.integer(len(client.service.timing.slow))


def reset(client: Client, args: Sequence[Argument]) -> bytes:
    """SLOWLOG RESET."""
    client.service.timing.slow.clear()
    return reply.OK


def _event(argument: Argument) -> str:
    return blob(argument).decode("utf-8", "replace")


def latest(client: Client, args: Sequence[Argument]) -> bytes:
    """LATENCY LATEST."""
    timing = client.service.timing
    rows = [[event, *samples[-1], timing.worst[event]] for event, samples in sorted(timing.spikes.items())]
    return reply.encode(rows, client.protocol)


def history(client: Client, args: Sequence[Argument]) -> bytes:
    """LATENCY HISTORY event."""
    samples = client.service.timing.spikes.get(_event(args[2]), ())
    return reply.encode([list(sample) for sample in samples], client.protocol)


def forget(client: Client, args: Sequence[Argument]) -> bytes:
    """LATENCY RESET [event ...]."""
    return reply.integer(client.service.timing.forget_spikes([_event(event) for event in args[2:]]))


def histogram(client: Client, args: Sequence[Argument]) -> bytes:
    """LATENCY HISTOGRAM [command ...]."""
    found = histograms(client.service.entries, [_event(name) for name in args[2:]])
    fields = {
        name.encode(): {b"calls": times.calls, b"histogram_usec": times.cumulative()}
        for name, times in found.items()
    }
    return reply.encode(fields, client.protocol)


def doctor(client: Client, args: Sequence[Argument]) -> bytes:
    """LATENCY DOCTOR."""
    return reply.verbatim(_diagnosis(client), client.protocol)


def _diagnosis(client: Client) -> str:
    service, timing = client.service, client.service.timing
    if not service.settings.latency_monitor_threshold:
        return (
            "Spikes are not recorded. CONFIG SET latency-monitor-threshold <milliseconds> turns that on; "
            "LATENCY HISTOGRAM works without it.\n"
        )
    if not timing.spikes:
        return f"No spikes of {service.settings.latency_monitor_threshold} ms or more.\n"
    lines = []
    for event, samples in sorted(timing.spikes.items()):
        taken = [ms for _, ms in samples]
        lines.append(
            f"{event}: {len(taken)} seconds with spikes, mean {sum(taken) / len(taken):.0f} ms, "
            f"worst {timing.worst[event]} ms. {_ADVICE.get(event, '')}\n"
        )
    return "".join(lines)


_ADVICE = {
    "command": "SLOWLOG GET shows which; large replies take as long as their readers.",
    "fast-command": "These do little: something else held the process up.",
    "event-loop": "The process did not get to its clients: too little CPU, or slow storage.",
}

HANDLERS: dict[str, Handler] = {
    "LATENCY|DOCTOR": doctor,
    "LATENCY|HELP": help,
    "LATENCY|HISTOGRAM": histogram,
    "LATENCY|HISTORY": history,
    "LATENCY|LATEST": latest,
    "LATENCY|RESET": forget,
    "SLOWLOG|GET": get,
    "SLOWLOG|HELP": help,
    "SLOWLOG|LEN": length,
    "SLOWLOG|RESET": reset,
}

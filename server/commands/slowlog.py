"""SLOWLOG, LATENCY."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError

from ..arguments import Argument, blob, integer
from ..clients import Client
from ..dispatch import Handler
from ..questions import FORGET_SLOW, FORGET_SPIKES, SLOW, SPIKES
from ..timing import SPIKES_KEPT, SlowCommand
from .command import help

SHOWN = 10
ALL = -1
BAD_COUNT = CommandError("ERR", "count should be greater than or equal to -1")


async def get(client: Client, args: Sequence[Argument]) -> bytes:
    """SLOWLOG GET [count]."""
    count = integer(args[2]) if len(args) > 2 else SHOWN
    if count < ALL:
        raise BAD_COUNT.again()
    slow = await _slow(client)
    rows = [
        [one.id, int(one.at), one.microseconds, list(one.words), one.address, one.name]
        for one in (slow if count == ALL else slow[:count])
    ]
    return reply.encode(rows, client.protocol)


async def _slow(client: Client) -> list[SlowCommand]:
    """The slow commands of all workers, the last ones first, and no more than are to be kept."""
    found = [SlowCommand(*one) for answer in await client.service.asking.all(SLOW) for one in answer]
    found.sort(key=lambda one: (one.at, one.id), reverse=True)
    return found[: client.service.settings.slowlog_max_len]


async def length(client: Client, args: Sequence[Argument]) -> bytes:
    """SLOWLOG LEN."""
    return reply.integer(len(await _slow(client)))


async def reset(client: Client, args: Sequence[Argument]) -> bytes:
    """SLOWLOG RESET."""
    await client.service.asking.all(FORGET_SLOW)
    return reply.OK


class Spikes(NamedTuple):
    """Spikes of one event: the worst, and (seconds, milliseconds) of the last ones, oldest first."""

    worst: int
    samples: list[tuple[int, int]]


async def _spikes(client: Client) -> dict[str, Spikes]:
    """The spikes of all workers, by event; of those in the same second the longest."""
    worst: Counter[str] = Counter()
    samples: dict[str, Counter[int]] = defaultdict(Counter)
    for answer in await client.service.asking.all(SPIKES):
        for event, longest, seen in answer:
            worst[event] = max(worst[event], longest)
            for second, taken in seen:
                samples[event][second] = max(samples[event][second], taken)
    return {
        event: Spikes(worst[event], sorted(found.items())[-SPIKES_KEPT:])
        for event, found in sorted(samples.items())
    }


def _event(argument: Argument) -> str:
    return blob(argument).decode("utf-8", "replace")


async def latest(client: Client, args: Sequence[Argument]) -> bytes:
    """LATENCY LATEST."""
    spikes = await _spikes(client)
    rows = [[event, *found.samples[-1], found.worst] for event, found in spikes.items()]
    return reply.encode(rows, client.protocol)


async def history(client: Client, args: Sequence[Argument]) -> bytes:
    """LATENCY HISTORY event."""
    found = (await _spikes(client)).get(_event(args[2]))
    return reply.encode([list(sample) for sample in found.samples] if found else [], client.protocol)


async def forget(client: Client, args: Sequence[Argument]) -> bytes:
    """LATENCY RESET [event ...]."""
    events = [_event(event) for event in args[2:]]
    gone = {event for answer in await client.service.asking.all(FORGET_SPIKES, events) for event in answer}
    return reply.integer(len(gone))


def histogram(client: Client, args: Sequence[Argument]) -> bytes:
    """LATENCY HISTOGRAM [command ...]."""
    wanted = {_event(name).upper() for name in args[2:]}
    fields = {
        name.lower().encode(): {b"calls": times.calls, b"histogram_usec": times.cumulative()}
        for name, (times, _) in sorted(client.service.command_times().items())
        if not wanted or name in wanted or name.partition("|")[0] in wanted
    }
    return reply.encode(fields, client.protocol)


async def doctor(client: Client, args: Sequence[Argument]) -> bytes:
    """LATENCY DOCTOR."""
    threshold = client.service.settings.latency_monitor_threshold
    return reply.verbatim(_diagnosis(threshold, await _spikes(client)), client.protocol)


def _diagnosis(threshold: int, spikes: Mapping[str, Spikes]) -> str:
    if not threshold:
        return (
            "Spikes are not recorded. CONFIG SET latency-monitor-threshold <milliseconds> turns that on; "
            "LATENCY HISTOGRAM works without it.\n"
        )
    if not spikes:
        return f"No spikes of {threshold} ms or more.\n"
    lines = []
    for event, found in spikes.items():
        taken = [ms for _, ms in found.samples]
        lines.append(
            f"{event}: {len(taken)} seconds with spikes, mean {sum(taken) / len(taken):.0f} ms, "
            f"worst {found.worst} ms. {_ADVICE.get(event, '')}\n"
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

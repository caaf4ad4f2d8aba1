"""What operators look at: slow commands, latency, memory; and what they change while the server runs."""

from __future__ import annotations

from .spec import CommandSpec, Example, Parameter, after, block, integer, key, many, optional, string

_ADMIN = ("admin", "loading", "stale")
_ASK = ("loading", "stale")


def _watch(
    name: str,
    summary: str,
    reply: str,
    *parameters: Parameter,
    admin: bool = True,
    complexity: str = "O(1)",
    shows: tuple[str, str] | None = None,
) -> CommandSpec:
    return CommandSpec(
        name=name,
        summary=summary,
        group="server",
        reply=reply,
        parameters=parameters,
        flags=_ADMIN if admin else _ASK,
        categories=("admin", "slow", "dangerous") if admin else ("slow",),
        complexity=complexity,
        examples=(Example(*shows),) if shows else (),
    )


def _container(name: str, about: str) -> tuple[CommandSpec, CommandSpec]:
    container = CommandSpec(
        name=name,
        summary=f"A container for commands about {about}.",
        group="server",
        reply="Depends on the subcommand.",
        categories=("slow",),
        container=True,
    )
    return container, _watch(f"{name}|HELP", "Lists the subcommands.", "An array of lines.", admin=False)


_EVENT = string("event")

WATCH_COMMANDS = (
    _watch("CONFIG|HELP", "Lists the subcommands.", "An array of lines.", admin=False),
    _watch(
        "CONFIG|RESETSTAT", "Counters begin anew, in all workers.", "OK.", shows=("CONFIG RESETSTAT", "OK")
    ),
    _watch(
        "CONFIG|REWRITE",
        "Writes what CONFIG SET has changed into the file that the settings came from.", "OK.",
    ),
    _watch(
        "CONFIG|SET",
        "Changes settings while the server runs, in all workers: all of those named or none.", "OK.",
        many(block("data", string("parameter"), string("value"))),
        complexity="O(N), N = settings", shows=("CONFIG SET maxmemory 16gb", "OK"),
    ),
    *_container("LATENCY", "what took long"),
    _watch("LATENCY|DOCTOR", "What the spikes of latency say, in words.", "A text."),
    _watch(
        "LATENCY|HISTOGRAM",
        "How long commands took: calls, and for powers of two of microseconds how many were below.",
        "A map from the command to a map.", optional(many(string("command"))), admin=False,
        complexity="O(N), N = commands", shows=("LATENCY HISTOGRAM get", '1) "get"'),
    ),
    _watch(
        "LATENCY|HISTORY", "The spikes of an event: time in seconds, milliseconds.", "An array of pairs.",
        _EVENT, complexity="O(N), N = spikes",
    ),
    _watch(
        "LATENCY|LATEST", "The last spike of each event: event, time, milliseconds, the worst of all.",
        "An array of arrays.", complexity="O(N), N = events",
    ),
    _watch(
        "LATENCY|RESET", "Forgets the spikes of some events, or of all.", "How many events had any.",
        optional(many(_EVENT)), shows=("LATENCY RESET", "(integer) 0"),
    ),
    _watch(
        "LOLWUT", "A picture, and which version this is.", "A text.",
        optional(many(string("arg"))), admin=False,
    ),
    *_container("MEMORY", "memory"),
    _watch("MEMORY|DOCTOR", "What stands out about the memory, in words.", "A text.", admin=False),
    _watch("MEMORY|PURGE", "Gives memory that is free back to the system.", "OK.", admin=False,
           shows=("MEMORY PURGE", "OK")),
    _watch("MEMORY|STATS", "Where the memory is.", "A map from name to a number.", admin=False),
    CommandSpec(
        name="MEMORY|USAGE",
        summary="Bytes that a key takes of the budget, or that the rows and states of a prefix take.",
        group="server",
        reply="An integer, or null for a name that does not exist.",
        parameters=(key("key"), optional(after("SAMPLES", integer("count")))),
        flags=("readonly",),
        categories=("read", "slow"),
        keys=(2, 2, 1),
        examples=(Example("MEMORY USAGE greeting", "(integer) 122"),),
    ),
    *_container("SLOWLOG", "slow commands"),
    _watch(
        "SLOWLOG|GET", "Slow commands, newest first, ten or as many as asked for, -1 for all.",
        "An array of arrays: id, time, microseconds, command line, address, client name.",
        optional(integer("count")), complexity="O(N), N = entries",
    ),
    _watch("SLOWLOG|LEN", "How many slow commands are kept.", "An integer.", shows=("SLOWLOG LEN",
           "(integer) 3")),
    _watch("SLOWLOG|RESET", "Forgets them.", "OK.", shows=("SLOWLOG RESET", "OK")),
)  # fmt: skip

"""Short ways to write the specs of commands on plain keys."""

from __future__ import annotations

from .spec import CommandSpec, Example, Parameter, after, integer, oneof, word

ONE = (1, 1, 1)
"""One key, the first argument."""
ALL = (1, -1, 1)
"""Every argument is a key."""

READ = ("readonly", "fast")
SCAN = ("readonly",)
WRITE = ("write", "denyoom", "fast")
SLOW_WRITE = ("write", "denyoom")
REMOVE = ("write", "fast")
SLOW_REMOVE = ("write",)

_GROUPS = {"generic": "keyspace", "sorted-set": "sortedset"}
"""Where a group's ACL category has another name."""


def data(
    name: str,
    summary: str,
    reply: str,
    *parameters: Parameter,
    group: str,
    flags: tuple[str, ...],
    keys: tuple[int, int, int] = ONE,
    complexity: str = "O(1)",
    shows: tuple[str, str] | None = None,
    dangerous: bool = False,
) -> CommandSpec:
    """A command on plain keys; its ACL categories follow from its flags and group."""
    access = ("read",) if "readonly" in flags else ("write",) if "write" in flags else ()
    speed = "fast" if "fast" in flags else "slow"
    return CommandSpec(
        name=name,
        summary=summary,
        group=group,
        reply=reply,
        parameters=parameters,
        flags=flags,
        categories=(_GROUPS.get(group, group), *access, speed, *(("dangerous",) if dangerous else ())),
        keys=keys,
        complexity=complexity,
        examples=(Example(*shows),) if shows else (),
    )


def expiration(*more: Parameter) -> Parameter:
    """EX, PX, EXAT or PXAT, and alternatives to them."""
    return oneof(
        "expiration",
        after("EX", integer("seconds")),
        after("PX", integer("milliseconds")),
        after("EXAT", integer("unix-time-seconds")),
        after("PXAT", integer("unix-time-milliseconds")),
        *more,
    )


NX_XX = oneof("condition", word("NX"), word("XX"))

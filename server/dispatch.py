"""From the words of a command line to the handler that runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pionkv.protocol.errors import CommandError
from pionkv.protocol.table import COMMANDS, CommandSpec

from .arguments import Argument, keyword, shown
from .clients import Client
from .keyed import Batch, Change, Keyed
from .receiving import Receiver
from .timing import Histogram

Slow: TypeAlias = Coroutine[Any, Any, bytes | None]
"""A reply that takes its time: it ends with the bytes to send, or None when it has sent them itself."""

Handler: TypeAlias = Callable[[Client, Sequence[Argument]], bytes | Slow]
"""Gets all arguments, the name first; answers at once or with a coroutine."""

Opener: TypeAlias = Callable[[Client, Sequence[Argument], int], Receiver | None]
"""Gets the arguments before a large one, and its length; None lets the parser gather it in memory."""

Several: TypeAlias = Callable[[Client, Sequence[list[bytes]], int], "bytes | None"]
"""Gets lines of a command, and how many arguments the longest has; answers them in one step, all replies in a
row. None: they are to be answered one by one.
"""

BRIEF = frozenset({"ECHO", "KV.PREFIX.LOOKUP", "PING"})
"""Commands that are answered at once, as a rule, and leave the connection as it was."""

SPELLINGS_KEPT = 1024
ARGUMENTS_SHOWN = 20


@dataclass(slots=True)
class Entry:
    """One command that this server runs, and how often it did."""

    spec: CommandSpec
    handler: Handler
    openers: Mapping[int, Opener]
    """Position of a large argument -> who decides where it goes."""
    run: Change | None
    """Runs it within a transaction, when it works on plain keys alone."""
    changes: bool
    """It may change plain keys."""
    batch: Batch | None
    """Runs several lines of it in one step within a transaction."""
    several: Several | None
    """Answers several lines of it in one step, when nothing changes."""
    brief: bool
    """It is not on plain keys, answered at once as a rule, and leaves the connection as it was."""
    needs_auth: bool
    fewest: int
    most: int
    failures: int = 0
    times: Histogram = field(default_factory=Histogram)
    """How long it took, each time it was run."""


class Dispatcher:
    """Finds a command however its name is spelled; a subcommand is an entry `CONTAINER|NAME` of its own."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        openers: Mapping[str, Mapping[int, Opener]],
        several: Mapping[str, Several],
    ) -> None:
        self.entries = {
            name: _entry(COMMANDS[name], handler, openers.get(name, {}), several.get(name))
            for name, handler in handlers.items()
        }
        self._containers = {name.partition("|")[0] for name in handlers if "|" in name}
        self.spelled: dict[bytes, Entry] = {}
        """By the name as a client writes it, those that are no containers, once they were found."""

    def find(self, args: Sequence[Argument]) -> Entry:
        """The entry for a command line.

        Raises:
            CommandError: No such command or subcommand, or the number of arguments cannot be right.
        """
        name = args[0]
        entry = self.spelled.get(name) if isinstance(name, bytes) else None
        if entry is None:
            entry = self._search(args)
        if len(args) < entry.fewest or len(args) > entry.most:
            raise entry.spec.arity_error()
        return entry

    def _search(self, args: Sequence[Argument]) -> Entry:
        name = keyword(args[0])
        if name in self._containers and len(args) > 1:
            entry = self.entries.get(f"{name}|{keyword(args[1])}")
            if entry is None:
                raise unknown_subcommand(name, args[1])
            return entry
        entry = self.entries.get(name)
        if entry is None:
            raise COMMANDS[name].arity_error() if name in self._containers else unknown_command(args)
        if name not in self._containers and len(self.spelled) < SPELLINGS_KEPT:
            self.spelled[bytes(args[0])] = entry  # type: ignore[arg-type]
        return entry

    def begun(self, args: Sequence[Argument]) -> Entry | None:
        """The entry for a command line of which only these arguments have arrived; None: it is not known."""
        if not args:
            return None
        name = args[0]
        entry = self.spelled.get(name) if isinstance(name, bytes) else None
        if entry is not None:
            return entry
        try:
            return self._search(args)
        except CommandError:
            return None


def _entry(
    spec: CommandSpec,
    handler: Handler,
    openers: Mapping[int, Opener],
    several: Several | None,
) -> Entry:
    keyed = handler if isinstance(handler, Keyed) else None
    return Entry(
        spec,
        handler,
        openers,
        run=keyed.run if keyed is not None else None,
        changes=keyed is not None and keyed.changes,
        batch=keyed.batch if keyed is not None else None,
        several=several,
        brief=spec.name in BRIEF,
        needs_auth="no_auth" not in spec.flags,
        fewest=abs(spec.arity),
        most=spec.arity if spec.arity >= 0 else sys.maxsize,
    )


def unknown_command(args: Sequence[Argument]) -> CommandError:
    """Redis' text for a command that does not exist."""
    given = "".join(f"'{shown(argument)}' " for argument in args[1:ARGUMENTS_SHOWN])
    return CommandError("ERR", f"unknown command '{shown(args[0])}', with args beginning with: {given}")


def unknown_subcommand(container: str, name: Argument) -> CommandError:
    """Redis' text for a subcommand that does not exist."""
    return CommandError("ERR", f"unknown subcommand '{shown(name)}'. Try {container} HELP.")

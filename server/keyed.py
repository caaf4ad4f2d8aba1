"""Commands on plain keys: functions over one transaction, so that EXEC can run many of them in one.

Such a command gets the keys, its arguments (the name first) and the protocol, and answers with bytes. It is
run by `Reading` or `Changing`, which are handlers like any other, each in a transaction of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pionkv.storage.keyspace.access import KeyReader, KeyWriter

from .arguments import Argument

if TYPE_CHECKING:
    from .clients import Client

Read: TypeAlias = Callable[[KeyReader, Sequence[Argument], int], bytes]
Change: TypeAlias = Callable[[KeyWriter, Sequence[Argument], int], bytes]


class Keyed(ABC):
    """A handler that works on plain keys alone."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, client: Client, args: Sequence[Argument]) -> bytes:
        """Run the command in a transaction of its own."""

    @abstractmethod
    def within(self, keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
        """Run the command in a transaction that others share."""


class Reading(Keyed):
    """A command that only reads."""

    __slots__ = ("_run",)

    def __init__(self, run: Read) -> None:
        self._run = run

    def __call__(self, client: Client, args: Sequence[Argument]) -> bytes:
        """Run the command on a snapshot."""
        run, protocol = self._run, client.protocol
        keyspace = client.service.store.keyspace
        return keyspace.read(lambda keys: run(keys, args, protocol), note_use=not client.no_touch)

    def within(self, keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
        """Run the command in a transaction that others share."""
        return self._run(keys, args, protocol)


class Changing(Keyed):
    """A command that may change something."""

    __slots__ = ("_run",)

    def __init__(self, run: Change) -> None:
        self._run = run

    def __call__(self, client: Client, args: Sequence[Argument]) -> bytes:
        """Run the command in a write transaction."""
        run, protocol = self._run, client.protocol
        return client.service.store.keyspace.change(lambda keys: run(keys, args, protocol))

    def within(self, keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
        """Run the command in a transaction that others share."""
        return self._run(keys, args, protocol)


def handlers(reads: Mapping[str, Read], changes: Mapping[str, Change]) -> dict[str, Keyed]:
    """The handlers of a family."""
    found: dict[str, Keyed] = {name: Reading(run) for name, run in reads.items()}
    return found | {name: Changing(run) for name, run in changes.items()}

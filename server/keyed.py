"""Commands on plain keys: functions over one transaction, so that EXEC can run many of them in one.

Such a command gets the keys, its arguments (the name first) and the protocol, and answers with bytes. It is
run by `Reading` or `Changing`, which are handlers like any other, each in a transaction of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from pionkv.protocol import reply
from pionkv.storage.keyspace.access import KeyReader, KeyWriter

from .arguments import Argument

if TYPE_CHECKING:
    from .clients import Client
    from .dispatch import Slow


class Parts(list[bytes | memoryview]):
    """A reply in pieces, one after the other."""


Answer: TypeAlias = bytes | Parts
Read: TypeAlias = Callable[[KeyReader, Sequence[Argument], int], Answer]
Change: TypeAlias = Callable[[KeyWriter, Sequence[Argument], int], Answer]
Batch: TypeAlias = "Callable[[KeyWriter, Sequence[list[bytes]], int], Sequence[bytes] | None]"
"""Runs several lines of a command in one step; None: nothing was done, they are to be run one by one."""


class Keyed(ABC):
    """A handler that works on plain keys alone.

    Attributes:
        run: Runs the command in a transaction that others share.
        batch: Runs several lines of it there in one step.
    """

    __slots__ = ("batch", "run")
    changes: ClassVar[bool]
    """Whether it may change something."""

    def __init__(self, run: Change, batch: Batch | None = None) -> None:
        self.run = run
        self.batch = batch

    @abstractmethod
    def __call__(self, client: Client, args: Sequence[Argument]) -> bytes | Slow:
        """Run the command in a transaction of its own."""


class Reading(Keyed):
    """A command that only reads."""

    __slots__ = ("_read",)
    changes = False

    def __init__(self, run: Read) -> None:
        super().__init__(run)
        self._read = run

    def __call__(self, client: Client, args: Sequence[Argument]) -> bytes | Slow:
        """Run the command on a snapshot."""
        run, protocol = self._read, client.protocol
        keyspace = client.service.store.keyspace
        answer = keyspace.read(
            lambda keys: run(keys, args, protocol), note_use=not client.no_touch, listing=client.listing
        )
        return answer if isinstance(answer, bytes) else send(client, answer)


class Changing(Keyed):
    """A command that may change something."""

    __slots__ = ()
    changes = True

    def __call__(self, client: Client, args: Sequence[Argument]) -> bytes | Slow:
        """Run the command in a write transaction."""
        run, protocol = self.run, client.protocol
        answer = client.service.store.keyspace.change(lambda keys: run(keys, args, protocol))
        return answer if isinstance(answer, bytes) else send(client, answer)


def handlers(
    reads: Mapping[str, Read],
    changes: Mapping[str, Change],
    batches: Mapping[str, Batch] = MappingProxyType({}),
) -> dict[str, Keyed]:
    """The handlers of a family."""
    found: dict[str, Keyed] = {name: Reading(run) for name, run in reads.items()}
    return found | {name: Changing(run, batches.get(name)) for name, run in changes.items()}


def values(found: Sequence[bytes | memoryview | None], protocol: int) -> Answer:
    """Strings as an array, null for what is not there."""
    return joined([reply.array_header(len(found)), *(value(one, protocol) for one in found)])


def value(found: bytes | memoryview | None, protocol: int) -> Answer:
    """A string, or null."""
    if found is None:
        return reply.null(protocol)
    if isinstance(found, bytes):
        return reply.bulk(found)
    return Parts((reply.bulk_header(found.nbytes), found, reply.CRLF))


def joined(answers: Sequence[Answer]) -> Answer:
    """Several pieces of a reply as one."""
    small = [answer for answer in answers if isinstance(answer, bytes)]
    if len(small) == len(answers):
        return b"".join(small)
    return Parts(part for answer in answers for part in (answer if isinstance(answer, Parts) else (answer,)))


async def send(client: Client, parts: Parts) -> None:
    """Send a reply with large strings, as the peer takes it."""
    with client.out.reply_in_parts():
        await client.out.send(map(memoryview, parts))

"""MULTI: what a client has gathered, what it watches, and how EXEC runs it.

Commands on plain keys run in one transaction of the catalog, so that nobody, in any process, sees a part of
them. What does not touch stored data (PING, CLIENT, INFO, PUBLISH ...) runs right after it, in its place
among the replies. Commands of the store itself have transactions of their own and are refused.

As in Redis, a command that fails does not undo the others. When room runs out, though, nothing is done at
all.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import NoSpace, OutOfBudget, StorageError
from pionkv.storage.keyspace.access import KeyReader, KeyWriter

from .admission import check_permission
from .arguments import Argument
from .errors import describe
from .keyed import Answer, Keyed, joined, send
from .receiving import Receiver

if TYPE_CHECKING:
    from .clients import Client
    from .dispatch import Entry, Slow

QUEUED = reply.simple("QUEUED")
AT_ONCE = frozenset({"MULTI", "EXEC", "DISCARD", "WATCH", "QUIT", "RESET"})
"""Commands that are run, not gathered, after MULTI."""
NEVER = frozenset({"SUBSCRIBE", "UNSUBSCRIBE", "PSUBSCRIBE", "PUNSUBSCRIBE", "MONITOR", "SHUTDOWN"})
"""Commands with more than one reply, or none."""
HARMLESS_GROUPS = frozenset({"connection", "server", "pubsub", "transactions"})
NOT_ALLOWED = CommandError("ERR", "Command not allowed inside a transaction")
SPOILED = CommandError("EXECABORT", "Transaction discarded because of previous errors.")

Stamp: TypeAlias = tuple[int, int] | None
"""Which state of a key was seen; None: there was none."""


@dataclass(slots=True)
class Transaction:
    """The state of one client between MULTI and EXEC, and what it watches.

    Attributes:
        open: MULTI was called.
        spoiled: A command could not be gathered, so EXEC will refuse.
        queue: Commands and their arguments.
        size: Bytes of those arguments.
        watched: State of each watched key when it was first watched.
    """

    open: bool = False
    spoiled: bool = False
    queue: list[tuple[Entry, Sequence[Argument]]] = field(default_factory=list)
    size: int = 0
    watched: dict[bytes, Stamp] = field(default_factory=dict)

    def gather(self, entry: Entry, args: Sequence[Argument], limit: int) -> bytes:
        """Keep a command for EXEC.

        Raises:
            CommandError: It cannot be part of a transaction, or the transaction becomes larger than `limit`
            bytes.
        """
        harmless = entry.spec.group in HARMLESS_GROUPS and entry.spec.name not in NEVER
        if not (isinstance(entry.handler, Keyed) or harmless):
            raise NOT_ALLOWED.again()
        self.size += sum(word.length if isinstance(word, Receiver) else len(word) for word in args)
        if self.size > limit:
            raise CommandError("ERR", f"transaction of {self.size} bytes is too large (limit {limit})")
        self.queue.append((entry, args))
        return QUEUED

    def close(self) -> None:
        """Back to the state before MULTI and WATCH."""
        self.open = self.spoiled = False
        self.size = 0
        self.queue, self.watched = [], {}


def stamps(keys: KeyReader, names: Iterable[bytes]) -> dict[bytes, Stamp]:
    """The states of keys as they are now."""
    found = {name: keys.find(name) for name in names}
    return {name: (entry.id, entry.version) if entry else None for name, entry in found.items()}


def execute(client: Client) -> bytes | Slow:
    """Run what was gathered; the reply to EXEC.

    Raises:
        CommandError: A command could not be gathered, or room ran out.
    """
    transaction, protocol = client.transaction, client.protocol
    queue, watched, spoiled = transaction.queue, transaction.watched, transaction.spoiled
    transaction.close()
    if spoiled:
        raise SPOILED.again()
    if client.user.restricted:
        for entry, args in queue:
            check_permission(client, entry, args, entered=True)

    def run(keys: KeyWriter) -> list[Answer | None] | None:
        if client.no_touch:
            keys.uses = None
        if stamps(keys, watched) != watched:
            return None
        keys.listing = client.listing
        return [_within(keys, entry, args, protocol) for entry, args in queue]

    try:
        replies = client.service.store.keyspace.change(run)
    except (OutOfBudget, NoSpace) as error:
        code, text = describe(error, "EXEC")
        raise CommandError("EXECABORT", f"Transaction discarded because of: {code} {text}") from error
    if replies is None:
        return reply.null_array(protocol)
    done = [
        _afterwards(client, entry, args) if answer is None else answer
        for answer, (entry, args) in zip(replies, queue, strict=True)
    ]
    if any(inspect.iscoroutine(answer) for answer in done):
        return _finish(client, done)
    return _answer(client, cast("list[Answer]", done))


async def _finish(client: Client, answers: Sequence[Answer | Slow]) -> bytes | None:
    """Answer once those that take their time are there."""
    done: list[Answer] = []
    for answer in answers:
        try:
            done.append((await answer or b"") if inspect.iscoroutine(answer) else cast(Answer, answer))
        except (CommandError, StorageError) as error:
            done.append(reply.error(*describe(error, "EXEC")))
    found = _answer(client, done)
    return found if isinstance(found, bytes) else await found


def _answer(client: Client, done: Sequence[Answer]) -> bytes | Slow:
    answer = joined([reply.array_header(len(done)), *done])
    return answer if isinstance(answer, bytes) else send(client, answer)


def _within(keys: KeyWriter, entry: Entry, args: Sequence[Argument], protocol: int) -> Answer | None:
    """Run a command on keys; None for any other."""
    handler = entry.handler
    if not isinstance(handler, Keyed):
        return None
    try:
        return handler.run(keys, args, protocol)
    except (OutOfBudget, NoSpace):
        raise
    except (CommandError, StorageError) as error:
        return reply.error(*describe(error, entry.spec.name))


def _afterwards(client: Client, entry: Entry, args: Sequence[Argument]) -> bytes | Slow:
    """Run a command that does not touch stored data."""
    try:
        return entry.handler(client, args)
    except (CommandError, StorageError) as error:
        return reply.error(*describe(error, entry.spec.name))

"""Commands on plain keys that arrive together run together, in one transaction of the catalog.

A transaction costs as much as dozens of small commands do. So a connection gathers the commands of a
pipeline: reads get one snapshot, and changes wait for the end of the event loop's turn, where those of all
connections become one commit. Nobody can tell: each command succeeds or fails by itself, is answered when it
is committed, and sees those before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from pionkv.protocol.errors import CommandError
from pionkv.storage import Store
from pionkv.storage.errors import PageCorrupt, PageGone, StorageError
from pionkv.storage.keyspace.access import KeyReader, KeyWriter
from pionkv.storage.keyspace.space import Keyspace

from .keyed import Answer, Change
from .runs import Run

if TYPE_CHECKING:
    from .arguments import Argument
    from .clients import Client
    from .dispatch import Entry

MOST_CALLS = 512
"""A connection gathers about so many commands; a commit of several connections begins with as many."""

LINES_AT_ONCE = 64
"""So many lines of one command are run in one step; what they answer is small."""

ANSWER_BYTES = 1 << 17
"""With so many bytes of answers a run ends early: a peer that does not read shall not fill the memory."""


class Calls(NamedTuple):
    """Commands on plain keys that a client has gathered, in its order.

    Attributes:
        client: The client.
        runs: The commands.
        changes: Whether one of them may change something.
        number: How many they are.
    """

    client: Client
    runs: Sequence[Run]
    changes: bool
    number: int


class Results(NamedTuple):
    """What came of the first calls of a client.

    Attributes:
        answers: One for each.
        times: On the clock, nanoseconds: when the first was begun, and when each of them was done.
    """

    answers: list[Answer | Exception]
    times: list[int]


class Member(Protocol):
    """A connection with calls to be run."""

    def ready_calls(self) -> Calls:
        """The calls that can be answered now."""

    def take_answers(self, results: Results, before: int) -> None:
        """Answer the first of the calls, which were run; none or some of them may be left.

        `before` is what `Store.commits` was before.
        """


def run(keyspace: Keyspace, batch: Sequence[Calls]) -> list[Results]:
    """Run calls in one transaction; when that fails, each in one of its own.

    Returns:
        As many as the batch has, for all of the calls; or, when the answers are large, for the first of
        them, at least one.
    """
    began = perf_counter_ns()
    if not any([calls.runs for calls in batch]):
        return [Results([], [began]) for _ in batch]
    try:
        if any([calls.changes for calls in batch]):
            return keyspace.change(lambda keys: _run_within(keys, batch))
        return keyspace.read(lambda keys: _run_within(keys, batch))
    except Exception as error:
        if sum(calls.number for calls in batch) == 1:
            times = [began, perf_counter_ns()]
            return [Results([error], times) if calls.runs else Results([], times) for calls in batch]
    return _run_one_by_one(keyspace, batch)


def _run_one_by_one(keyspace: Keyspace, batch: Sequence[Calls]) -> list[Results]:
    found = [Results([], [perf_counter_ns()]) for _ in batch]
    for (client, runs, *_), results in zip(batch, found, strict=True):
        for entry, line in ((entry, line) for entry, lines in runs for line in lines):
            ((answers, times),) = run(keyspace, (Calls(client, ((entry, (line,)),), entry.changes, 1),))
            results.answers.extend(answers)
            results.times.append(times[-1])
            if _room_for(answers[0]) >= ANSWER_BYTES:
                return found
    return found


def _room_for(answer: Answer | Exception) -> int:
    """Bytes of an answer; one in parts ends a run, whatever its size."""
    if isinstance(answer, list):
        return ANSWER_BYTES
    return len(answer) if isinstance(answer, bytes) else 0


def _run_within(keys: KeyReader, batch: Sequence[Calls]) -> list[Results]:
    """Run calls in a transaction. Raises what a command raises after it has changed something."""
    found: list[Results] = []
    uses, room = keys.uses, ANSWER_BYTES
    for client, runs, *_ in batch:
        answers: list[Answer | Exception] = []
        times = [perf_counter_ns()]
        found.append(Results(answers, times))
        if room > 0:
            keys.uses = None if client.no_touch else uses
            keys.listing = client.listing
            room = _run_of_client(keys, client.protocol, runs, (answers, times), room)
    return found


def _run_of_client(
    keys: KeyReader,
    protocol: int,
    runs: Sequence[Run],
    results: tuple[list[Answer | Exception], list[int]],
    room: int,
) -> int:
    """Run calls of one client; how much room is left."""
    answers, times = results
    # Only reads are run on a snapshot.
    writer: KeyWriter = keys  # type: ignore[assignment]
    for entry, lines in runs:
        for start in range(0, len(lines), LINES_AT_ONCE):
            part = lines[start : start + LINES_AT_ONCE]
            found = _run_at_once(writer, protocol, entry, part) if len(part) > 1 else None
            if found is None:
                room = _run_each(writer, protocol, (entry, part), results, room)
            else:
                answers += found
                times += [perf_counter_ns()] * len(found)
                room -= sum(map(len, found))
            if room <= 0:
                return room
    return room


def _run_at_once(
    keys: KeyWriter, protocol: int, entry: Entry, lines: Sequence[Sequence[Argument]]
) -> Sequence[bytes] | None:
    """Run lines of a command that changes something in one step; None when nothing was done."""
    if entry.batch is None:
        return None
    before = keys.writer.changes
    try:
        return entry.batch(keys, lines, protocol)  # type: ignore[arg-type]
    except (CommandError, StorageError):
        if keys.writer.changes != before:
            raise
        return None


def _run_each(
    keys: KeyWriter,
    protocol: int,
    run: Run,
    results: tuple[list[Answer | Exception], list[int]],
    room: int,
) -> int:
    """Run lines one after the other; how much room is left."""
    # Written with an eye on speed: this loop is what a small command costs.
    entry, lines = run
    answers, times = results
    command = cast("Change", entry.run)
    writer = keys.writer if isinstance(keys, KeyWriter) else None
    before = 0
    for args in lines:
        if writer is not None:
            before = writer.changes
        try:
            answer: Answer | Exception = command(keys, args, protocol)
        except (PageGone, PageCorrupt):
            raise
        except (CommandError, StorageError) as error:
            if writer is not None and writer.changes != before:
                raise
            answer = error
        answers.append(answer)
        times.append(perf_counter_ns())
        room -= len(answer) if type(answer) is bytes else _room_for(answer)
        if room <= 0:
            break
    return room


class Group:
    """Runs the calls of all connections that have some, once per turn of the event loop.

    Args:
        loop: The event loop.
        store: The store.
        flush: Sends the replies that are ready.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store, flush: Callable[[], None]) -> None:
        self._loop = loop
        self._store = store
        self._flush = flush
        self._members: list[Member] = []

    def add(self, member: Member) -> None:
        """Run the member's calls, those it will have then, at the end of this turn. Once per turn."""
        if not self._members:
            self._loop.call_soon(self._run)
        self._members.append(member)

    def _run(self) -> None:
        # Who only reads does not wait for the commit.
        self._flush()
        waiting, self._members = self._members, []
        members: list[Member] = []
        batch: list[Calls] = []
        count = 0
        for member in waiting:
            theirs = member.ready_calls()
            members.append(member)
            batch.append(theirs)
            count += theirs.number
            if count >= MOST_CALLS:
                self._run_batch(members, batch)
                members, batch, count = [], [], 0
        self._run_batch(members, batch)
        self._flush()

    def _run_batch(self, members: Sequence[Member], batch: Sequence[Calls]) -> None:
        before = self._store.commits
        for member, results in zip(members, run(self._store.keyspace, batch), strict=True):
            member.take_answers(results, before)

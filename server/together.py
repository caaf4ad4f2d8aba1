"""Commands on plain keys that arrive together run together, in one transaction of the catalog.

A transaction costs as much as dozens of small commands do. So a connection gathers the commands of a
pipeline: reads get one snapshot, and changes wait for the end of the event loop's turn, where those of all
connections become one commit. Nobody can tell: each command succeeds or fails by itself, is answered when it
is committed, and sees those before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, cast

from pionkv.protocol.errors import CommandError
from pionkv.storage import Store
from pionkv.storage.errors import PageCorrupt, PageGone, StorageError
from pionkv.storage.keyspace.access import KeyReader, KeyWriter
from pionkv.storage.keyspace.space import Keyspace

from .arguments import Argument
from .keyed import Answer, Keyed

if TYPE_CHECKING:
    from .clients import Client
    from .dispatch import Entry

MOST_CALLS = 512
"""A connection gathers so many commands; a commit of several connections begins with about so many."""

ANSWER_BYTES = 1 << 17
"""With so many bytes of answers a run ends early: a peer that does not read shall not fill the memory."""


class Call(NamedTuple):
    """A command on plain keys that waits to be run."""

    client: Client
    entry: Entry
    handler: Keyed
    args: Sequence[Argument]


Result: TypeAlias = tuple[Answer | Exception, int]
"""What a call is answered with, and the nanoseconds it took."""


class Member(Protocol):
    """A connection with calls to be run."""

    def ready_calls(self) -> Sequence[Call]:
        """The calls that can be answered now."""

    def take_answers(self, results: Sequence[Result], before: int) -> None:
        """Answer the first of the calls, which were run; none or some of them may be left.

        `before` is what `Store.commits` was before.
        """


def run(keyspace: Keyspace, calls: Sequence[Call]) -> list[Result]:
    """Run calls in one transaction; when that fails, each in one of its own.

    Returns:
        A result for each of the calls; or for the first of them, at least one, when the answers are large.
    """
    try:
        if any(call.handler.changes for call in calls):
            return keyspace.change(lambda keys: _run_within(keys, calls))
        return keyspace.read(lambda keys: _run_within(keys, calls))
    except Exception as error:
        if len(calls) == 1:
            return [(error, 0)]
    results: list[Result] = []
    for call in calls:
        results += run(keyspace, (call,))
        answer, _ = results[-1]
        if _room_for(answer) >= ANSWER_BYTES:
            break
    return results


def _room_for(answer: Answer | Exception) -> int:
    """Bytes of an answer; one in parts ends a run, whatever its size."""
    if isinstance(answer, list):
        return ANSWER_BYTES
    return len(answer) if isinstance(answer, bytes) else 0


def _run_within(keys: KeyReader, calls: Sequence[Call]) -> list[Result]:
    """Run calls in a transaction. Raises what a command raises after it has changed something."""
    results: list[Result] = []
    uses, room = keys.uses, ANSWER_BYTES
    for client, _, handler, args in calls:
        before, began = keys.changes, perf_counter_ns()
        keys.uses = None if client.no_touch else uses
        keys.sees = client.user.sees if client.user.restricted else None
        try:
            # Only reads are run on a snapshot.
            answer: Answer | Exception = handler.within(cast(KeyWriter, keys), args, client.protocol)
        except (PageGone, PageCorrupt):
            raise
        except (CommandError, StorageError) as error:
            if keys.changes != before:
                raise
            answer = error
        results.append((answer, perf_counter_ns() - began))
        room -= _room_for(answer)
        if room <= 0:
            break
    return results


class Group:
    """Runs the calls of all connections that have some, once per turn of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store) -> None:
        self._loop = loop
        self._store = store
        self._members: list[Member] = []

    def add(self, member: Member) -> None:
        """Run the member's calls, those it will have then, at the end of this turn. Once per turn."""
        if not self._members:
            self._loop.call_soon(self._run)
        self._members.append(member)

    def _run(self) -> None:
        members, self._members = self._members, []
        batch: list[tuple[Member, int]] = []
        calls: list[Call] = []
        for member in members:
            theirs = member.ready_calls()
            batch.append((member, len(theirs)))
            calls += theirs
            if len(calls) >= MOST_CALLS:
                self._run_batch(batch, calls)
                batch, calls = [], []
        self._run_batch(batch, calls)

    def _run_batch(self, batch: Sequence[tuple[Member, int]], calls: Sequence[Call]) -> None:
        before = self._store.commits
        results = run(self._store.keyspace, calls) if calls else []
        done = 0
        for member, count in batch:
            member.take_answers(results[done : done + count], before)
            done += count

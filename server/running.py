"""The half of a connection that runs commands and answers them, in their order.

Three ways lead to a reply. Commands on plain keys are gathered and run together (see together.py). Others
that are answered at once and leave the connection as it was, such as PING, are run one after the other. For
both, what has to be looked at before and after is looked at once for a whole run (see runs.py). Everything
else is run alone; a slow command is left to a task, and the connection waits for it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter_ns
from typing import ClassVar, NamedTuple, cast

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.protocol.events import BulkStart
from pionkv.storage import StorageError

from . import eager
from .acl import permit
from .admission import admit
from .arguments import Argument
from .clients import Client, ReplyMode
from .disk import Gate
from .dispatch import Dispatcher, Entry, Slow
from .errors import describe
from .keyed import Answer, send
from .logs import logger
from .output import Output
from .receiving import Receiver
from .runs import Run, by_name, entries_of, split
from .service import Service
from .together import MOST_CALLS, Calls, Results, run
from .transaction import AT_ONCE


class Taken(NamedTuple):
    """A command that was let in, or the error why not."""

    words: Sequence[Argument]
    entry: Entry | None
    error: CommandError | None


class LetIn(NamedTuple):
    """Commands that were let in and are answered at once, when it is their turn."""

    entry: Entry
    lines: Sequence[list[bytes]]


class Runner(ABC):
    """Runs the commands of one client.

    Attributes:
        client: Whose commands they are.
        output_type: What writes the replies.
    """

    output_type: ClassVar[type[Output]] = Output

    def __init__(self, service: Service, dispatcher: Dispatcher) -> None:
        self._service = service
        self._dispatcher = dispatcher
        self._out = self.output_type(service.loop, service.metrics, service.departures)
        self._gate = Gate(service, self._out, self._go_on, self.abort)
        self._receivers: dict[int, Receiver] = {}
        """Large arguments of the command that is arriving or running, by position."""
        self._filling: Receiver | None = None
        self._task: asyncio.Task[bytes | None] | None = None
        self._calls: list[Run] = []
        """Commands on plain keys that were gathered and not yet run."""
        self._changes = False
        """One of them may change something."""
        self._gathered = 0
        """How many they are."""
        self._joined = False
        """They are run at the end of this turn, with those of others."""
        self._held: Taken | LetIn | BulkStart | None = None
        """What has to wait until they are answered."""
        self._input_over = False
        self.client = Client(
            service.next_client_id(), service, self._out, service.clock(), service.users.default
        )

    @abstractmethod
    def _advance(self) -> None:
        """Go on with what waits to be run."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once; unsent replies are lost."""

    @property
    def _waits(self) -> bool:
        """Nothing more is to be run now: a slow command is, or replies wait for the disk."""
        return self._task is not None or self._out.held

    def _go_on(self) -> None:
        """Replies wait for the disk no longer."""
        if self._task is None:
            self._advance()

    # Commands that arrived together

    def _run_batch(self, commands: list[list[bytes]], *, alike: bool) -> int:
        """Run commands until one has to wait; how many were taken. `alike`: see `RequestParser.alike`."""
        find, taken, plain = self._dispatcher.spelled.get, 0, None
        for name, lines in ((commands[0][0], commands),) if alike else by_name(commands):
            if plain is None:
                plain = self._is_plain
            entry = find(name) if plain else None
            longest = len(lines[0]) if alike else max(map(len, lines))
            shortest = longest if alike else min(map(len, lines))
            if entry is None or not entry.fewest <= shortest <= longest <= entry.most:
                taken, plain = taken + self._take_each(lines), None
            elif not (entry.run or entry.brief):
                taken, plain = taken + self._run_each(entry, lines), None
            elif not self._lets_in(entry, lines):
                taken, plain = taken + self._take_each(lines), None
            else:
                taken += len(lines)
                if entry.several and not self._calls and self._run_several(entry, lines, longest):
                    continue
                if entry.run is not None:
                    self._gather(entry, lines)
                elif self._calls and not self._settle():
                    self._held = LetIn(entry, lines)
                else:
                    self._run_brief(entry, lines)
            # After the last of them whoever asks finds out.
            if taken == len(commands) or self._must_wait:
                break
        return taken

    def _lets_in(self, entry: Entry, lines: Sequence[list[bytes]]) -> bool:
        """Whether the client may run all of these lines of a command as they are; they are then counted."""
        client = self.client
        if client.user.restricted and not permit.let_in(client.user, entry.spec, lines):
            return False
        count = len(lines)
        client.commands += count
        client.last_command = entry.spec.name
        self._service.metrics.commands += count
        return True

    def _run_each(self, entry: Entry, lines: Sequence[list[bytes]]) -> int:
        """Run lines of a command until one has to wait; how many were taken."""
        for taken, words in enumerate(lines, 1):
            if not self._lets_in(entry, (words,)):
                self._take(words)
            elif self._calls and not self._settle():
                self._held = Taken(words, entry, None)
            else:
                self._run(words, entry, None)
            if taken == len(lines) or self._must_wait:
                return taken
            if not self._is_plain:
                return taken + self._take_each(lines[taken:])
        return len(lines)

    def _take_each(self, lines: Sequence[list[bytes]]) -> int:
        """Take commands until one has to wait; how many were taken."""
        for taken, words in enumerate(lines, 1):
            self._take(words)
            if self._must_wait:
                return taken
        return len(lines)

    @property
    def _must_wait(self) -> bool:
        """No further command may be taken now."""
        out = self._out
        return (
            self._task is not None or out.held or out.blocked or self._held is not None or self.client.closing
        )

    @property
    def _is_plain(self) -> bool:
        """Nothing about this client asks for a look at each command."""
        client = self.client
        return (
            client.authenticated
            and client.reply_mode is ReplyMode.ON
            and not client.transaction.open
            and not (client.channels or client.patterns)
            and not self._receivers
            and not self._service.monitors
        )

    def _gather(self, entry: Entry, lines: Sequence[Sequence[Argument]]) -> None:
        """Keep commands on plain keys until those that come now have been looked at."""
        self._calls.append((entry, lines))
        self._gathered += len(lines)
        self._changes = self._changes or entry.changes
        if self._gathered >= MOST_CALLS:
            self._settle()

    def _run_several(self, entry: Entry, lines: Sequence[list[bytes]], longest: int) -> bool:
        """Answer lines of a command in one step; False when they are to be run one by one."""
        assert entry.several is not None
        began = perf_counter_ns()
        try:
            replies = entry.several(self.client, lines, longest)
        except (CommandError, StorageError):
            return False
        if replies is None:
            return False
        self._out.write(replies)
        self._service.timing.several_took(self.client, entry, lines, perf_counter_ns() - began)
        return True

    def _run_brief(self, entry: Entry, lines: Sequence[list[bytes]]) -> None:
        """Run commands that are answered at once; what follows one that is not is held."""
        client, service, clock = self.client, self._service, perf_counter_ns
        before, began = service.store.commits, clock()
        # Written with an eye on speed: this loop is what a small command costs.
        answers, times = [], [began]
        slow: Slow | None = None
        for words in lines:
            try:
                result = entry.handler(client, words)
            except Exception as error:
                result = self._error(entry, error)
            if type(result) is not bytes:
                slow = cast("Slow", result)
                break
            answers.append(result)
            times.append(clock())
        done = len(answers)
        if done:
            self._out.write(b"".join(answers))
            service.timing.took(client, ((entry, lines[:done]),), times)
        if slow is not None:
            if done + 1 < len(lines):
                self._held = LetIn(entry, lines[done + 1 :])
            self._begin(entry, lines[done], slow, times[-1], before)

    # Commands on plain keys, which are gathered

    def _take(self, words: Sequence[Argument]) -> None:
        """Let a command in; gather it if it is on plain keys, else run it after those gathered."""
        client = self.client
        client.commands += 1
        self._service.metrics.commands += 1
        entry: Entry | None = None
        refusal: CommandError | None = None
        try:
            entry = self._dispatcher.find(words)
            admit(client, entry, words)
        except CommandError as error:
            refusal = error
        else:
            client.last_command = entry.spec.name
            if (
                entry.run is not None
                and not (client.transaction.open or self._receivers)
                and client.reply_mode is ReplyMode.ON
            ):
                self._gather(entry, (words,))
                return
        if self._calls and not self._settle():
            self._held = Taken(words, entry, refusal)
        else:
            self._run(words, entry, refusal)

    def _join(self) -> bool:
        """See that gathered calls are run: reads now, changes with those of others. False: they block."""
        if not self._calls:
            return True
        if self._input_over or self._service.stopping:
            return self._settle()
        if self._joined:
            return True
        if not self._changes:
            return self._settle()
        self._joined = True
        self._service.group.add(self)
        return True

    def ready_calls(self) -> Calls:
        """The gathered calls, unless they cannot be answered now."""
        if self._task is not None or self._out.held or self._out.blocked:
            return Calls(self.client, (), self._changes, 0)
        return Calls(self.client, self._calls, self._changes, self._gathered)

    def take_answers(self, results: Results, before: int) -> None:
        """The gathered calls have been run, the first of them at least; `before` as for `Gate.close`."""
        self._joined = False
        self._answer(results, before)
        if not self._waits:
            self._advance()

    def _settle(self) -> bool:
        """Run what was gathered, now; False when a large answer or a peer that does not read delays it."""
        store = self._service.store
        while self._calls and not self._waits and not self._out.blocked:
            before = store.commits
            calls = Calls(self.client, self._calls, self._changes, self._gathered)
            (results,) = run(store.keyspace, (calls,))
            self._answer(results, before)
        return not (self._calls or self._waits)

    def _answer(self, results: Results, before: int) -> None:
        """Answer the first of the gathered calls."""
        self._gate.close(before)
        answers, times = results
        if not answers:
            return
        if len(answers) == self._gathered:
            done, self._calls, self._changes = self._calls, [], False
        else:
            done, self._calls = split(self._calls, len(answers))
        self._gathered -= len(answers)
        # An answer in parts is the last one of a run.
        parts = answers.pop() if isinstance(answers[-1], list) else None
        ran, last = split(done, len(answers)) if parts is not None else (done, [])
        try:
            text = b"".join(answers)  # type: ignore[arg-type]
        except TypeError:
            # Refusals are among them.
            shown = zip(entries_of(ran), answers, strict=True)
            text = b"".join([self._reply(entry, answer) for entry, answer in shown])
        self._out.write(text)
        if answers:
            done_at = times if parts is None else times[: len(answers) + 1]
            self._service.timing.took(self.client, ran, done_at)
        if isinstance(parts, list):
            ((entry, (args,)),) = last
            self._begin(entry, args, send(self.client, parts), times[-2])
        if self._task is not None:
            self._out.flush()

    def _reply(self, entry: Entry, answer: Answer | Exception) -> bytes:
        return answer if isinstance(answer, bytes) else self._error(entry, cast(Exception, answer))

    # One command

    def _run(self, words: Sequence[Argument], entry: Entry | None, refusal: CommandError | None) -> None:
        """Run one complete command; a slow one is left to a task, and this connection waits for it."""
        client, service = self.client, self._service
        began = perf_counter_ns()
        gathers = client.transaction.open and not (entry is not None and entry.spec.name in AT_ONCE)
        before = service.store.commits if service.disk is not None else 0
        try:
            if refusal is not None:
                raise refusal
            assert entry is not None
            if gathers:
                result: bytes | Slow = client.transaction.gather(entry, words, service.limits.command_bytes)
            else:
                result = entry.handler(client, words)
        except Exception as error:
            if gathers and client.transaction.open:
                client.transaction.spoiled = True
            self._fail(entry, error)
        else:
            if not isinstance(result, bytes):
                assert entry is not None
                self._begin(entry, words, result, began, before)
                return
            if service.disk is not None:
                self._gate.close(before)
            if result:
                self._out.write(result)
        if entry is not None:
            service.timing.one_took(client, entry, words, perf_counter_ns() - began)
        if self._receivers or client.reply_mode is not ReplyMode.ON:
            self._after_command()

    def _took(self, entry: Entry, words: Sequence[Argument], began: int) -> None:
        """A command that was begun then is over."""
        self._service.timing.one_took(self.client, entry, words, perf_counter_ns() - began)

    def _begin(
        self, entry: Entry, words: Sequence[Argument], slow: Slow, began: int, before: int | None = None
    ) -> None:
        try:
            begun = eager.begin(slow)
        except Exception as error:
            self._fail(entry, error)
        else:
            if not isinstance(begun, eager.Done):
                self._task = self._service.loop.create_task(begun)
                self._task.add_done_callback(lambda task: self._task_done(entry, words, began, before, task))
                return
            self._gate.close(self._service.store.commits if before is None else before)
            self._out.write(begun.value or b"")
        self._took(entry, words, began)
        self._after_command()

    def _task_done(
        self,
        entry: Entry,
        words: Sequence[Argument],
        began: int,
        before: int | None,
        task: asyncio.Task[bytes | None],
    ) -> None:
        self._task = None
        if before is not None and self._out.attached:
            self._gate.close(before)
        self._took(entry, words, began)
        if task.cancelled():
            self.abort()
        elif (error := task.exception()) is not None:
            self._fail(entry, error)
        elif (result := task.result()) is not None:
            self._out.write(result)
        self._after_command()
        self._advance()

    def _fail(self, entry: Entry | None, error: BaseException) -> None:
        """Answer an error; when a reply broke off in the middle, the connection cannot go on."""
        if not self._out.attached:
            return
        answer = self._error(entry, error)
        if self._out.unfinished:
            logger().warning("reply broke off", client=self.client.id, error=answer.decode().strip())
            self.abort()
        else:
            self._out.write(answer)

    def _error(self, entry: Entry | None, error: BaseException) -> bytes:
        """The reply to a command that failed, which is counted."""
        self._service.metrics.errors += 1
        if entry is not None:
            entry.failures += 1
        return reply.error(*describe(error, entry.spec.name if entry else ""))

    def _after_command(self) -> None:
        if self._receivers:
            # Who has sent so much waits for its reply alone: it leaves before what is tidied up.
            self._out.flush()
            self._close_receivers()
        if self.client.reply_mode is not ReplyMode.ON:
            self.client.after_command()

    def _close_receivers(self) -> None:
        for receiver in self._receivers.values():
            receiver.close()
        self._receivers.clear()
        self._filling = None

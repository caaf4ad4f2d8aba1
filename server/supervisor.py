"""The supervisor of several workers: binds the sockets once, starts the workers, keeps them running.

It serves nobody itself, and opens no store. A worker that ends is started again, at once the first time and
then after a growing pause. SIGTERM and SIGINT stop all workers gracefully, a second one hurries them; SIGHUP
replaces them one after the other while the others serve. If the supervisor is killed the workers end, too.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence

import uvloop

from . import control as channel
from . import logs
from .acl.users import Users, UsersError
from .config import Settings, changed
from .control import Control, Setup, texts_of
from .counters import Counters
from .listening import EXIT_FAILURE, ListenError, Listeners, announce
from .place import Place, ended
from .tls import TlsError, context_of

STEADY_SECONDS = 2.0
"""A worker that accepted connections for so long is started again at once."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0
KILL_SECONDS = 10.0
"""A worker that does not end within this beyond its time to stop is killed."""


class Slot:
    """The place of one worker, and the process that has it now.

    Attributes:
        number: Which worker.
        lives: Processes that had the place before.
        ready: Set while the process accepts connections.
        ready_at: Since when it does.
        expected: The process was asked to end.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.lives = 0
        self.quick_ends = 0
        self.ready = asyncio.Event()
        self.ready_at = math.inf
        self.expected = False
        self.process: Process | None = None
        self.control: Control | None = None

    def tell(self, kind: str, *items: object) -> None:
        """Send a message to the process, if there is one."""
        if self.control is not None:
            self.control.send(kind, *items)

    def pause(self, lived: float) -> float:
        """Seconds to wait before the next process, after one that accepted connections for so long."""
        self.quick_ends = 0 if lived >= STEADY_SECONDS or self.expected else self.quick_ends + 1
        if self.quick_ends <= 1:
            return 0.0
        return float(min(FIRST_PAUSE * 2 ** (self.quick_ends - 2), LONGEST_PAUSE))


class Supervisor:
    """Starts workers and keeps them running. Make it inside a running event loop."""

    def __init__(self, settings: Settings, listeners: Listeners, counters: Counters) -> None:
        self._settings = settings
        self._listeners = listeners
        self._counters = counters
        self._place = Place()
        self._slots = [Slot(number) for number in range(settings.workers)]
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failed = False
        self._serving = False
        self._lifeline, self._hold = os.pipe()
        self._rolling: asyncio.Task[None] | None = None

    async def run(self) -> bool:
        """Serve until told to stop; False when the workers could not be started at all."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.signalled)
        loop.add_signal_handler(signal.SIGHUP, self.replace_all)
        keepers = [asyncio.ensure_future(self._keep(slot)) for slot in self._slots]
        everyone = asyncio.ensure_future(self._all_ready())
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((everyone, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not self._stop.is_set():
            self._serving = True
            announce(self._settings, self._listeners.ports)
            await stopping
        everyone.cancel()
        self._listeners.close()
        await self._end(keepers)
        os.close(self._hold)
        os.close(self._lifeline)
        return not self._failed

    async def _all_ready(self) -> None:
        for slot in self._slots:
            await slot.ready.wait()

    def signalled(self) -> None:
        """A signal asks to stop; a second one to hurry."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def replace_all(self) -> None:
        """Begin to replace the workers one after the other, unless that is under way or would fail."""
        try:
            context_of(self._settings)
        except TlsError as error:
            logs.logger().error("workers not replaced", error=str(error))
            return
        if self._rolling is None or self._rolling.done():
            self._rolling = asyncio.ensure_future(self._replace_all())

    async def _replace_all(self) -> None:
        for slot in self._slots:
            slot.ready.clear()
            slot.expected = True
            self._listeners.give_up(slot.number)
            slot.tell(channel.STOP)
            await slot.ready.wait()
        logs.logger().info("every worker replaced")

    async def _end(self, keepers: Sequence[asyncio.Future[None]]) -> None:
        """Ask all workers to end, and see to it that they do."""
        if self._rolling is not None:
            self._rolling.cancel()
        ended = asyncio.gather(*keepers)
        for slot in self._slots:
            slot.tell(channel.STOP)
        hurry = asyncio.ensure_future(self._hurry.wait())
        patience = self._settings.stop_seconds + KILL_SECONDS
        await asyncio.wait((ended, hurry), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            for slot in self._slots:
                slot.tell(channel.HURRY)
            await asyncio.wait((ended,), timeout=KILL_SECONDS)
        if not ended.done():
            for slot in self._slots:
                if slot.process is not None:
                    logs.logger().error("worker does not end, killed", worker=slot.number)
                    slot.process.kill()
        await ended
        hurry.cancel()

    async def _keep(self, slot: Slot) -> None:
        """Have a process in a slot until the server stops."""
        while not self._stop.is_set():
            slot.ready_at = math.inf
            try:
                code = await self._live(slot)
            except OSError as error:
                logs.logger().error("worker cannot be started", worker=slot.number, error=str(error))
                code = EXIT_FAILURE
            if self._stop.is_set():
                return
            if not self._serving:
                self._failed = True
                self._stop.set()
                return
            await self._pause(slot, code, max(0.0, time.monotonic() - slot.ready_at))

    async def _pause(self, slot: Slot, code: int, lived: float) -> None:
        pause = slot.pause(lived)
        log = logs.logger().info if slot.expected else logs.logger().warning
        log("worker ended", worker=slot.number, status=code, seconds=round(lived, 1), restart_in=pause)
        slot.expected = False
        slot.lives += 1
        self._counters.write(slot.number, ended(self._counters.read(slot.number)))
        if pause:
            self._listeners.give_up(slot.number)
            stopping = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait((stopping,), timeout=pause)
            stopping.cancel()

    async def _live(self, slot: Slot) -> int:
        """Start a process in a slot and follow it until it ends; its exit status."""
        setup = self._setup(slot)
        ours, theirs = socket.socketpair()
        with theirs:
            handles = [setup.counters, *setup.tcp, *setup.tls, *setup.binary]
            handles += [] if setup.unix is None else [setup.unix]
            slot.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "pionkv.server.worker", str(theirs.fileno()), str(self._lifeline)),
                pass_fds=(theirs.fileno(), self._lifeline, *handles),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
            )
        slot.control = await Control.open(ours)
        slot.tell(channel.SETUP, setup.message())
        if self._stop.is_set():
            slot.tell(channel.STOP)
        await self._listen_to(slot, slot.control)
        slot.ready.clear()
        code = await slot.process.wait()
        slot.control.close()
        slot.control = slot.process = None
        return code

    async def _listen_to(self, slot: Slot, control: Control) -> None:
        """Hear a worker until its end of the channel is closed."""
        while (message := await control.receive()) is not None:
            if message[0] == channel.READY:
                slot.ready_at = time.monotonic()
                slot.ready.set()
            elif message[0] == channel.STOP:
                logs.logger().info("a client asks to stop", worker=slot.number)
                self._stop.set()
            else:
                if message[0] == channel.CONFIGURE:
                    self._settings = changed(self._settings, message[1])
                self._pass_on(slot, message)

    def _pass_on(self, sender: Slot, message: channel.Message) -> None:
        for slot in self._slots:
            # One that only starts gets it after its setup: it must not miss other settings.
            if slot is not sender and slot.control is not None:
                slot.control.relay(*message)

    def _setup(self, slot: Slot) -> Setup:
        unix = self._listeners.unix
        return Setup(
            settings=texts_of(self._settings),
            number=slot.number,
            lives=slot.lives,
            run_id=self._place.run_id,
            started_at=self._place.started_at,
            counters=self._counters.handle,
            tcp=[listener.fileno() for listener in self._listeners.tcp(slot.number)],
            tls=[listener.fileno() for listener in self._listeners.tls(slot.number)],
            binary=[listener.fileno() for listener in self._listeners.binary(slot.number)],
            unix=None if unix is None else unix.fileno(),
            file=None if self._settings.file is None else str(self._settings.file),
        )


async def _supervise(settings: Settings) -> bool:
    context_of(settings)
    Users(settings.data_dir, settings.password).insist(settings.password)
    listeners = Listeners(settings)
    counters = Counters.create(settings.workers)
    try:
        return await Supervisor(settings, listeners, counters).run()
    finally:
        listeners.close()
        counters.close()


def run(settings: Settings) -> int:
    """Serve with several workers until told to stop; the process's exit code."""
    logs.configure(settings.log_level, settings.log_format)
    try:
        fine = uvloop.run(_supervise(settings))
    except (ListenError, TlsError, UsersError, OSError) as error:
        print(f"pionkv: {error}", file=sys.stderr)
        return EXIT_FAILURE
    logs.logger().info("stopped")
    return 0 if fine else EXIT_FAILURE

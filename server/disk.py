"""Durability `always`: a change is answered when it is on the disk, and nobody else waits for that.

Commands commit as they do otherwise, and their replies are held back. One checkpoint at a time is made beside
the event loop; it covers everything committed before it began, so the changes of all connections that arrive
while one is made share the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from pionkv.storage import DirectoryError, Store

from .logs import logger
from .output import Output

if TYPE_CHECKING:
    from .service import Service


class Disk:
    """Brings commits to the disk.

    Args:
        loop: The event loop.
        threads: Where it waits for the disk.
        store: The store.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: Executor, store: Store) -> None:
        self._loop = loop
        self._threads = threads
        self._store = store
        self._reached = 0
        self._round: asyncio.Task[None] | None = None
        self._failure: DirectoryError | None = None

    async def settle(self) -> None:
        """Wait until everything committed so far is on the disk.

        Raises:
            NoSpace: The file system takes no more.
            DirectoryError: A sync has failed; from then on always.
        """
        wanted = self._store.commits
        while self._reached < wanted:
            if self._round is None or self._round.done():
                self._round = self._loop.create_task(self._bring())
            await asyncio.shield(self._round)

    async def _bring(self) -> None:
        if self._failure is not None:
            # The system forgets what it could not write: a second sync may succeed and tell nothing.
            raise self._failure
        begun = self._store.commits
        try:
            for step in self._store.sync_steps():
                await self._loop.run_in_executor(self._threads, step)
        except DirectoryError as error:
            self._failure = error
            raise
        self._reached = begun


class Gate:
    """Holds the replies of one connection back until what they answer is on the disk, if that is promised.

    Args:
        service: The server.
        out: Where the replies go.
        go_on: Called when they have been sent.
        give_up: Called when the disk refuses: whether the change outlives a crash nobody knows, so nobody is
            told that it does.
    """

    def __init__(
        self, service: Service, out: Output, go_on: Callable[[], None], give_up: Callable[[], None]
    ) -> None:
        self._service = service
        self._out = out
        self._go_on = go_on
        self._give_up = give_up

    def close(self, before: int) -> None:
        """Send nothing before everything committed since is on the disk.

        Args:
            before: `Store.commits` at the beginning of what is about to be answered.
        """
        disk = self._service.disk
        if disk is not None and self._service.store.commits != before and not self._out.held:
            self._out.held = True
            self._service.loop.create_task(disk.settle()).add_done_callback(self._open)

    def _open(self, settled: asyncio.Task[None]) -> None:
        self._out.held = False
        if settled.cancelled():
            self._give_up()
        elif (error := settled.exception()) is not None:
            logger().error("not acknowledged: the disk refuses", error=str(error))
            self._give_up()
        else:
            self._out.flush()
            self._go_on()

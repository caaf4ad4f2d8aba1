"""`AsyncPionPromptCache`: the prompt cache for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from .prompt_cache import PionPromptCache

if TYPE_CHECKING:
    from .prefill import Progress

T = TypeVar("T")


class _Cancelled(Exception):
    """Nobody waits for the call any more."""


class AsyncPionPromptCache:
    """`PionPromptCache` for asyncio: an event loop goes on while rows arrive, or a model runs.

    A model computes in a thread whatever calls it, so the calls run in one thread of this object's own, one
    after the other; several objects run beside each other. A call that is cancelled before it began does not
    begin. One that is running is ended: its connection is closed and never used again, and a prefill stops
    after the chunk it is at. Arrays of the caches are computed when they are returned: any thread may go on
    with them. Weights that mlx has not loaded yet (`lazy=True`) cannot be computed here.

    Example::

        async with AsyncPionPromptCache(model, tokenizer=tokenizer) as cache:
            caches = await cache.get_or_prefill(prefix_ids)

    Attributes:
        cache: The prompt cache; its `stats` may be read at any time.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """Prepare; the server is not asked before it is needed.

        Args:
            args: As `PionPromptCache`.
            options: As `PionPromptCache`.
        """
        self.cache = PionPromptCache(*args, **options)
        self._thread = ThreadPoolExecutor(1, "pionkv prompt cache")

    async def lookup(self, namespace: str) -> bool:
        """Whether the server holds the prefix; see `PionPromptCache.lookup`."""
        return await self._run(lambda _: self.cache.lookup(namespace))

    async def get_or_prefill(
        self,
        prefix_token_ids: Sequence[int],
        namespace: str | None = None,
        *,
        prompt_progress_callback: Progress | None = None,
    ) -> list[Any]:
        """Caches that hold exactly the prefix; see `PionPromptCache.get_or_prefill`.

        Args:
            prefix_token_ids: The whole prefix.
            namespace: Its name; None finds the longest stored prefix by its tokens.
            prompt_progress_callback: Called after each prefilled chunk, in the event loop's thread.
        """
        loop = asyncio.get_running_loop()

        def call(cancelled: threading.Event) -> list[Any]:
            def progress(done: int, total: int) -> None:
                if cancelled.is_set():
                    raise _Cancelled
                if prompt_progress_callback is not None:
                    loop.call_soon_threadsafe(prompt_progress_callback, done, total)

            return self.cache.get_or_prefill(prefix_token_ids, namespace, prompt_progress_callback=progress)

        return await self._run(call)

    async def explain(self, token_ids: Sequence[int]) -> dict[str, Any]:
        """What `get_or_prefill` would find; see `PionPromptCache.explain`."""
        return await self._run(lambda _: self.cache.explain(token_ids))

    async def keep(self, token_ids: Sequence[int], caches: list[Any], prefill_ms: float = 0.0) -> bool:
        """Publish caches that were filled elsewhere; see `PionPromptCache.keep`."""
        return await self._run(lambda _: self.cache.keep(token_ids, caches, prefill_ms))

    def stats(self) -> dict[str, int | float | str | None]:
        """Counters; see `PionPromptCache.stats`."""
        return self.cache.stats()

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing waits to be published; whether it came to that."""
        return await self._run(lambda _: self.cache.flush(timeout))

    async def close(self) -> None:
        """Publish what waits to be, within the deadline, and close the connections. Usable again."""
        await self._run(lambda _: self.cache.close())

    async def __aenter__(self) -> AsyncPionPromptCache:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[threading.Event], T]) -> T:
        cancelled = threading.Event()
        running = self._thread.submit(call, cancelled)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            cancelled.set()
            if not running.cancel():
                self.cache.interrupt()
            raise

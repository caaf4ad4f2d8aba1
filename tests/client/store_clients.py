"""Both kinds of store client, called in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from client_peers import SECONDS
from pionkv.client import AsyncStoreClient


class Blocking:
    """An `AsyncStoreClient` as a `StoreClient`."""

    def __init__(self, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = self._run(self._made(options))

    async def _made(self, options: dict[str, Any]) -> AsyncStoreClient:
        return AsyncStoreClient(**options)

    def _run(self, work: Any) -> Any:
        return self._runner.run(asyncio.wait_for(work, SECONDS))

    @property
    def endpoint(self) -> Any:
        return self._client.endpoint

    @property
    def files(self) -> Any:
        return self._client.files

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *args: self._run(method(*args))

    def end(self) -> None:
        self.close()
        self._runner.close()

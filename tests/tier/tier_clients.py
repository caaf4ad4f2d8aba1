"""A client of one server of a tier, and waiting for what is written behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from server_process import ServerProcess

SECONDS = 20


def until(true: Callable[[], Any], what: str = "it") -> Any:
    """Wait for something; what it is."""
    end = time.monotonic() + SECONDS
    while not (found := true()):
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.01)
    return found


class Peer:
    """One server and a connection to it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.client = self.connect()

    def connect(self) -> redis.Redis:
        """Another connection."""
        return redis.Redis(
            "127.0.0.1",
            self.server.port,
            socket_timeout=SECONDS,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            single_connection_client=True,
        )

    def command(self, *words: Any) -> Any:
        """A reply, errors as values."""
        try:
            found = self.client.execute_command(*words)
        except redis.ResponseError as error:
            return error
        return found.decode() if isinstance(found, bytes) and found in (b"OK", b"HIT", b"MISS") else found

    def lookup(self, name: str) -> Any:
        """What a lookup answers."""
        return self.command("KV.PREFIX.LOOKUP", name)

    def explain(self, name: str) -> dict[str, Any]:
        """Why, and where it is."""
        found = self.command("KV.PREFIX.EXPLAIN", name)
        pairs = {key.decode(): value for key, value in zip(found[::2], found[1::2], strict=True)}
        return {key: value.decode() if isinstance(value, bytes) else value for key, value in pairs.items()}

    def tier(self) -> dict[str, Any]:
        """The section of INFO."""
        return dict(self.client.info("tier"))

    def written(self, name: str) -> None:
        """Wait until the tier holds a prefix as it is here."""
        until(lambda: self.explain(name).get("tier") == "the same", f"{name} in the tier")

    def close(self) -> None:
        self.client.close()

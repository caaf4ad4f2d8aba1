"""Large strings on their way in: the socket writes into the segments of their page."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.storage.keyspace.large import LARGE_BYTES
from pionkv.storage.keyspace.large_write import LargeWrite

from .arguments import Argument, blob
from .clients import Client
from .receiving import Receiver, Refused


class ValueReceiver(Receiver):
    """Receives one large string."""

    def __init__(self, write: LargeWrite) -> None:
        self.length = write.nbytes
        self._write = write

    def next_buffer(self, remaining: int) -> memoryview | None:
        """The next segment."""
        return self._write.next_segment()

    def filled(self) -> LargeWrite:
        """The string, every byte of it in its page. Raises `NoSpace`."""
        self._write.finish()
        return self._write

    def close(self) -> None:
        """Undo what no transaction has taken."""
        self._write.abort()


def open_value(client: Client, args: Sequence[Argument], length: int) -> Receiver | None:
    """Have a large string arrive in its page; what is gathered for EXEC waits in memory."""
    if client.transaction.open or length < LARGE_BYTES:
        return None
    return ValueReceiver(client.service.store.keyspace.begin_large(blob(args[1]), length))


def data(argument: Argument) -> bytes | memoryview | LargeWrite:
    """An argument that is stored as it is."""
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, ValueReceiver):
        return argument.filled()
    if isinstance(argument, Refused) and argument.error is not None:
        raise argument.error
    return argument if isinstance(argument, memoryview) else blob(argument)

"""Where the body of a large argument goes while it arrives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from .buffers import CHUNK_BYTES


class Receiver(ABC):
    """Takes the bytes of one bulk string in the order in which they arrive.

    The connection asks for a buffer, has the socket fill all of it, asks for the next, and at the end hands
    the receiver to the command in the place of the argument. When the command is over, or will never be
    complete, the connection calls `close`.
    """

    length: int
    """Bytes of the whole body."""
    refused = False
    """Whether the body is read and dropped."""

    @abstractmethod
    def next_buffer(self, remaining: int) -> memoryview | None:
        """Where the next bytes go, at most `remaining` of them; the buffer handed out before is full.

        None means that no buffer is free: the connection stops to read until it is woken.
        """

    @abstractmethod
    def close(self) -> None:
        """Give buffers back; whatever the command did not commit leaves no trace. Called once."""


class Refused(Receiver):
    """Stands for a body that was refused on its header: it is read and dropped, and the command fails.

    Without an error of its own it is for the command to say what is wrong.
    """

    refused = True

    def __init__(self, length: int, error: Exception | None = None) -> None:
        self.length = length
        self.error = error

    def next_buffer(self, remaining: int) -> memoryview | None:
        """Never asked: a refused body is dropped by the parser."""
        raise AssertionError("a refused body has no destination")

    def close(self) -> None:
        """Nothing was begun."""


class Spools(Protocol):
    """Lends buffers of any size."""

    def take(self, size: int) -> memoryview:
        """A writable buffer of at least `size` bytes."""

    def give(self, spool: memoryview) -> None:
        """Take a buffer back."""


class Spooled(Receiver):
    """Gathers a body in a buffer that is lent: for work that needs all of it at once."""

    def __init__(self, spools: Spools, length: int) -> None:
        self.length = length
        self._spools = spools
        self._spool = spools.take(length)

    @property
    def data(self) -> memoryview:
        """The body, as long as the command runs."""
        return self._spool[: self.length]

    def next_buffer(self, remaining: int) -> memoryview | None:
        """What is left of the buffer, a MiB at a time: others are looked at between."""
        at = self.length - remaining
        return self._spool[at : at + min(remaining, CHUNK_BYTES)]

    def close(self) -> None:
        """Give the buffer back."""
        self._spools.give(self._spool)

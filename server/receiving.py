"""Where the body of a large argument goes while it arrives."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Receiver(ABC):
    """Takes the bytes of one bulk string in the order in which they arrive.

    The connection asks for a buffer, has the socket fill all of it, asks for the next, and at the end hands
    the receiver to the command in the place of the argument. When the command is over, or will never be
    complete, the connection calls `close`.
    """

    length: int
    """Bytes of the whole body."""

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

    def __init__(self, length: int, error: Exception | None = None) -> None:
        self.length = length
        self.error = error

    def next_buffer(self, remaining: int) -> memoryview | None:
        """Never asked: a refused body is dropped by the parser."""
        raise AssertionError("a refused body has no destination")

    def close(self) -> None:
        """Nothing was begun."""

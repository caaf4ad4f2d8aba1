"""Two families of errors, and the error reply. Anything else that this package raises is a bug in it."""

from __future__ import annotations


class ProtocolError(Exception):
    """The peer broke the framing. It gets `-ERR Protocol error: <text>`, and the connection ends."""


class UsageError(Exception):
    """Our own caller broke the contract of this package."""


class CommandError(Exception):
    """A refused command, as it travels: `-<code> <message>`.

    A handler raises it to be answered with it; `ReplyParser` yields it as the value of an error reply.

    Attributes:
        code: The first word, such as `ERR` or `NOAUTH`.
        message: The rest of the line.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def again(self) -> CommandError:
        """The same error, to be raised: one that is raised twice holds on to the frames of both times."""
        return CommandError(self.code, self.message)

    def __str__(self) -> str:
        return f"{self.code} {self.message}" if self.message else self.code

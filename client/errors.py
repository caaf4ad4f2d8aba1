"""What can go wrong between a client and a store. Inside `PionPromptCache` each of these means: prefill."""


class StoreError(Exception):
    """Base of everything this package raises on purpose."""


class Unavailable(StoreError):
    """The server could not be reached, or stopped answering. The connection was closed."""


class ConnectionLost(Unavailable):
    """The connection was refused, reset or ended."""


class TimedOut(Unavailable):
    """The deadline passed, or the server was silent for too long."""


class BadReply(StoreError):
    """A reply is not what the command promises. The connection was closed and nothing of it is used."""


class ServerRefused(StoreError):
    """The server answered with an error; the connection stays usable.

    Attributes:
        code: First word of the error, such as ``ERR``, ``OOM`` or ``SCHEMAMISMATCH``.
        message: The rest of it.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code, _, self.message = text.partition(" ")


class UnsupportedModel(StoreError):
    """The model's caches are of a kind that cannot be stored; the text names it."""


class NotStored(StoreError):
    """Nothing that this client can restore is stored under the name; the text says why."""


class Absent(NotStored):
    """There is nothing under the name, or nothing whole."""


class OtherTokens(NotStored):
    """The name stands for a prefix of other tokens; the text says from where on."""


class NotAsked(Unavailable):
    """The server failed a moment ago, so it was not asked."""

"""What plain keys refuse. The texts are Redis' own, since there is nothing to add to them."""

from __future__ import annotations

from ..errors import StorageError


class KeyspaceError(StorageError):
    """Base of the refusals below: the text is what a client is told."""


class WrongType(KeyspaceError):
    """The key holds a value of another type than the operation works on."""

    def __init__(self) -> None:
        super().__init__("Operation against a key holding the wrong kind of value")


class NoSuchKey(KeyspaceError):
    """The operation needs a key that is there."""

    def __init__(self) -> None:
        super().__init__("no such key")


class SameKey(KeyspaceError):
    """A key cannot be copied onto itself."""

    def __init__(self) -> None:
        super().__init__("source and destination objects are the same")


class NotANumber(KeyspaceError):
    """The stored value cannot be counted with; `text` says which kind of number was expected."""

    def __init__(self, text: str) -> None:
        super().__init__(text)


class WouldOverflow(KeyspaceError):
    """The result does not fit a 64-bit integer, or is no finite number."""

    def __init__(self, text: str) -> None:
        super().__init__(text)


class ValueLimit(KeyspaceError):
    """A string would become too long."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__("string exceeds maximum allowed size (proto-max-bulk-len)")
        self.length = length
        self.limit = limit


class MemberLimit(KeyspaceError):
    """A member of a sorted set is too long to be kept in order."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"member of {length} bytes is too long for a sorted set (limit {limit})")
        self.length = length
        self.limit = limit


class DamagedValue(KeyspaceError):
    """A stored value fails its check. The key can be set anew or removed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the value is damaged: {reason}")
        self.reason = reason

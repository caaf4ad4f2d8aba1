"""What a tier has to do. An engine knows nothing of rows: names, pieces and records are bytes to it.

For each name there is one record and any number of pieces. Pieces are written first, under ids that nobody
has used before; a commit then makes the record visible, if the one before it still is what the writer saw.
So whoever reads a record finds all that it names, or sees that a piece is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

NO_VERSION = 0
"""The version of a name without a record."""


class TierError(Exception):
    """The tier cannot do it; the text says why.

    Attributes:
        reason: One word, as metrics count it.
    """

    reason = "error"


class TierAway(TierError):
    """It does not answer, or not in time."""

    reason = "away"


class TierLate(TierAway):
    """It did not answer in time."""


class TierFull(TierError):
    """It takes no more bytes."""

    reason = "full"


class TierRefused(TierError):
    """It answers, and refuses: a password, a right, a setting."""

    reason = "refused"


class Moved(TierError):
    """The record is not the one that the writer saw."""

    reason = "moved"


class PieceGone(TierError):
    """A piece that the record names is not there."""

    reason = "incomplete"


class State(NamedTuple):
    """What a name has now.

    Attributes:
        version: Of its record: another one for each commit, never given twice; `NO_VERSION` for none.
        dropped: There is none because it was dropped.
    """

    version: int
    dropped: bool


class Head(NamedTuple):
    """A record and its version."""

    version: int
    record: bytes


class Commit(NamedTuple):
    """What is to become visible.

    Attributes:
        record: The record.
        pieces: Ids of the pieces that it names; they must be there.
        garbage: Ids of pieces of the record before it that it does not name.
        after: The version that the writer saw.
        expires: When it ends, milliseconds since 1970; 0 for never.
    """

    record: bytes
    pieces: Sequence[bytes]
    garbage: Sequence[bytes]
    after: int
    expires: int


class Tier(ABC):
    """A store that several servers share. Every call may raise `TierError`.

    Attributes:
        address: Where it is, without passwords.
        index_step: Token ids between two entries of a prefix in the index; a multiple of 64.
    """

    address: str
    index_step: int = 64

    @abstractmethod
    def shard_of(self, name: bytes) -> str:
        """The part of the tier that has this name: parts fail one by one."""

    @abstractmethod
    def shard_of_index(self, key: bytes) -> str:
        """The part of the tier that has this key of the index."""

    @abstractmethod
    async def state(self, name: bytes) -> State:
        """What a name has now, without its record."""

    @abstractmethod
    async def head(self, name: bytes) -> Head | None:
        """The record of a name."""

    @abstractmethod
    async def put_piece(self, name: bytes, piece: bytes, data: bytes | memoryview) -> None:
        """Store a piece. Raises `TierFull` as well."""

    @abstractmethod
    async def get_piece(self, name: bytes, piece: bytes) -> bytes | memoryview:
        """A piece. Raises `PieceGone` as well."""

    @abstractmethod
    async def commit(self, name: bytes, commit: Commit) -> int:
        """Make a record visible and remove the garbage; the version. Raises `Moved`, `PieceGone` as well."""

    @abstractmethod
    async def drop(self, name: bytes, after: int, pieces: Sequence[bytes]) -> None:
        """Remove a record and its pieces, and remember that it was dropped. Raises `Moved` as well."""

    @abstractmethod
    async def forget(self, name: bytes, after: int, pieces: Sequence[bytes]) -> None:
        """The same for a record whose pieces are gone: nobody dropped it. Raises `Moved` as well."""

    @abstractmethod
    async def claim(self, name: bytes, owner: bytes, lease_ms: int) -> bool:
        """Take or renew the right to compute a prefix; False when somebody else has it."""

    @abstractmethod
    async def release(self, name: bytes, owner: bytes) -> None:
        """Give that right back, if it is this owner's."""

    @abstractmethod
    async def is_claimed(self, name: bytes) -> bool:
        """Whether somebody has that right."""

    @abstractmethod
    async def note(self, keys: Sequence[bytes], name: bytes) -> None:
        """Have a name found under keys of the index, all of one shard."""

    @abstractmethod
    async def find(self, keys: Sequence[bytes]) -> list[list[bytes]]:
        """A few of the names under each of these keys of one shard, the newest first."""

    @abstractmethod
    async def unnote(self, key: bytes, name: bytes) -> None:
        """A name under a key that turned out to be wrong."""

    @abstractmethod
    async def close(self) -> None:
        """Let its connections go."""

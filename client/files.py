"""Whether rows are taken from the files of a server on this machine, or come over the connection."""

from __future__ import annotations

from .asking import Differs, Fetch
from .errors import ServerRefused
from .mapping import NotMapped, RowMap
from .requests import Command

WORTH_BYTES = 4 << 20
"""Fewer come over the connection as fast: asking for their place and mapping it take as long as 2 MiB do."""
SUPPOSED_ROW_BYTES = 2048
"""Of rows that were never fetched, all layers together."""
MOST_FAILURES = 3
"""So many times in a row that a file cannot be used mean that none can."""
MOST_KNOWN = 4096


class Files:
    """Remembers what came out of files, for one client. Not thread-safe.

    Attributes:
        tried: Whether they are looked at.
        mapped_bytes: Bytes that came out of them.
        not_mapped: Why the last rows that were asked for there came over the connection.
    """

    def __init__(self, tried: bool) -> None:
        self.tried = tried
        self.mapped_bytes = 0
        self.not_mapped: str | None = None
        self._failures = 0
        self._differs = False
        """What is fetched now does not lie in files as it was asked for, or nobody says where."""
        self._row_bytes: dict[tuple[Command, str], int] = {}
        """Of one row of all layers, by what was asked for; 0: it has to come over the connection."""

    def question(self, fetch: Fetch) -> Command | None:
        """What asks for the places of the rows; None where they had better come over the connection."""
        self._differs = False
        if not self.tried or fetch.places is None:
            return None
        known = self._row_bytes.get(_kind(fetch), SUPPOSED_ROW_BYTES)
        return fetch.places.command if known * fetch.rows >= WORTH_BYTES else None

    def take(self, fetch: Fetch, answer: object) -> bool:
        """Take the rows from the places that were told; whether that could be done.

        Args:
            fetch: What is fetched.
            answer: The reply to the question, or `ServerRefused`: what is wrong is said by the fetch itself.

        Raises:
            BadReply: It makes no sense.
        """
        try:
            if isinstance(answer, ServerRefused):
                raise Differs(str(answer))
            told = RowMap.parse(answer)
            if told is None:
                raise Differs("nothing is stored")
            fetch.take(told)
        except NotMapped as error:
            self.not_mapped = str(error)
            self._failures += 1
            self.tried = self._failures < MOST_FAILURES
            return False
        except Differs as error:
            self.not_mapped, self._differs = str(error), True
            return False
        self._failures = 0
        self.mapped_bytes += fetch.nbytes
        self._know(fetch, fetch.nbytes // fetch.rows)
        return True

    def came(self, fetch: Fetch) -> None:
        """The rows came over the connection. Not called when the server refused them there, too."""
        if self._differs:
            self._know(fetch, 0)
        elif self.tried and fetch.places is not None and self._row_bytes.get(_kind(fetch)) != 0:
            self._know(fetch, fetch.nbytes // fetch.rows)

    def _know(self, fetch: Fetch, row_bytes: int) -> None:
        if len(self._row_bytes) >= MOST_KNOWN:
            self._row_bytes.clear()
        self._row_bytes[_kind(fetch)] = row_bytes


def _kind(fetch: Fetch) -> tuple[Command, str]:
    """What rows of one length have in common: the session or prefix, the layer, and their form."""
    return fetch.command[:3], fetch.form

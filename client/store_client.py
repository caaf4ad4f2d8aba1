"""`StoreClient`: the store's commands as methods.

Small commands go through redis-py, rows through a lane of their own: redis-py assembles a reply in memory and
copies it, a lane receives it where it is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import redis
from pionkv.kernels.formats import LayerSpec

from . import asking
from .asking import Fetch, FetchForm, Question, Rows, StoreForm
from .attend import AttendQueries
from .attend_link import AttendLink
from .deadline import Deadline
from .errors import ServerRefused, Unavailable
from .lane import Lane
from .link import Link
from .requests import Found, Name, SessionInfo
from .store_options import StoreOptions
from .tls import explained

T = TypeVar("T")


class StoreClient(StoreOptions, AttendQueries):
    """A connection to a store.

    Attributes:
        endpoint: Where the server is.
        buffers: The memory that fetched rows come in.
        files: What came out of the server's files, and why the rest did not.
        redis: The redis-py client that small commands go through, for any command without a method here.
    """

    def _prepare(self, timeout: float, silence: float, connect: float, prefer_unix: bool) -> None:
        self.redis = redis.Redis(
            **self.endpoint.redis_options, socket_timeout=silence, socket_connect_timeout=connect
        )
        self._link = Link(
            self.endpoint, total=timeout, silence=silence, connect=connect, prefer_unix=prefer_unix
        )
        self.attend = AttendLink(self._link)

    def ping(self) -> None:
        """See that the server answers.

        Raises:
            Unavailable: It does not. Every method raises this.
        """
        self._ask(asking.ping())

    # Sessions

    def create(self, sid: Name, specs: LayerSpec | Sequence[LayerSpec]) -> int:
        """Make a session, all layers alike or each as listed; the same again changes nothing.

        Returns:
            Its slot.

        Raises:
            ServerRefused: The session exists with another schema, or the schema is not possible.
        """
        return self._ask(asking.create(sid, specs))

    def store(self, sid: Name, layer: int, start: int, rows: Rows, form: StoreForm | None = None) -> None:
        """Write rows from row `start` on, which may be at most the layer's number of rows.

        Args:
            sid: The session.
            layer: The layer.
            start: The first row that is written.
            rows: The rows, in little-endian elements.
            form: Type of the elements; needed for BF16 (an array of uint16) and RAW (uint8, rows as stored).

        Raises:
            TypeError: The array's type does not fit the form.
            ServerRefused: There is no such session, a gap would arise, a value cannot be stored, or there is
                no room.
        """
        command = asking.store(sid, layer, start, rows, form).command

        def work(lane: Lane, deadline: Deadline) -> object:
            lane.send(command, deadline)
            return lane.receive(deadline)

        self._link.exchange(work)

    def fetch(self, sid: Name, layer: int, ids: Sequence[int]) -> Rows:
        """Rows by id, in the order asked, as float32.

        Raises:
            ServerRefused: There is no such session, or one of the rows is not stored.
            BadReply: The layer holds nothing.
        """
        (rows,) = self._fetch(asking.fetch(sid, layer, ids))
        return rows

    def fetch_range(self, sid: Name, layer: int, start: int, end: int, form: FetchForm = "F32") -> Rows:
        """Rows `start` to `end - 1` of one layer. Raises as `fetch`."""
        (rows,) = self._fetch(asking.fetch_range(sid, layer, start, end, form))
        return rows

    def fetch_batch(
        self, sid: Name, start: int, end: int, layers: int | None = None, form: FetchForm = "F32"
    ) -> list[Rows]:
        """Rows `start` to `end - 1` of the first `layers` layers, or of all. Raises as `fetch`."""
        return self._fetch(asking.fetch_batch(sid, start, end, layers, form))

    def info(self, sid: Name) -> SessionInfo:
        """Formats and rows of a session's layers.

        Raises:
            ServerRefused: There is no such session.
        """
        return self._ask(asking.info(sid))

    def drop(self, *sids: Name) -> int:
        """Remove sessions; returns how many there were."""
        return self._ask(asking.drop(*sids))

    # Prefixes

    def register(
        self,
        namespace: Name,
        keys: LayerSpec | Sequence[LayerSpec],
        values: Sequence[LayerSpec] | None = None,
        prefill_ms: int | None = None,
    ) -> None:
        """Make the two sessions of a prefix; the same again changes nothing.

        Args:
            namespace: The prefix.
            keys: One spec for all layers of both sides, or a list with one for each layer.
            values: The list for the values, where it differs from that of the keys.
            prefill_ms: What it took to compute the prefix, in milliseconds.

        Raises:
            ServerRefused: The namespace exists with another schema.
        """
        self._ask(asking.register(namespace, keys, values, prefill_ms))

    def lookup(self, namespace: Name) -> bool:
        """Whether a prefix is stored, both sides and the same rows in the same layers."""
        return self._ask(asking.lookup(namespace))

    def match(self, ids: Sequence[int], model: str = "", *, whole: bool = False) -> Found | None:
        """The longest stored prefix of some tokens; None when there is none.

        Args:
            ids: The token ids.
            model: Digest of the model that it must be of.
            whole: Whether a prefix that goes on after the tokens it shares is of no use.
        """
        return self._ask(asking.match(ids, model, whole=whole))

    def fetch_all(
        self, namespace: Name, start: int, end: int, form: FetchForm = "F32"
    ) -> list[tuple[Rows, Rows]]:
        """Rows `start` to `end - 1` of both sides of every layer: keys, values. Raises as `fetch`."""
        return asking.by_layer(self._fetch(asking.fetch_all(namespace, start, end, form)))

    def drop_prefix(self, *namespaces: Name) -> int:
        """Remove prefixes; returns how many there were."""
        return self._ask(asking.drop_prefix(*namespaces))

    def prefix_info(self) -> dict[str, str]:
        """The server's figures about all prefixes."""
        return self._ask(asking.prefix_info())

    # The object

    def close(self) -> None:
        """Close all connections, and give back the memory that is kept; a later call opens others."""
        self.buffers.release()
        self._link.close()
        self.attend.close()
        self.redis.close()

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, question: Question[T]) -> T:
        with _translated(secured=self.endpoint.tls is not None):
            reply: object = self.redis.execute_command(*question.command)
        return question.read(reply)

    def _fetch(self, fetch: Fetch) -> list[Rows]:
        def work(lane: Lane, deadline: Deadline) -> None:
            fetch.begin(self.buffers)
            question = self.files.question(fetch)
            if question is not None:
                lane.send(question, deadline)
                if self.files.take(fetch, lane.receive_any(deadline)):
                    return
            lane.send(fetch.command, deadline)
            lane.receive_rows(fetch.place, deadline)
            self.files.came(fetch)

        self._link.exchange(work)
        return fetch.result()


@contextmanager
def _translated(*, secured: bool) -> Iterator[None]:
    """Raise redis-py's errors as ours."""
    try:
        yield
    except redis.ResponseError as error:
        code = "OOM" if isinstance(error, redis.exceptions.OutOfMemoryError) else ""
        raise ServerRefused(_with_code(str(error), code)) from error
    except redis.RedisError as error:
        raise Unavailable(explained(str(error)) if secured else str(error)) from error


def _with_code(text: str, code: str) -> str:
    """redis-py takes the code off the errors that it has a class for; ERR is one of them."""
    first = text.partition(" ")[0]
    return text if first.isalpha() and first.isupper() and not code else f"{code or 'ERR'} {text}"

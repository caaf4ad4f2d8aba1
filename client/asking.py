"""What a store can be asked, and how the answers are read: the same for every client. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pionkv.kernels.formats import LayerSpec

from . import requests
from .buffers import Buffers
from .errors import BadReply, StoreError
from .mapping import NotMapped, RowMap, Side, fill
from .requests import Command, Found, Name, SessionInfo

T = TypeVar("T")

FetchForm = Literal["F32", "F16", "RAW"]
StoreForm = Literal["F32", "F16", "BF16", "RAW"]

Rows = NDArray[Any]
"""Rows of one layer, an array ``(rows, dim)``; of form RAW ``(rows, bytes of a row)``."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "RAW": np.dtype("u1"),
}


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A command, and what reads its answer.

    Attributes:
        command: Name and arguments.
        read: Makes a value of the reply, or raises `BadReply`.
    """

    command: Command
    read: Callable[[object], T]


def ping() -> Question[None]:
    """Whether it answers."""
    return Question(("PING",), _nothing)


def create(sid: Name, specs: LayerSpec | Sequence[LayerSpec]) -> Question[int]:
    """Make a session: its slot."""
    return Question(requests.create(sid, specs), _integer)


def info(sid: Name) -> Question[SessionInfo]:
    """Formats and rows of a session's layers."""
    return Question(("V.INFO", requests.as_bytes(sid)), SessionInfo.parse)


def drop(*sids: Name) -> Question[int]:
    """Remove sessions: how many there were."""
    return Question(("V.DROP", *map(requests.as_bytes, sids)), _integer)


def register(
    namespace: Name,
    keys: LayerSpec | Sequence[LayerSpec],
    values: Sequence[LayerSpec] | None,
    prefill_ms: int | None,
) -> Question[None]:
    """Make the two sessions of a prefix."""
    return Question(requests.register(namespace, keys, values, prefill_ms), _nothing)


def lookup(namespace: Name) -> Question[bool]:
    """Whether a prefix is stored."""
    return Question(("KV.PREFIX.LOOKUP", requests.as_bytes(namespace)), _is_hit)


def match(ids: Sequence[int], model: str, *, whole: bool) -> Question[Found | None]:
    """The longest stored prefix of some tokens."""
    return Question(requests.match(ids, model, whole=whole), lambda reply: Found.parse(reply, len(ids)))


def drop_prefix(*namespaces: Name) -> Question[int]:
    """Remove prefixes: how many there were."""
    return Question(("KV.PREFIX.DROP", *map(requests.as_bytes, namespaces)), _integer)


def prefix_info() -> Question[dict[str, str]]:
    """The server's figures about all prefixes."""
    return Question(("KV.PREFIX.INFO",), requests.read_lines)


def store(sid: Name, layer: int, start: int, rows: Rows, form: StoreForm | None) -> Question[None]:
    """Write rows.

    Raises:
        TypeError: The array's type does not fit the form.
    """
    form = form or _form_of(rows)
    if rows.ndim != 2 or rows.dtype != _DTYPES[form]:
        raise TypeError(f"rows of form {form} are an array (rows, n) of {_DTYPES[form]}")
    body = np.ascontiguousarray(rows).data.cast("B")
    return Question(requests.store(sid, layer, start, len(rows), body, form), _nothing)


@dataclass(frozen=True, slots=True)
class Places:
    """The question where the rows of a fetch lie in the server's files, and what answers it.

    Attributes:
        command: Name and arguments.
        first: The first row that is wanted, counted from the first one of the answer.
        sides: How many of them each layer has in it.
        layers: Those that it must tell of; None: all from layer 0 on.
    """

    command: Command
    first: int = 0
    sides: int = 1
    layers: range | None = None

    def are_those(self, told: Sequence[Side]) -> bool:
        """Whether these are the layers, and nothing is missing between them."""
        layers = range(len(told) // self.sides) if self.layers is None else self.layers
        if [each.layer for each in told] != [layer for layer in layers for _ in range(self.sides)]:
            return False
        return self.sides == 1 or [each.side for each in told] == [*range(self.sides)] * len(layers)


class Fetch:
    """A command that answers runs of rows, and where they go.

    Attributes:
        command: Name and arguments.
        rows: Rows of each run.
        form: Type of their elements.
        places: What asks where they lie; None: they lie in no one place.
    """

    def __init__(self, command: Command, rows: int, form: str, places: Places | None = None) -> None:
        """Prepare. Arguments as of the attributes."""
        self.command = command
        self.rows = rows
        self.form = form
        self.places = places
        self._found: list[NDArray[np.uint8]] = []

    def begin(self, buffers: Buffers) -> None:
        """Forget what an attempt before this one received, and take memory from here."""
        self._found.clear()
        self._buffers = buffers

    def place(self, index: int, length: int) -> memoryview:
        """As `replies.Place`: a new array for each run."""
        if index != len(self._found) or length % self.rows:
            raise BadReply(f"{length} bytes for {self.rows} rows")
        self._found.append(self._buffers.take(length))
        return self._found[-1].data

    @property
    def nbytes(self) -> int:
        """Bytes that have come."""
        return sum(each.nbytes for each in self._found)

    def take(self, told: RowMap) -> None:
        """Take the rows from where they lie.

        Raises:
            Differs: They lie there in another form, or are others than were asked for.
            NotMapped: A file cannot be used from here.
            BadReply: The places make no sense.
        """
        places = self.places
        assert places is not None
        end = places.first + self.rows
        if told.rows < end or not told.sides or not places.are_those(told.sides):
            raise Differs("the server's files hold other rows than were asked for")
        for side in told.sides:
            element = side.spec.verbatim_element
            if self.form != "RAW" and (element is None or element.name != self.form):
                raise Differs(f"rows of {side.spec.format} have to be made {self.form}")
        sizes = [side.spec.row_bytes for side in told.sides]
        self._found = [self._buffers.take(self.rows * size) for size in sizes]
        targets = [_Whole(array, size, places.first) for array, size in zip(self._found, sizes, strict=True)]
        try:
            fill(told, targets, places.first, end, divisible=True)
        except NotMapped:
            self._found.clear()
            raise

    def result(self) -> list[Rows]:
        """The runs."""
        return [each.view(_DTYPES[self.form]).reshape(self.rows, -1) for each in self._found]


class Differs(StoreError):
    """Rows lie in files otherwise than they were asked for; they have to come over the connection."""


class _Whole:
    """Rows that go into one array as they lie. `first`: the row that it begins with."""

    def __init__(self, array: NDArray[np.uint8], row_bytes: int, first: int) -> None:
        self._array = array
        self._row_bytes = row_bytes
        self._first = first

    def fill(self, start: int, end: int, rows: memoryview) -> None:
        begin = (start - self._first) * self._row_bytes
        self._array[begin : begin + len(rows)] = np.frombuffer(rows, np.uint8)


def fetch(sid: Name, layer: int, ids: Sequence[int]) -> Fetch:
    """Rows by id."""
    return Fetch(("V.FETCH", requests.as_bytes(sid), layer, *ids), len(ids), "F32")


def fetch_range(sid: Name, layer: int, start: int, end: int, form: FetchForm) -> Fetch:
    """Rows `start` to `end - 1` of a layer."""
    command = ("V.FETCH", requests.as_bytes(sid), layer, "RANGE", start, end, "FMT", form)
    places = Places(requests.places(sid, start, end, (layer, layer + 1)), layers=range(layer, layer + 1))
    return Fetch(command, end - start, form, places)


def fetch_batch(sid: Name, start: int, end: int, layers: int | None, form: FetchForm) -> Fetch:
    """Rows `start` to `end - 1` of the first `layers` layers, or of all."""
    count = () if layers is None else (layers,)
    command = ("V.FETCH", requests.as_bytes(sid), "BATCH", start, end, *count, "FMT", form)
    some = None if layers is None else (0, layers)
    places = Places(requests.places(sid, start, end, some), layers=None if some is None else range(*some))
    return Fetch(command, end - start, form, places)


def fetch_all(namespace: Name, start: int, end: int, form: FetchForm) -> Fetch:
    """Rows `start` to `end - 1` of both sides of every layer: k0 v0 k1 v1 and so on."""
    places = Places(("KV.PREFIX.MAP", requests.as_bytes(namespace)), first=start, sides=2)
    return Fetch(requests.fetch_all(namespace, start, end, form), end - start, form, places)


def by_layer(rows: Sequence[Rows]) -> list[tuple[Rows, Rows]]:
    """Keys and values of each layer, of what `fetch_all` answered."""
    return list(zip(rows[::2], rows[1::2], strict=True))


def _form_of(rows: Rows) -> StoreForm:
    if rows.dtype == _DTYPES["F32"]:
        return "F32"
    if rows.dtype == _DTYPES["F16"]:
        return "F16"
    raise TypeError(f"say which form rows of {rows.dtype} have")


def _nothing(_: object) -> None:
    """An answer that says no more than that it is done."""


def _integer(reply: object) -> int:
    if not isinstance(reply, int):
        raise BadReply("an integer was expected")
    return reply


def _is_hit(reply: object) -> bool:
    return (reply.decode() if isinstance(reply, bytes) else str(reply)) == "HIT"

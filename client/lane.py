"""A connection that moves rows: sent without joining them, received straight into their destination.

Blocking, and never longer than a deadline. Whatever goes wrong on the way, the connection is closed: bytes of
an unfinished reply must not be taken for the next one.
"""

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self

from pionkv.protocol.errors import ProtocolError
from pionkv.protocol.request import Word, encode_command

from .deadline import Deadline
from .endpoint import Endpoint
from .errors import BadReply, ConnectionLost, ServerRefused, TimedOut, Unavailable
from .replies import More, Place, Replies, count_rows, plain, raised_or
from .tls import explained

_TLS_BYTES = 1 << 18
BESIDE_SECONDS = 0.5
"""Seconds that opening a further connection may take: rows come over the first one, too."""

SENT_AHEAD_BYTES = 1 << 16
"""More than so many bytes are not sent to a server that has not answered yet."""

_MOST_BUFFERS = 64  # per sendmsg; every system takes at least 16 and Linux takes 1,024


@dataclass
class Traffic:
    """Bytes moved, counted over any number of connections."""

    received: int = 0
    sent: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, *, received: int = 0, sent: int = 0) -> None:
        """Count some more; connections of several threads may do so at once."""
        with self._lock:
            self.received += received
            self.sent += sent

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.received + other.received, self.sent + other.sent)


class Lane:
    """One connection to a server. Not thread-safe.

    Attributes:
        pending: Commands sent whose replies have not been received.
        traffic: Where its bytes are counted.
    """

    def __init__(self, connection: socket.socket, traffic: Traffic | None = None) -> None:
        """Take over a connected socket.

        Args:
            connection: The socket; it is closed with this object.
            traffic: Where the bytes are counted.
        """
        self._socket: socket.socket | None = connection
        self.traffic = traffic or Traffic()
        self._replies = Replies()
        self._endpoint: Endpoint | None = None
        self._beside: list[Self] = []
        self._seconds: float | None = None
        """What the socket's calls may take now; None: not known."""
        self._unheard: Deadline | None = None
        """Until when the server must have answered the greeting; None: it has."""
        self.pending = 0

    @classmethod
    def open(
        cls, endpoint: Endpoint, deadline: Deadline, traffic: Traffic | None = None, *, ahead: bool = False
    ) -> Self:
        """Connect, say who we are, and see that the server answers.

        Args:
            endpoint: Where it is.
            deadline: Until when it must have answered.
            traffic: Where bytes are counted.
            ahead: Commands may be sent before it has: that is seen when the first reply is received, which
                raises `Unavailable` for a server that refuses this client.

        Raises:
            Unavailable: The server cannot be reached or does not answer in time.
            ServerRefused: The server wants another password.
        """
        with _translated(deadline):
            lane = cls(endpoint.connect(deadline), traffic)
        lane._endpoint = endpoint
        try:
            # What TLS has to say of the other end is said when it first answers.
            lane.greet(endpoint, deadline, ahead=ahead and endpoint.tls is None)
        except ConnectionLost as error:
            raise error if endpoint.tls is None else ConnectionLost(explained(str(error))) from error
        except BaseException:
            lane.close()
            raise
        return lane

    def greet(self, endpoint: Endpoint, deadline: Deadline, *, ahead: bool = False) -> None:
        """Say who we are, and see that the server answers. Raises as `send` and `receive`."""
        *first, last = endpoint.greeting
        for command in first:
            self.send(command, deadline)
            self.receive(deadline)
        self.send(last, deadline)
        if ahead:
            self._unheard, self.pending = deadline, self.pending - 1
        else:
            self.receive(deadline)

    def _hear(self) -> None:
        """Receive the answer to the greeting, if it has not been received."""
        deadline, self._unheard = self._unheard, None
        if deadline is None:
            return
        self.pending += 1
        try:
            self.receive(deadline)
        except ServerRefused as error:
            self.close()
            raise Unavailable(f"{self._endpoint} refuses this client: {error}") from error

    @property
    def closed(self) -> bool:
        """Whether the connection has been closed."""
        return self._socket is None

    def close(self) -> None:
        """Close the connection, and those beside it; more than once does nothing."""
        for lane in self._beside:
            lane.close()
        self._beside = []
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def interrupt(self) -> None:
        """End the exchange that another thread waits in: this connection, and those beside it, are lost."""
        for lane in tuple(self._beside):
            lane.interrupt()
        connection = self._socket
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def beside(self, count: int, deadline: Deadline) -> Sequence[Self]:
        """Further connections to the server, each for a thread of its own, kept until this one is closed.

        Args:
            count: How many are wanted. Fewer are returned where the server takes no more.
            deadline: Bounds the time that opening them takes.
        """
        self._beside = [lane for lane in self._beside if not lane.closed]
        try:
            while self._endpoint is not None and len(self._beside) < count:
                soon = deadline.within(BESIDE_SECONDS)
                self._beside.append(type(self).open(self._endpoint, soon, self.traffic))
        except (Unavailable, ServerRefused):
            self._endpoint = None  # it is not asked again
        return self._beside[:count]

    def send(self, command: Sequence[Word], deadline: Deadline) -> None:
        """Send a command; its reply is to be received later, in order.

        Args:
            command: Name and arguments. A large memoryview is not copied.
            deadline: Bounds the wait for the server to take the bytes.

        Raises:
            Unavailable: The connection broke or stalled. It was closed.
        """
        self.send_pieces(encode_command(command), deadline)
        self.pending += 1

    def send_pieces(self, pieces: Sequence[bytes | memoryview], deadline: Deadline) -> None:
        """Send bytes as they are, without joining them. Raises as `send`."""
        buffers = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        if self._unheard is not None and sum(map(len, buffers)) > SENT_AHEAD_BYTES:
            self._hear()
        with self._closing_on_error(deadline) as connection:
            while buffers:
                self._bound(connection, deadline)
                sent = _send_some(connection, buffers)
                self.traffic.add(sent=sent)
                buffers = _unsent(buffers, sent)

    def receive(self, deadline: Deadline) -> object:
        """The next reply; bulk strings in it are bytes.

        Raises:
            ServerRefused: It is an error reply. The connection stays open.
            BadReply: The server broke the protocol. The connection was closed.
            Unavailable: The connection broke or stalled. It was closed.
        """
        self._hear()
        with self._closing_on_error(deadline) as connection:
            value = self._next_reply(connection, deadline, None)
        return plain(value)

    def receive_any(self, deadline: Deadline) -> object:
        """As `receive`, but an error reply is returned: a `ServerRefused`."""
        try:
            return self.receive(deadline)
        except ServerRefused as error:
            return error

    def receive_rows(self, place: Place, deadline: Deadline) -> int:
        """The next reply, which must be a bulk string or an array of them, put where `place` says.

        Returns:
            The number of bulk strings.

        Raises:
            ServerRefused: It is an error reply. The connection stays open.
            BadReply: It is anything else, or `place` refused a length. The connection was closed.
            Unavailable: The connection broke or stalled. It was closed.
        """
        self._hear()
        with self._closing_on_error(deadline) as connection:
            value = self._next_reply(connection, deadline, place)
            count = count_rows(value)
        raised_or(value)
        return count

    def receive_exactly(self, count: int, deadline: Deadline) -> bytearray:
        """The next bytes, as they come. Raises as `receive`."""
        self._hear()
        data = bytearray(count)
        room = memoryview(data)
        with self._closing_on_error(deadline) as connection:
            while room:
                room = room[self._recv_into(connection, room, deadline) :]
        return data

    def _next_reply(self, connection: socket.socket, deadline: Deadline, place: Place | None) -> object:
        while (value := self._replies.next(place)) is More.NEEDED:
            self._fill(connection, deadline)
        self.pending -= 1
        return value

    def _fill(self, connection: socket.socket, deadline: Deadline) -> None:
        room = self._replies.get_buffer()
        count = self._recv_into(connection, room, deadline)
        while count < len(room) and self._replies.fills:
            count += self._recv_into(connection, room[count:], deadline)
        self._replies.received(count)

    def _recv_into(self, connection: socket.socket, room: memoryview, deadline: Deadline) -> int:
        """Receive some bytes; how many."""
        self._bound(connection, deadline)
        count = connection.recv_into(room)
        if count == 0:
            raise ConnectionLost("the server ended the connection")
        self.traffic.add(received=count)
        return count

    def _bound(self, connection: socket.socket, deadline: Deadline) -> None:
        """Have the next call take no longer than it may. The system is told only when that has changed."""
        seconds = deadline.wait()
        if seconds != self._seconds:
            connection.settimeout(seconds)
            self._seconds = seconds

    @contextmanager
    def _closing_on_error(self, deadline: Deadline) -> Iterator[socket.socket]:
        """The socket, closed when anything at all goes wrong while it is used, an interrupt included."""
        if self._socket is None:
            raise ConnectionLost("the connection is closed")
        try:
            with _translated(deadline):
                yield self._socket
        except BaseException:
            self.close()
            raise


@contextmanager
def _translated(deadline: Deadline) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        deadline.wait()  # raises when the whole time is over; else it was a silence
        raise TimedOut("the server is silent") from error
    except OSError as error:
        raise ConnectionLost(str(error)) from error
    except ProtocolError as error:
        raise BadReply(str(error)) from error


def _send_some(connection: socket.socket, buffers: Sequence[memoryview]) -> int:
    """Send a beginning of the buffers; how many bytes."""
    if not isinstance(connection, ssl.SSLSocket):
        return connection.sendmsg(buffers[:_MOST_BUFFERS])
    # TLS copies what it sends, and waits until all of it is taken: no more at once than a silence allows.
    if len(buffers[0]) >= _TLS_BYTES:
        return connection.send(buffers[0][:_TLS_BYTES])
    return connection.send(b"".join(buffer[:_TLS_BYTES] for buffer in buffers[:2]))


def _unsent(buffers: list[memoryview], sent: int) -> list[memoryview]:
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [buffer[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    return []

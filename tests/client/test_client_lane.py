"""The lane against scripted peers: what arrives where, and what each misbehaviour becomes."""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable

import pytest
from client_peers import Peer, greet, read_until
from pionkv.client.async_lane import AsyncLane
from pionkv.client.deadline import Deadline
from pionkv.client.endpoint import Endpoint
from pionkv.client.errors import BadReply, ConnectionLost, ServerRefused, TimedOut
from pionkv.client.lane import Lane, Traffic

Play = Callable[..., Peer]
ROWS = b"*2\r\n$6\r\nabcdef\r\n$4\r\nwxyz\r\n"


def soon() -> Deadline:
    """The shortest patience that silence can be told from slowness by."""
    return Deadline(60, 0.05)


def say(*pieces: bytes, wait: threading.Event | None = None) -> Callable[[socket.socket], None]:
    """A script: greet, read one command, send pieces one by one, then perhaps stay silent."""

    def script(connection: socket.socket) -> None:
        greet(connection)
        read_until(connection, b"GO\r\n")
        for piece in pieces:
            connection.sendall(piece)
        if wait is not None:
            wait.wait(20)

    return script


def connect(peer: Peer, deadline: Deadline) -> Lane:
    lane = Lane.open(Endpoint(port=peer.port), deadline)
    lane.send(("GO",), deadline)
    return lane


def congestion(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


class Places:
    """Destinations of the lengths that are expected."""

    def __init__(self, *lengths: int) -> None:
        self.memory = [bytearray(length) for length in lengths]

    def __call__(self, index: int, length: int) -> memoryview:
        return memoryview(self.memory[index])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a socket choose")
def test_nothing_is_paced_within_a_machine(play: Play, deadline: Deadline) -> None:
    peer = play(greet, greet)
    lane = Lane.open(Endpoint(port=peer.port), deadline)
    assert lane._socket is not None
    assert congestion(lane._socket) == b"reno"
    lane.close()

    async def over_a_loop() -> bytes:
        found = await AsyncLane.open(Endpoint(port=peer.port), deadline)
        assert found._transport is not None
        try:
            return congestion(found._transport.get_extra_info("socket"))
        finally:
            found.close()

    assert asyncio.run(over_a_loop()) == b"reno"
    with socket.socket() as usual:
        before = congestion(usual)
        Endpoint("192.0.2.1").tune(usual)
        assert congestion(usual) == before
        assert usual.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_rows_arrive_in_their_places_wherever_the_reply_is_split(play: Play, deadline: Deadline) -> None:
    peer = play(*(say(ROWS[:cut], ROWS[cut:]) for cut in range(1, len(ROWS))))
    for _ in range(1, len(ROWS)):
        places = Places(6, 4)
        lane = connect(peer, deadline)
        assert lane.receive_rows(places, deadline) == 2
        assert places.memory == [bytearray(b"abcdef"), bytearray(b"wxyz")]
        assert lane.pending == 0
        lane.close()


def test_a_single_bulk_string_is_rows_too(play: Play, deadline: Deadline) -> None:
    places = Places(3)
    lane = connect(play(say(b"$3\r\nabc\r\n")), deadline)
    assert lane.receive_rows(places, deadline) == 1
    assert places.memory == [bytearray(b"abc")]


def test_rows_between_large_ones_arrive_in_their_places(play: Play, deadline: Deadline) -> None:
    """After a large one no more than a line is received, whatever comes next."""
    rows = [bytes([index]) * length for index, length in enumerate((70_000, 3, 200_000, 90, 65_536, 1))]
    bulks = b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in rows)
    lane = connect(play(say(b"*%d\r\n" % len(rows) + bulks + b"+" + b"x" * 500 + b"\r\n")), deadline)
    places = Places(*map(len, rows))
    assert lane.receive_rows(places, deadline) == len(rows)
    assert places.memory == rows
    lane.pending += 1
    assert lane.receive(deadline) == "x" * 500


def test_bytes_are_counted_over_connections(play: Play, deadline: Deadline) -> None:
    peer, traffic = play(say(b"+OK\r\n"), say(b"+OK\r\n")), Traffic()
    for _ in range(2):
        lane = Lane.open(Endpoint(port=peer.port), deadline, traffic)
        lane.send(("GO",), deadline)
        assert lane.receive(deadline) == "OK"
    assert traffic == Traffic(
        received=2 * len("+PONG\r\n+OK\r\n"), sent=2 * len("*1\r\n$4\r\nPING\r\n*1\r\n$2\r\nGO\r\n")
    )


@pytest.mark.parametrize(
    "reply",
    [
        b"*2\r\n$6\r\nabcdef\r\n$5\r\nvwxyz\r\n",
        b"*2\r\n$6\r\nabcdef\r\n$3\r\nxyz\r\n",
        b"*2\r\n$6\r\nabcdef\r\n$-1\r\n",
        b"*2\r\n$6\r\nabcdef\r\n-ERR no\r\n",
        b"*2\r\n$6\r\nabcdef\r\n$0\r\n\r\n",
        b"*2\r\n$6\r\nabcdef\r\n:4\r\n",
        b"*2\r\n$6\r\nabcdef\r\n*1\r\n$4\r\nwxyz\r\n",
        b"*2\r\n$6\r\nabcdef\r\n$4\r\nwxyz..",
        b"*2\r\n$6\r\nabcdef\r\n$x\r\n",
        b"$-1\r\n",
        b"+OK\r\n",
        b":1\r\n",
        b"*-1\r\n",
        b"?\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"$99999999999\r\n",
    ],
)
def test_a_reply_that_is_not_the_rows_asked_for_ends_the_connection(
    play: Play, deadline: Deadline, reply: bytes
) -> None:
    lane = connect(play(say(reply)), deadline)
    with pytest.raises(BadReply):
        lane.receive_rows(Places(6, 4), deadline)
    assert lane.closed
    with pytest.raises(ConnectionLost):
        lane.send(("GO",), deadline)


def test_an_error_reply_keeps_the_connection(play: Play, deadline: Deadline) -> None:
    lane = connect(play(say(b"-OOM too much\r\n", b"+OK\r\n")), deadline)
    lane.pending += 1
    with pytest.raises(ServerRefused) as caught:
        lane.receive_rows(Places(6), deadline)
    assert (caught.value.code, caught.value.message) == ("OOM", "too much")
    assert lane.receive(deadline) == "OK"
    assert not lane.closed


@pytest.mark.parametrize("sent", range(len(ROWS)))
def test_a_reply_cut_short_anywhere_is_a_lost_connection(play: Play, deadline: Deadline, sent: int) -> None:
    lane = connect(play(say(ROWS[:sent])), deadline)
    with pytest.raises(ConnectionLost):
        lane.receive_rows(Places(6, 4), deadline)
    assert lane.closed


@pytest.mark.parametrize("sent", [0, 1, 4, 7, 10, 14, len(ROWS) - 1])
def test_silence_anywhere_in_a_reply_is_noticed(play: Play, deadline: Deadline, sent: int) -> None:
    over = threading.Event()
    lane = connect(play(say(ROWS[:sent], wait=over)), deadline)
    with pytest.raises(TimedOut, match="silent"):
        lane.receive_rows(Places(6, 4), soon())
    assert lane.closed
    over.set()


def test_a_trickle_is_bounded_by_the_whole_deadline(play: Play, deadline: Deadline) -> None:
    over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        greet(connection)
        connection.sendall(b"$1000\r\n")
        while not over.wait(0.005):
            connection.sendall(b"x")

    lane = connect(play(trickle), deadline)
    with pytest.raises(TimedOut, match="no result within"):
        lane.receive_rows(Places(1000), Deadline(0.2, 10))
    over.set()


def test_a_peer_that_does_not_read_is_noticed_while_sending(play: Play, deadline: Deadline) -> None:
    over = threading.Event()

    def deaf(connection: socket.socket) -> None:
        greet(connection)
        over.wait(20)

    lane = Lane.open(Endpoint(port=play(deaf).port), deadline)
    with pytest.raises(TimedOut):
        lane.send(("SET", "k", memoryview(bytearray(64 << 20))), soon())
    assert lane.closed
    over.set()


def test_large_arguments_arrive_whole(play: Play, deadline: Deadline) -> None:
    body = bytes(range(256)) * 40_000
    got = bytearray()

    def collect(connection: socket.socket) -> None:
        greet(connection)
        while len(got) < len(expected):
            got.extend(connection.recv(1 << 20))
        connection.sendall(b"+OK\r\n")

    expected = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%b\r\n" % (len(body), body)
    lane = Lane.open(Endpoint(port=play(collect).port), deadline)
    lane.send(("SET", "k", memoryview(body)), deadline)
    assert lane.receive(deadline) == "OK"
    assert got == expected


def test_an_interrupt_in_the_middle_of_a_reply_closes_the_connection(play: Play, deadline: Deadline) -> None:
    lane = connect(play(say(ROWS)), deadline)

    def interrupted(index: int, length: int) -> memoryview:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lane.receive_rows(interrupted, deadline)
    assert lane.closed


def test_a_push_message_is_not_taken_for_the_reply(play: Play, deadline: Deadline) -> None:
    lane = connect(play(say(b">2\r\n+message\r\n+hello\r\n+OK\r\n")), deadline)
    assert lane.receive(deadline) == "OK"


def test_nested_bulk_strings_of_a_control_reply_are_bytes(play: Play, deadline: Deadline) -> None:
    lane = connect(play(say(b"*2\r\n$2\r\nab\r\n*1\r\n$1\r\nc\r\n")), deadline)
    assert lane.receive(deadline) == [b"ab", [b"c"]]


@pytest.mark.parametrize(
    ("username", "expected"),
    [
        (None, b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n"),
        ("me", b"*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$6\r\nsecret\r\n"),
    ],
)
def test_the_password_comes_first(
    play: Play, deadline: Deadline, username: str | None, expected: bytes
) -> None:
    got = []

    def guarded(connection: socket.socket) -> None:
        got.append(read_until(connection, b"secret\r\n"))
        connection.sendall(b"+OK\r\n")
        greet(connection)

    endpoint = Endpoint(port=play(guarded).port, username=username, password="secret")
    Lane.open(endpoint, deadline).close()
    assert got == [expected]
    assert "secret" not in repr(endpoint)


def test_a_wrong_password_is_refused(play: Play, deadline: Deadline) -> None:
    def guarded(connection: socket.socket) -> None:
        read_until(connection, b"secret\r\n")
        connection.sendall(b"-WRONGPASS no\r\n")

    with pytest.raises(ServerRefused, match="WRONGPASS"):
        Lane.open(Endpoint(port=play(guarded).port, password="secret"), deadline)


def test_nobody_at_the_port_is_a_lost_connection(deadline: Deadline) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionLost):
        Lane.open(Endpoint(port=port), deadline)


def test_a_unix_socket_is_a_lane_too(tmp_path: object, deadline: Deadline) -> None:
    path = f"{tmp_path}/s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=lambda: greet(listener.accept()[0]))
        thread.start()
        Lane.open(Endpoint(unix_socket_path=path), deadline).close()
        thread.join(20)
    with pytest.raises(ConnectionLost):
        Lane.open(Endpoint(unix_socket_path=path + "-none"), deadline)

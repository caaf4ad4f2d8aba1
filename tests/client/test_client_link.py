"""The link: which connection an exchange runs on, and what it does when that fails."""

import os
import signal
import socket
import threading
from collections.abc import Callable

import pytest
from client_peers import Clock, Peer, greet, read_until
from pionkv.client.breaker import Breaker
from pionkv.client.deadline import Deadline
from pionkv.client.endpoint import Endpoint
from pionkv.client.errors import BadReply, ConnectionLost, NotAsked, ServerRefused, Unavailable
from pionkv.client.lane import Lane
from pionkv.client.link import Link

Play = Callable[..., Peer]


def answers(*replies: bytes) -> Callable[[socket.socket], None]:
    """A script: greet, then one reply to each GO."""

    def script(connection: socket.socket) -> None:
        greet(connection)
        for reply in replies:
            read_until(connection, b"GO\r\n")
            connection.sendall(reply)

    return script


def go(lane: Lane, deadline: Deadline) -> object:
    lane.send(("GO",), deadline)
    return lane.receive(deadline)


def link_to(peer: Peer, breaker: Breaker | None = None) -> Link:
    return Link(Endpoint(port=peer.port), total=10, silence=5, connect=5, breaker=breaker)


def test_a_connection_is_kept_between_exchanges(play: Play) -> None:
    peer = play(answers(b":1\r\n", b":2\r\n"))
    link = link_to(peer)
    assert [link.exchange(go), link.exchange(go)] == [1, 2]
    assert peer.connections == 1


def test_a_kept_connection_that_ended_is_replaced_within_the_call(play: Play) -> None:
    peer = play(answers(b":1\r\n"), answers(b":2\r\n"))
    link = link_to(peer)
    assert [link.exchange(go), link.exchange(go)] == [1, 2]
    assert peer.connections == 2


def test_a_new_connection_that_ends_is_not_tried_again(play: Play) -> None:
    peer = play(answers(), answers(b":2\r\n"))
    with pytest.raises(ConnectionLost):
        link_to(peer).exchange(go)
    assert peer.connections == 1


def test_a_refusal_keeps_the_connection_unless_replies_are_outstanding(play: Play) -> None:
    peer = play(answers(b"-ERR a\r\n", b":2\r\n", b"-ERR b\r\n", b":4\r\n"), answers(b":5\r\n"))
    link = link_to(peer)

    def twice(lane: Lane, deadline: Deadline) -> object:
        lane.send(("GO",), deadline)
        lane.send(("GO",), deadline)
        return lane.receive(deadline)

    with pytest.raises(ServerRefused, match="a"):
        link.exchange(go)
    assert link.exchange(go) == 2
    with pytest.raises(ServerRefused, match="b"):
        link.exchange(twice)
    assert link.exchange(go) == 5
    assert peer.connections == 2


@pytest.mark.parametrize("error", [BadReply("no"), ValueError("ours"), KeyboardInterrupt()])
def test_a_connection_in_an_unknown_state_is_never_used_again(play: Play, error: BaseException) -> None:
    peer = play(answers(b":1\r\n"), answers(b":2\r\n"))
    link = link_to(peer)

    def broken(lane: Lane, deadline: Deadline) -> object:
        raise error

    with pytest.raises(type(error)):
        link.exchange(broken)
    assert link.exchange(go) == 2
    assert peer.connections == 2


def test_a_failing_server_is_left_alone_and_probed_later(play: Play, clock: Clock) -> None:
    peer = play(answers(), answers(b":2\r\n", b":3\r\n"))
    link = link_to(peer, breaker=Breaker(1, 60, clock=clock))
    with pytest.raises(ConnectionLost):
        link.exchange(go)
    with pytest.raises(NotAsked):
        link.exchange(go)
    assert peer.connections == 1
    clock.now += 1
    assert link.exchange(go) == 2
    assert link.exchange(go) == 3


def test_a_server_that_does_not_know_us_is_unavailable(play: Play) -> None:
    def guarded(connection: socket.socket) -> None:
        read_until(connection, b"PING\r\n")
        connection.sendall(b"-NOAUTH Authentication required.\r\n")

    with pytest.raises(Unavailable, match="NOAUTH"):
        link_to(play(guarded)).exchange(go)


def test_a_hung_server_does_not_get_the_whole_deadline_to_greet(play: Play) -> None:
    over = threading.Event()
    peer = play(lambda connection: over.wait(20))
    link = Link(Endpoint(port=peer.port), total=100, silence=100, connect=0.05)
    with pytest.raises(Unavailable):
        link.exchange(go)
    over.set()


def test_the_first_question_does_not_wait_for_the_greeting(play: Play) -> None:
    def together(connection: socket.socket) -> None:
        assert read_until(connection, b"GO\r\n").startswith(b"*1\r\n$4\r\nPING\r\n")
        connection.sendall(b"+PONG\r\n:1\r\n")
        read_until(connection, b"GO\r\n")
        connection.sendall(b":2\r\n")

    link = link_to(play(together))
    assert [link.exchange(go), link.exchange(go)] == [1, 2]


def test_much_is_not_sent_to_a_server_that_has_not_answered(play: Play) -> None:
    over, got = threading.Event(), bytearray()

    def hung(connection: socket.socket) -> None:
        connection.settimeout(20)
        while piece := connection.recv(1 << 16):
            got.extend(piece)
        over.set()

    def store(lane: Lane, deadline: Deadline) -> object:
        lane.send(("SET", "k", memoryview(bytearray(1 << 20))), deadline)
        return lane.receive(deadline)

    link = Link(Endpoint(port=play(hung).port), total=100, silence=100, connect=0.05)
    with pytest.raises(Unavailable):
        link.exchange(store)
    assert over.wait(20) and got == b"*1\r\n$4\r\nPING\r\n"


def test_exchanges_of_many_threads_do_not_mix(play: Play) -> None:
    replies = [b":%d\r\n" % number for number in range(40)]
    link = link_to(play(answers(*replies)))
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(link.exchange(go))) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(got, key=int) == list(range(40))  # type: ignore[call-overload]


def test_after_a_fork_connection_and_lock_are_left_to_the_parent(play: Play) -> None:
    link = link_to(play(answers(b":1\r\n", b":2\r\n"), answers(b":7\r\n")))
    assert link.exchange(go) == 1
    entered, over, got = threading.Event(), threading.Event(), []

    def hold(lane: Lane, deadline: Deadline) -> object:
        entered.set()
        over.wait(20)
        return go(lane, deadline)

    parent = threading.Thread(target=lambda: got.append(link.exchange(hold)))
    parent.start()
    assert entered.wait(20)
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            os._exit(int(str(link.exchange(go))))
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    over.set()
    parent.join(20)
    assert (os.waitstatus_to_exitcode(status), got) == (7, [2])

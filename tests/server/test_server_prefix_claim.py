"""KV.PREFIX.CLAIM and LOOKUP … WAIT: one computes, the others wait, and the next takes over."""

from __future__ import annotations

import socket
import threading

import pytest

DIM = 32
SECONDS = 30


def fill(wire, namespace="n"):
    wire.command("KV.PREFIX.REGISTER", namespace, DIM, "fp16")
    for side in "kv":
        assert wire.command("V.STOREBATCH", f"{namespace}_p{side}", 0, 0, 1, bytes(4 * DIM)) == "OK"


class Waiting:
    """A LOOKUP that waits, on a connection of its own; `answer` is what came of it."""

    def __init__(self, server, milliseconds=60_000):
        self.wire = server.connect()
        self.answer = None
        self.wire.command("PING")
        self._thread = threading.Thread(target=self._ask, args=(milliseconds,))
        self._thread.start()

    def _ask(self, milliseconds):
        self.answer = self.wire.command("KV.PREFIX.LOOKUP", "n", "WAIT", milliseconds)

    def end(self):
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        return self.answer

    @property
    def waits(self):
        return self._thread.is_alive()


def until_waiting(server, count):
    """Until the server works on so many lookups."""
    while server.call(lambda app: sum(c._task is not None for c in app.service.connections.values())) < count:
        pass


def test_one_claims_and_the_others_are_told(server) -> None:
    first, second = server.connect(), server.connect()
    assert first.command("KV.PREFIX.CLAIM", "n", 60_000) == "CLAIMED"
    assert second.command("KV.PREFIX.CLAIM", "n", 60_000) == "HELD"
    assert first.command("KV.PREFIX.CLAIM", "n", 60_000) == "CLAIMED", "again: the lease begins anew"
    assert second.command("KV.PREFIX.CLAIM", "m", 60_000) == "CLAIMED"
    assert second.command("KV.PREFIX.CLAIM", "n", 0) == "OK"
    assert second.command("KV.PREFIX.CLAIM", "n", 60_000) == "HELD", "only who has it can give it back"
    assert first.command("KV.PREFIX.CLAIM", "n", 0) == "OK"
    assert second.command("KV.PREFIX.CLAIM", "n", 60_000) == "CLAIMED"
    fill(first)
    assert first.command("KV.PREFIX.CLAIM", "n", 60_000) == "HIT"


def test_nobody_waits_for_what_nobody_computes(wire) -> None:
    assert wire.command("KV.PREFIX.LOOKUP", "n", "WAIT", 600_000) == "MISS"
    fill(wire)
    assert wire.command("KV.PREFIX.LOOKUP", "n", "TOKENS", 5, "WAIT", 600_000) == "HIT"


def test_a_wait_ends_when_it_is_published(server) -> None:
    first = server.connect()
    first.command("KV.PREFIX.CLAIM", "n", 60_000)
    waiting = [Waiting(server) for _ in range(5)]
    until_waiting(server, 5)
    assert all(each.waits for each in waiting)
    fill(first)
    assert [each.end() for each in waiting] == ["HIT"] * 5


@pytest.mark.parametrize("how", ["given back", "connection", "reset"])
def test_a_wait_ends_with_the_claim_and_one_takes_over(server, how) -> None:
    first = server.connect()
    first.command("KV.PREFIX.CLAIM", "n", 60_000)
    waiting = [Waiting(server) for _ in range(3)]
    until_waiting(server, 3)
    if how == "given back":
        first.command("KV.PREFIX.CLAIM", "n", 0)
    elif how == "reset":
        first.command("RESET")
    else:
        first.socket.shutdown(socket.SHUT_RDWR)
        first.close()
    assert [each.end() for each in waiting] == ["MISS"] * 3
    answers = [each.wire.command("KV.PREFIX.CLAIM", "n", 60_000) for each in waiting]
    assert answers == ["CLAIMED", "HELD", "HELD"]


def test_a_lease_runs_out(server) -> None:
    first, second = server.connect(), server.connect()
    first.command("KV.PREFIX.CLAIM", "n", 50)
    assert second.command("KV.PREFIX.LOOKUP", "n", "WAIT", 600_000) == "MISS"
    assert second.command("KV.PREFIX.CLAIM", "n", 60_000) == "CLAIMED"
    assert first.command("KV.PREFIX.CLAIM", "n", 60_000) == "HELD"


def test_a_wait_has_an_end(server) -> None:
    server.connect().command("KV.PREFIX.CLAIM", "n", 60_000)
    waiting = server.connect()
    assert waiting.command("KV.PREFIX.LOOKUP", "n", "WAIT", 30) == "MISS"
    assert waiting.command("KV.PREFIX.CLAIM", "n", 60_000) == "HELD"


def test_one_who_waits_and_leaves_disturbs_nobody(server) -> None:
    first = server.connect()
    first.command("KV.PREFIX.CLAIM", "n", 60_000)
    leaver = server.connect()
    leaver.send(b"KV.PREFIX.LOOKUP n WAIT 600000\r\n")
    until_waiting(server, 1)
    leaver.close()
    fill(first)
    assert first.command("KV.PREFIX.LOOKUP", "n") == "HIT"

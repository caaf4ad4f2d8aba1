"""Frames as hostile or slow peers send them, and replies that nobody reads, over real sockets."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

MIB = 1 << 20
RESP_NOISE = (
    b"",
    b"\r\n",
    b"*",
    b"$",
    b"*2\r\n",
    b"$4\r\n",
    b"PING\r\n",
    b"-1",
    b"0",
    b"\x00",
    b"\xff",
    b"'",
    b'"',
)

# A blob that looks like a protocol of its own.
BLOB = b"\r\n$3\r\n*1\r\n+OK\r\n\x00\xff".ljust(128, b"\r")
TALK = [
    (("V.CREATE", "split", 64, "VQUANT", "fp16"), b":%d\r\n"),
    (("V.STOREBATCH", "split", 0, 0, 1, BLOB, "FMT", "F16"), b"+OK\r\n"),
    (("V.FETCH", "split", 0, "RANGE", 0, 1, "FMT", "NATIVE"), b"$128\r\n" + BLOB + b"\r\n"),
    (("V.STOREBATCH", "split", 0, 9, 1, BLOB, "FMT", "F16"), b"-ERR V.STOREBATCH: gap (layer holds 1 rows"),
    (("V.FETCH", "split", "BATCH", 0, 1, 2, "FMT", "RAW"), b"*2\r\n$128\r\n" + BLOB + b"\r\n$-1\r\n"),
]


@pytest.fixture(scope="module")
def talk(shared_server, wire_class, encode):
    """The bytes of a conversation, and the replies that it has when it comes whole."""
    asked = b"".join(piece for arguments, _ in TALK for piece in encode(*arguments))
    with wire_class(shared_server.port) as wire:
        answered = exchange(wire, [asked])
    for _, reply in TALK[1:]:
        assert reply in answered
    return asked, answered


def exchange(wire, packets) -> bytes:
    for packet in packets:
        wire.send(packet)
    wire.socket.shutdown(socket.SHUT_WR)
    return wire.read_to_close()


def test_one_byte_a_packet(talk, shared_server, wire_class) -> None:
    asked, answered = talk
    with wire_class(shared_server.port) as wire:
        assert exchange(wire, [asked[i : i + 1] for i in range(len(asked))]) == answered


def test_split_at_every_byte(talk, shared_server, wire_class) -> None:
    """Among them every place within a CRLF, a header and the blob."""
    asked, answered = talk
    for cut in range(1, len(asked)):
        with wire_class(shared_server.port) as wire:
            assert exchange(wire, [asked[:cut], asked[cut:]]) == answered, cut


def test_pipelines_of_thousands(shared_server, wire_class, encode) -> None:
    """Rows, errors and small commands mixed: answered in order, none lost."""
    row = bytes(range(64))
    turns = 3000
    with wire_class(shared_server.port) as wire:
        wire.ok("V.CREATE", "pipe", 16, "VQUANT", "fp32")
        for turn in range(turns):
            wire.send(
                b"".join(
                    piece
                    for command in (
                        ("V.STOREBATCH", "pipe", 0, turn, 1, row),
                        ("V.FETCH", "pipe", 0, turn),
                        ("V.FETCH", "pipe", 0, turn + 1),
                        ("ECHO", turn),
                    )
                    for piece in encode(*command)
                )
            )
        for turn in range(turns):
            assert wire.read() == b"OK"
            assert wire.read() == row
            assert str(wire.read()).endswith(f"are not stored (layer holds {turn + 1})")
            assert wire.read() == b"%d" % turn


BROKEN = {
    "blob shorter than promised": [
        b"*6\r\n$12\r\nV.STOREBATCH\r\n$1\r\nb\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n1\r\n$32\r\n"
    ],
    "name counted in characters": ["*3\r\n$8\r\nV.CREATE\r\n$4\r\nnäme\r\n$2\r\n16\r\n".encode()],
    "bulk over the limit": [b"*2\r\n$4\r\nECHO\r\n$536870913\r\n"],
    "negative bulk": [b"*2\r\n$4\r\nECHO\r\n$-2\r\n"],
    "leading zeros": [b"*2\r\n$4\r\nECHO\r\n$007\r\nabcdefg\r\n"],
    "too many arguments": [b"*1048577\r\n"],
    "no dollar": [b"*2\r\n$4\r\nECHO\r\n+5\r\n"],
    "no CRLF after a bulk": [b"*2\r\n$4\r\nECHO\r\n$1\r\naXY"],
    "an inline line without end": [b"x" * (64 * 1024)],
    "unbalanced quotes": [b'ECHO "open\r\n'],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_frame_ends_its_own_connection(name, shared_server, wire_class) -> None:
    """One protocol error and a close; the session it was about and other connections are as before."""
    with wire_class(shared_server.port) as other, wire_class(shared_server.port) as wire:
        other.ok("V.CREATE", "b", 16, "VQUANT", "fp16")
        before = other.ok("V.INFO", "b")
        for packet in BROKEN[name]:
            wire.send(packet)
        if name == "blob shorter than promised":
            wire.send(b"x" * 32 + b"*1\r\n$4\r\nPING\r\n")
        answer = wire.read_to_close()
        assert answer.startswith(b"-ERR Protocol error: ") and answer.count(b"\r\n") == 1, answer
        assert other.ok("V.INFO", "b") == before
        assert other.ok("PING") == b"PONG"


@pytest.mark.parametrize("name", ["an inline line without end", "bulk over the limit"])
def test_the_error_reaches_a_peer_that_has_sent_much_more(name, shared_server, wire_class) -> None:
    """Closing with unread input would reset the connection, and lose the error."""
    for _ in range(20):
        with wire_class(shared_server.port) as wire:
            wire.send(BROKEN[name][0] + b"x" * (8 * MIB))
            assert wire.read_to_close().startswith(b"-ERR Protocol error: ")


def test_a_peer_that_sends_on_after_an_error_is_cut_off(shared_server, wire_class) -> None:
    with wire_class(shared_server.port) as wire, wire_class(shared_server.port) as other:
        wire.send(b"*1048577\r\n")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(10_000):
                wire.send(bytes(MIB))
        assert len(other.ok("CLIENT", "LIST").splitlines()) == 1


@settings(max_examples=300, deadline=None)
@given(
    data=st.lists(st.one_of(st.sampled_from(RESP_NOISE), st.binary(max_size=20)), max_size=30).map(b"".join)
)
def test_noise_is_answered_or_refused(data, shared_server, wire_class) -> None:
    """Whatever comes, the server answers in whole replies and closes when the peer does."""
    with wire_class(shared_server.port) as wire:
        answer = exchange(wire, [data])
        assert not answer or answer.endswith(b"\r\n")
        if b"-ERR Protocol error: " in answer:
            assert answer[answer.rindex(b"-ERR Protocol error: ") :].count(b"\r\n") == 1
    with wire_class(shared_server.port) as wire:
        assert wire.ok("PING") == b"PONG"


SILENT = 200


def test_clients_that_never_read(server_process, wire_class) -> None:
    """200 of them ask for 24 MB each: others are served, the memory stays, nothing is evicted."""
    rows, layers = 1_000, 6
    blob = memoryview(struct.pack("<8f", *range(8)) * (rows * 64))
    with wire_class(server_process.port) as wire:
        wire.ok("KV.PREFIX.REGISTER", "held", 512, "fp16")
        for side in ("held_pk", "held_pv"):
            for layer in range(layers):
                wire.ok("V.STOREBATCH", side, layer, 0, rows, blob)
        expected = wire.ok("V.FETCH", "held_pk", "BATCH", 0, rows)
        before = server_process.anonymous_bytes()
        silent = [wire_class(server_process.port) for _ in range(SILENT)]
        for peer in silent:
            peer.send(b"V.FETCH held_pk BATCH 0 %d\r\nV.FETCH held_pv BATCH 0 %d\r\n" % (rows, rows))
        for turn in range(1000):
            assert wire.ok("ECHO", turn) == b"%d" % turn
        assert wire.ok("V.FETCH", "held_pk", "BATCH", 0, rows) == expected
        while server_process.anonymous_bytes() > before + 64 * MIB:
            assert wire.ok("PING") == b"PONG"
        assert wire.ok("KV.PREFIX.LOOKUP", "held") == b"HIT"
        assert b"vstore_evictions:0\r\n" in wire.ok("KV.PREFIX.INFO")
        assert silent[0].read() == expected
        for peer in silent:
            peer.close()
        while len(wire.ok("CLIENT", "LIST").splitlines()) > 1:
            pass

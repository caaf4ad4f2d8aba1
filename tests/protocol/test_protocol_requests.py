"""Dialogues as they are on the wire: what a server's parser makes of them, however they are cut."""

from __future__ import annotations

import pytest
from pionkv.protocol.errors import ProtocolError, UsageError
from pionkv.protocol.events import NEED_DATA, Command
from pionkv.protocol.parser import RequestParser
from protocol_dialogue import BY_HAND, command, commands, one_by_one, pieces

GOOD = [
    pytest.param(b"*1\r\n$4\r\nPING\r\n", [[b"PING"]], id="ping"),
    pytest.param(b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", [[b"ECHO", b""]], id="empty argument"),
    pytest.param(b"*1\r\n$0\r\n\r\n", [[b""]], id="empty name"),
    pytest.param(b"*2\r\n$4\r\nECHO\r\n$4\r\n\r\n\r\n\r\n", [[b"ECHO", b"\r\n\r\n"]], id="line ends inside"),
    pytest.param(
        b"*2\r\n$4\r\nECHO\r\n$9\r\n*1\r\n$4\r\nP\r\n", [[b"ECHO", b"*1\r\n$4\r\nP"]], id="frame inside"
    ),
    pytest.param(b"*2\r\n$4\r\nECHO\r\n$2\r\n\x00\xff\r\n", [[b"ECHO", b"\x00\xff"]], id="any byte"),
    pytest.param(b"*0\r\n*1\r\n$4\r\nPING\r\n", [[b"PING"]], id="an empty array is skipped"),
    pytest.param(b"*-1\r\n*-77\r\n*1\r\n$4\r\nPING\r\n", [[b"PING"]], id="a negative array is skipped"),
    pytest.param(b"PING\r\n", [[b"PING"]], id="inline"),
    pytest.param(b"PING\n", [[b"PING"]], id="inline, LF alone"),
    pytest.param(b"\r\n\n  \r\nPING\r\n", [[b"PING"]], id="blank lines are skipped"),
    pytest.param(b"$4\r\nPING\r\n", [[b"$4"], [b"PING"]], id="a bulk string alone is two inline commands"),
    pytest.param(
        b"*1\r\n$4\r\nPING\r\nECHO a\r\n*2\r\n$4\r\nECHO\r\n$1\r\nb\r\n",
        [[b"PING"], [b"ECHO", b"a"], [b"ECHO", b"b"]],
        id="array, inline, array",
    ),
    pytest.param(
        command(b"SET", b"k", b"v") * 20 + command(b"PING"),
        [[b"SET", b"k", b"v"]] * 20 + [[b"PING"]],
        id="pipeline",
    ),
    pytest.param(
        command(b"SET", b"*1", b"~2") * 3 + command(b"SET", b"\r", b"=3") + command(b"KEYS", b"*12345") * 3,
        [[b"SET", b"*1", b"~2"]] * 3 + [[b"SET", b"\r", b"=3"]] + [[b"KEYS", b"*12345"]] * 3,
        id="pipeline of arguments that look like frames",
    ),
]

BAD = [
    pytest.param(b"*1\r\n$536870913\r\n", "invalid bulk length", id="bulk over the limit"),
    pytest.param(b"*1\r\n$-2\r\n", "invalid bulk length", id="bulk negative"),
    pytest.param(b"*1\r\n$-1\r\n", "invalid bulk length", id="bulk null"),
    pytest.param(b"*1\r\n$007\r\n", "invalid bulk length", id="bulk leading zeros"),
    pytest.param(b"*1\r\n$+4\r\n", "invalid bulk length", id="bulk plus"),
    pytest.param(b"*1\r\n$-0\r\n", "invalid bulk length", id="bulk minus zero"),
    pytest.param(b"*1\r\n$4 \r\n", "invalid bulk length", id="bulk space"),
    pytest.param(b"*1\r\n$\r\n", "invalid bulk length", id="bulk no digits"),
    pytest.param(b"*1\r\n$0x4\r\n", "invalid bulk length", id="bulk hex"),
    pytest.param(b"*1\r\n$1_0\r\n", "invalid bulk length", id="bulk underscore"),
    pytest.param(b"*1\r\n$99999999999999999999\r\n", "invalid bulk length", id="bulk twenty digits"),
    pytest.param("*1\r\n$٤\r\n".encode(), "invalid bulk length", id="bulk other digits"),
    pytest.param(b"*1\r\n$4\nPING", "invalid bulk length", id="bulk LF alone"),
    pytest.param(b"*1\r\n$4\rXPING", "invalid bulk length", id="bulk CR alone"),
    pytest.param(b"*1\r\n$4\r\r\nPING", "invalid bulk length", id="bulk two CR"),
    pytest.param(b"*1048577\r\n", "invalid multibulk length", id="array over the limit"),
    pytest.param(b"*01\r\n", "invalid multibulk length", id="array leading zero"),
    pytest.param(b"*+1\r\n", "invalid multibulk length", id="array plus"),
    pytest.param(b"*-0\r\n", "invalid multibulk length", id="array minus zero"),
    pytest.param(b"*\r\n", "invalid multibulk length", id="array no digits"),
    pytest.param(b"*x\r\n", "invalid multibulk length", id="array letter"),
    pytest.param(b"*1\n$4\nPING\n", "invalid multibulk length", id="array LF alone"),
    pytest.param(b"*1\rX", "invalid multibulk length", id="array CR alone"),
    pytest.param(b"*" + b"1" * 70_000, "invalid multibulk length", id="array without end"),
    pytest.param(b"*1\r\nPING\r\n", "expected '$', got 'P'", id="no bulk"),
    pytest.param(b"*1\r\n:4\r\n", "expected '$', got ':'", id="integer"),
    pytest.param(b"*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'", id="nested"),
    pytest.param(b"*1\r\n\r\n", "expected '$', got ' '", id="line end for a bulk"),
    pytest.param(b"*1\r\n$4\r\nPINGxx", "expected CRLF after a bulk string", id="no CRLF"),
    pytest.param(b"*1\r\n$4\r\nPING\n", "expected CRLF after a bulk string", id="LF after a body"),
    pytest.param(b"*1\r\n$4\r\nPING\r\r", "expected CRLF after a bulk string", id="two CR after a body"),
    pytest.param(b"*1\r\n$3\r\nPING\r\n", "expected CRLF after a bulk string", id="length too short"),
    pytest.param(
        "*2\r\n$4\r\nECHO\r\n$4\r\nnaïf\r\n".encode(),
        "expected CRLF after a bulk string",
        id="letters counted",
    ),
    pytest.param(b"*1\r\n$5\r\nPING\r\n*1\r\n", "expected CRLF after a bulk string", id="length too long"),
    pytest.param(b'ECHO "a\r\n', "unbalanced quotes in request", id="quotes"),
    pytest.param(b"A" * 65_536, "too big inline request", id="inline too long"),
]


@pytest.mark.parametrize("options", [{}, BY_HAND], ids=["batches", "by hand"])
@pytest.mark.parametrize(("wire", "expected"), GOOD)
def test_every_split_point(wire: bytes, expected: list, options: dict) -> None:
    assert commands(wire, **options) == expected
    for cut in range(1, len(wire)):
        assert commands(*pieces(wire, [cut]), **options) == expected, cut
    assert commands(*one_by_one(wire), **options) == expected


@pytest.mark.parametrize(("wire", "text"), BAD)
def test_broken_frames(wire: bytes, text: str) -> None:
    before = command(b"PING")
    for expected, start in ([f"! {text}"], b""), ([[b"PING"], [b"PING"], f"! {text}"], before * 2):
        assert commands(start + wire) == expected
        assert commands(*one_by_one(start + wire)) == expected
        assert commands(start + wire + before) == expected


@pytest.mark.parametrize(("wire", "text"), [case for case in BAD if len(case.values[0]) < 200])
def test_broken_frames_at_every_split_point(wire: bytes, text: str) -> None:
    for cut in range(1, len(wire)):
        assert commands(*pieces(wire, [cut])) == [f"! {text}"], cut


@pytest.mark.parametrize(("wire", "text"), BAD)
def test_a_broken_frame_is_told_at_its_last_byte(wire: bytes, text: str) -> None:
    """Nothing has to follow for the error to be seen: a peer that waits for it is not left hanging."""
    parser = RequestParser()
    view = memoryview(wire)
    with pytest.raises(ProtocolError, match=text.replace("$", r"\$").replace("*", r"\*")):
        while view:
            buffer = parser.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count], view = view[:count], view[count:]
            parser.received(count)
            assert parser.next_event() is NEED_DATA


def test_after_a_broken_frame_nothing_is_understood() -> None:
    parser = RequestParser()
    parser.get_buffer()[:4] = b"*x\r\n"
    parser.received(4)
    for _ in range(3):
        with pytest.raises(ProtocolError, match="invalid multibulk length"):
            parser.next_event()
        parser.get_buffer()[:6] = b"PING\r\n"
        parser.received(6)


def test_commands_before_a_broken_frame_are_answered() -> None:
    assert commands(command(b"PING") * 100 + b"*1\r\n$-5\r\n") == [[b"PING"]] * 100 + [
        "! invalid bulk length"
    ]


def test_a_pipeline_of_thousands() -> None:
    many = [[b"SET", b"key:%d" % i, b"x" * (i % 50)] for i in range(20_000)]
    wire = b"".join(command(*args) for args in many)
    assert commands(wire) == many
    assert commands(*(wire[i : i + 1337] for i in range(0, len(wire), 1337))) == many


def test_the_list_of_arguments_belongs_to_the_caller() -> None:
    parser = RequestParser()
    wire = command(b"A", b"1") + command(b"B", b"2")
    parser.get_buffer()[: len(wire)] = wire
    parser.received(len(wire))
    first = parser.next_event()
    assert isinstance(first, Command)
    first.args.clear()
    assert parser.next_event() == Command([b"B", b"2"])


def test_received_must_fit() -> None:
    parser = RequestParser()
    with pytest.raises(UsageError):
        parser.received(1)
    size = len(parser.get_buffer())
    with pytest.raises(UsageError):
        parser.received(size + 1)
    parser.get_buffer()
    with pytest.raises(UsageError):
        parser.received(-1)
    parser.get_buffer()
    parser.received(0)
    assert parser.next_event() is NEED_DATA
    with pytest.raises(UsageError):
        parser.received(0)


def test_no_event_before_the_first_byte() -> None:
    assert RequestParser().next_event() is NEED_DATA

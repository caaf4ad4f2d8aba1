"""The binary lane's frames: what becomes a command, what is refused, how replies are spelled."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from frame_wire import AUTH, AUTH_USER, FUSED, PING, frame, named
from hypothesis import given, settings
from hypothesis import strategies as st
from pionkv.protocol import frame_bodies, reply
from pionkv.protocol.errors import ProtocolError
from pionkv.protocol.events import NEED_DATA, BulkStart, Command
from pionkv.protocol.frames import FrameParser, FrameReplies, Refusal, read_header
from pionkv.protocol.limits import Limits
from protocol_dialogue import one_by_one, pieces

SHAPE = struct.Struct("<HHHHII")


def fused(
    *, layer: int = 3, heads: int = 4, dim: int = 2, kv: int = 2, queries: int = 1, rows: int = 5
) -> bytes:
    tensors = [heads * queries * dim, kv * rows * dim, kv * rows * dim]
    blobs = b"".join(bytes([number + 1]) * (4 * size) for number, size in enumerate(tensors))
    return named(b"s", SHAPE.pack(layer, heads, dim, kv, queries, rows) + blobs + bytes(range(heads)))


def parse(*chunks: bytes, **options: Any) -> list[Any]:
    """The words of commands, and the texts of refusals; a broken frame ends it."""
    parser, seen = FrameParser(**options), []
    for chunk in chunks:
        while chunk:
            buffer = parser.get_buffer()
            count = min(len(buffer), len(chunk))
            buffer[:count] = chunk[:count]
            chunk = chunk[count:]
            parser.received(count)
            while (event := next_of(parser)) is not NEED_DATA:
                if isinstance(event, ProtocolError):
                    return [*seen, f"! {event}"]
                if isinstance(event, BulkStart):
                    parser.collect()
                elif isinstance(event, Command):
                    seen.append([bytes(word) for word in event.args])  # type: ignore[arg-type]
                else:
                    assert isinstance(event, Refusal)
                    seen.append(str(event.error))
    return seen


def next_of(parser: FrameParser) -> Any:
    try:
        return parser.next_event()
    except ProtocolError as error:
        return error


def spelled(*chunks: bytes) -> bytes:
    replies = FrameReplies()
    return b"".join(bytes(piece) for chunk in chunks for piece in replies.feed(chunk))


def test_the_opcodes_become_their_commands() -> None:
    body = fused()
    wire = frame(PING) + frame(AUTH, b"a b") + frame(AUTH_USER, named(b"eve", b"pw")) + frame(FUSED, body)
    blobs = [bytes([1]) * 32, bytes([2]) * 80, bytes([3]) * 80, bytes(range(4))]
    words = [b"ATTEND.PREFIX.QUERY_FUSED", b"s", b"3", b"4", b"2", b"5", b"2", *blobs]
    expected = [[b"PING"], [b"AUTH", b"a b"], [b"AUTH", b"eve", b"pw"], words]
    assert parse(wire) == parse(*one_by_one(wire)) == expected
    assert parse(frame(FUSED, body + struct.pack("<I", 512))) == [[*words, b"512"]]
    assert parse(frame(FUSED, fused(rows=0))) == [[*words[:5], b"0", b"2", blobs[0], b"", b"", blobs[3]]]


def test_the_opcodes_of_attend_become_their_commands() -> None:
    number = struct.Struct("<H").pack
    assert parse(frame(0x20, named(b"s", number(8) + number(4)))) == [[b"ATTEND.CREATE", b"s", b"8", b"4"]]
    (text,) = parse(frame(0x20, named(b"s", number(8) + number(4) + b"\1")))
    assert text == "ERR ATTEND_CREATE: formats are chosen with the command ATTEND.CREATE"
    rows = named(b"s", number(2) + struct.pack("<I", 5) + b"rows")
    assert parse(frame(0x21, rows)) == [[b"ATTEND.STORE", b"s", b"2", b"5", b"rows"]]
    assert parse(frame(0x22, named(b"s", number(2)))) == [[b"ATTEND.FINALIZE", b"s", b"2"]]
    query = named(b"s", number(2) + number(9) + b"query")
    assert parse(frame(0x23, query)) == [[b"ATTEND.QUERY", b"s", b"2", b"9", b"query"]]


def test_a_large_body_is_announced_and_cut_into_words_without_a_copy() -> None:
    body = fused(heads=32, dim=128, kv=8, rows=600)
    whole = frame(FUSED, body) + frame(PING)
    assert parse(whole) == parse(*pieces(whole, (3, 7, 100, 70_000, len(whole) - 3)))
    parser = FrameParser()
    parser.get_buffer()[:7] = whole[:7]
    parser.received(7)
    event = parser.next_event()
    assert event == BulkStart([], len(body))
    tracemalloc.start()
    parser.collect()
    sent = 0
    while sent < len(body):
        room = parser.get_buffer()
        room[:] = body[sent : sent + len(room)]
        parser.received(len(room))
        sent += len(room)
    command = parser.next_event()
    assert isinstance(command, Command) and len(command.args) == 11
    assert tracemalloc.get_traced_memory()[1] < 1.5 * len(body)
    tracemalloc.stop()


def test_a_frame_that_is_no_command_is_refused_by_name_and_the_next_one_is_read() -> None:
    wire = frame(0x99, b"x" * 100_000) + frame(0x01, b"abc") + frame(PING, b"?") + frame(PING)
    unknown, foreign, longer, ping = parse(wire)
    assert parse(*pieces(wire, (50, 50_000))) == [unknown, foreign, longer, ping]
    assert unknown == "ERR unknown opcode 0x99" and "0x01 (KV_STORE)" in foreign
    assert longer == "ERR PING: 1 bytes after the body's last field" and ping == [b"PING"]


@pytest.mark.parametrize("cut", range(0, len(fused()), 7))
def test_a_body_that_ends_early_says_what_is_missing(cut: int) -> None:
    (text,) = parse(frame(FUSED, fused()[:cut]))
    assert text.startswith("ERR ATTEND_PREFIX_QUERY_FUSED: ") and " needs " in text


def test_limits_are_checked_on_the_header() -> None:
    limits = Limits(bulk_bytes=1000, unauthenticated_bulk_bytes=10)
    header = struct.pack("<HBI", 0xCA5E, PING, 1001)
    assert parse(header, limits=limits) == ["! frame of 1001 bytes, at most 1000 are taken"]
    stranger = struct.pack("<HBI", 0xCA5E, AUTH, 11)
    assert parse(stranger, limits=limits, authenticated=False) == [
        "! unauthenticated frame of 11 bytes, at most 10 are taken"
    ]
    assert parse(b"*1\r\n$4\r\nPING\r\n") == parse(b"*1") == ["! a frame begins with 0xCA5E, not 0x312A"]
    with pytest.raises(ProtocolError, match="at most 5"):
        read_header(struct.pack("<HBI", 0xCA5E, 0, 6), 5)


FRAMES = st.builds(frame, st.one_of(st.just(FUSED), st.integers(0, 255)), st.binary(max_size=60))


@settings(max_examples=300)
@given(
    st.lists(st.one_of(st.binary(max_size=60), FRAMES), max_size=6),
    st.lists(st.integers(0, 300), max_size=5),
)
def test_garbage_is_understood_or_breaks_the_framing_however_it_is_cut(
    parts: list[bytes], cuts: list[int]
) -> None:
    wire = b"".join(parts)
    assert parse(wire) == parse(*pieces(wire, [cut for cut in cuts if cut < len(wire)]))


def test_replies_are_spelled_as_frames() -> None:
    said = [
        (reply.OK, frame(0)),
        (reply.bulk(b"rows\r\n"), frame(0, b"rows\r\n")),
        (reply.bulk(b""), frame(0)),
        (reply.integer(7), frame(0, struct.pack("<q", 7))),
        (reply.null(2) + reply.null_array(2) + b"*0\r\n", frame(1) * 3),
        (reply.error("ERR", "no such thing"), frame(2, b"ERR no such thing")),
        (reply.error("COLDMISS", "warm it"), frame(3, b"COLDMISS warm it")),
        (reply.bulk(bytes(200_000)), frame(0, bytes(200_000))),
    ]
    wire, frames = b"".join(a for a, _ in said), b"".join(b for _, b in said)
    assert spelled(wire) == spelled(*one_by_one(wire[:400]), wire[400:]) == frames


def test_what_a_client_writes_is_what_the_server_reads() -> None:
    beginning = frame_bodies.query_fused_beginning(b"s", 3, 4, 2, 2, 1, 5)
    assert fused().startswith(beginning)
    assert frame_bodies.window_field(None) == b"" and frame_bodies.window_field(9) == struct.pack("<I", 9)
    for user in (None, "eve"):
        ((*_, password),) = parse(frame(*frame_bodies.auth_body(user, "pw")))
        assert password == b"pw"

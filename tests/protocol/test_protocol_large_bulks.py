"""Large arguments: announced before they arrive, and written where the caller says."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pionkv.protocol.errors import ProtocolError, UsageError
from pionkv.protocol.events import NEED_DATA, Body, BulkMore, BulkStart, Command
from pionkv.protocol.intake import LARGE_BULK, MAP_FROM
from pionkv.protocol.limits import MIB, Limits
from pionkv.protocol.parser import RequestParser
from protocol_dialogue import Dialogue, command, commands, one_by_one, pieces

BODY = bytes(range(256)) * 4


def receive(parser: RequestParser, data: bytes) -> None:
    """Hand over `data`, all of which must fit what the parser offers."""
    parser.get_buffer()[: len(data)] = data
    parser.received(len(data))


def open_bulk(length: int = 100, large_bulk: int = 10) -> RequestParser:
    parser = RequestParser(large_bulk=large_bulk)
    receive(parser, b"*3\r\n$3\r\nPUT\r\n$%d\r\n" % length)
    assert isinstance(parser.next_event(), BulkStart)
    return parser


@pytest.mark.parametrize(
    "bodies", ["collect", [1000, 1000], [1] * 2048, [7] * 300, [1024, 1023, 1], [1023, 1, 1024]]
)
def test_every_split_point(bodies: str | list[int]) -> None:
    wire = command(b"PUT", BODY, b"x", BODY, b"y") + command(b"PING")
    expected = [[b"PUT", BODY, b"x", BODY, b"y"], [b"PING"]]
    options = {"bodies": bodies, "large_bulk": 1024}
    assert commands(wire, **options) == expected
    for at in range(1, len(wire), 5):
        assert commands(*pieces(wire, [at]), **options) == expected, at
    assert commands(*one_by_one(wire), **options) == expected


@given(st.binary(min_size=10, max_size=300), st.data())
@settings(max_examples=300)
def test_destinations_of_every_size(body: bytes, data: st.DataObject) -> None:
    wire = command(b"PUT", body) * 2 + command(b"PING")
    sizes = data.draw(st.lists(st.integers(1, 320), max_size=20))
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=8))
    seen = commands(*pieces(wire, cuts), bodies=sizes, large_bulk=10)
    assert seen == [[b"PUT", body], [b"PUT", body], [b"PING"]]


def test_there_is_nothing_to_tell_while_a_destination_has_room() -> None:
    parser = open_bulk(100)
    parser.direct(bytearray(60))
    assert parser.next_event() is NEED_DATA
    for count, full in ((59, False), (1, True)):
        parser.get_buffer()[:count] = b"x" * count
        assert parser.received(count) is full
    assert parser.next_event() == BulkMore(40)
    parser.direct(bytearray(40))
    assert parser.next_event() is NEED_DATA
    assert len(parser.get_buffer()) == 40 and parser.received(40)
    parser.get_buffer()[:2] = b"\r\n"
    assert parser.received(2)


def test_what_is_announced() -> None:
    dialogue = Dialogue(RequestParser(large_bulk=10), "discard")
    dialogue.feed(command(b"PUT", b"x" * 9, b"y" * 10) + command(b"z" * 11))
    assert dialogue.bulks == [(2, 10), (0, 11)]
    assert dialogue.seen == [[b"PUT", b"x" * 9, Body(10, discarded=True)], [Body(11, discarded=True)]]


def test_the_arguments_before_it_are_known() -> None:
    parser = RequestParser()
    receive(parser, b"*3\r\n$3\r\nPUT\r\n$1\r\nk\r\n$65536\r\n")
    event = parser.next_event()
    assert isinstance(event, BulkStart)
    assert (event.args, event.index, event.length) == ([b"PUT", b"k"], 2, LARGE_BULK)


def test_the_destination_is_what_the_socket_writes_to() -> None:
    parser = open_bulk(100)
    destination = bytearray(100)
    parser.direct(destination)
    offered = parser.get_buffer()
    assert offered.obj is destination and len(offered) == 100
    offered[:60] = b"a" * 60
    parser.received(60)
    assert parser.next_event() is NEED_DATA
    assert len(parser.get_buffer()) == 40
    parser.get_buffer()[:] = b"b" * 40
    parser.received(40)
    assert destination == b"a" * 60 + b"b" * 40
    assert parser.next_event() is NEED_DATA
    receive(parser, b"\r\n$1\r\nx\r\n")
    assert parser.next_event() == Command([b"PUT", Body(100), b"x"])


def test_a_longer_destination_keeps_its_end() -> None:
    parser = open_bulk(10)
    destination = bytearray(b"-" * 16)
    parser.direct(destination)
    assert len(parser.get_buffer()) == 10
    receive(parser, b"x" * 10)
    assert destination == b"x" * 10 + b"-" * 6


def test_one_destination_after_the_other() -> None:
    parser = RequestParser(large_bulk=10)
    receive(parser, b"*2\r\n$3\r\nPUT\r\n$25\r\n" + b"a" * 22)
    assert isinstance(parser.next_event(), BulkStart)
    first, second, third = bytearray(10), bytearray(10), bytearray(10)
    parser.direct(first)
    assert parser.next_event() == BulkMore(15)
    parser.direct(second)
    assert parser.next_event() == BulkMore(5)
    parser.direct(third)
    assert parser.next_event() is NEED_DATA
    receive(parser, b"b" * 3)
    assert (first, second, third) == (b"a" * 10, b"a" * 10, b"aabbb\x00\x00\x00\x00\x00")
    receive(parser, b"\r\n")
    assert parser.next_event() == Command([b"PUT", Body(25)])


@pytest.mark.parametrize("kind", ["array", "memoryview", "floats"])
def test_kinds_of_destinations(kind: str) -> None:
    store = bytearray(40)
    views = {
        "array": store,
        "memoryview": memoryview(store)[:40],
        "floats": memoryview(store).cast("f", (2, 5)),
    }
    parser = open_bulk(40)
    parser.direct(views[kind])
    receive(parser, bytes(range(40)))
    assert store == bytes(range(40))


def test_collected_is_a_read_only_view() -> None:
    parser = open_bulk(100)
    parser.collect()
    receive(parser, b"z" * 100)
    receive(parser, b"\r\n$1\r\nx\r\n")
    event = parser.next_event()
    assert isinstance(event, Command)
    view = event.args[1]
    assert isinstance(view, memoryview) and view.readonly and view == b"z" * 100


def test_a_mapped_body() -> None:
    body = BODY * (MAP_FROM // len(BODY) + 1)
    assert commands(command(b"PUT", body) + command(b"PING")) == [[b"PUT", body], [b"PING"]]


def test_discarded_bodies_leave_the_connection_usable() -> None:
    wire = command(b"PUT", b"x" * 200_000, b"y") + command(b"PING") * 3
    body = Body(200_000, discarded=True)
    for chunks in ([wire], pieces(wire, range(0, len(wire), 1000)), pieces(wire, [len(wire) - 45])):
        assert commands(*chunks, bodies="discard") == [[b"PUT", body, b"y"], [b"PING"], [b"PING"], [b"PING"]]


def test_the_rest_can_be_discarded() -> None:
    parser = open_bulk(100)
    parser.direct(bytearray(30))
    receive(parser, b"a" * 30)
    assert parser.next_event() == BulkMore(70)
    parser.discard()
    receive(parser, b"b" * 70 + b"\r\n$1\r\nx\r\nPING\r\n")
    assert parser.next_event() == Command([b"PUT", Body(100, discarded=True), b"x"])
    assert parser.next_event() == Command([b"PING"])


def test_commands_behind_a_body_in_the_same_packet() -> None:
    wire = command(b"PUT", b"x" * 70_000) + command(b"SET", b"k", b"v") * 50 + b"PING\r\n"
    expected = [[b"PUT", b"x" * 70_000], *[[b"SET", b"k", b"v"]] * 50, [b"PING"]]
    for bodies in ("collect", [70_000], [65_536, 10_000]):
        assert commands(wire, bodies=bodies) == expected


def test_no_crlf_after_a_body() -> None:
    for bodies in ("collect", "discard", [100]):
        seen = commands(b"*1\r\n$100\r\n" + b"x" * 100 + b"PING\r\n", bodies=bodies, large_bulk=10)
        assert seen == ["! expected CRLF after a bulk string"]


def test_an_answer_must_come_before_anything_else() -> None:
    parser = open_bulk()
    for call in (parser.next_event, parser.get_buffer):
        with pytest.raises(UsageError):
            call()
    parser.direct(bytearray(50))
    for call in (parser.collect, parser.discard, lambda: parser.direct(bytearray(1))):
        with pytest.raises(UsageError):
            call()
    receive(parser, b"x" * 50)
    with pytest.raises(UsageError):
        parser.get_buffer()
    assert parser.next_event() == BulkMore(50)
    with pytest.raises(UsageError):
        parser.collect()
    parser.direct(bytearray(50))
    receive(parser, b"x" * 50)
    receive(parser, b"\r\n$1\r\nx\r\n")
    assert parser.next_event() == Command([b"PUT", Body(100), b"x"])


def test_an_answer_without_a_question() -> None:
    parser = RequestParser()
    for call in (parser.collect, parser.discard, lambda: parser.direct(bytearray(1))):
        with pytest.raises(UsageError):
            call()


@pytest.mark.parametrize(
    "unfit", [b"bytes", bytearray(), memoryview(bytearray(20))[::2], memoryview(b"x").toreadonly()]
)
def test_destinations_that_do_not_fit(unfit: object) -> None:
    parser = open_bulk()
    with pytest.raises(UsageError):
        parser.direct(unfit)  # type: ignore[arg-type]
    parser.direct(bytearray(100))


def test_an_announced_bulk_costs_nothing_until_it_arrives() -> None:
    parser = RequestParser()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        receive(parser, b"*2\r\n$3\r\nPUT\r\n$536870912\r\n")
        assert isinstance(parser.next_event(), BulkStart)
        after, _ = tracemalloc.get_traced_memory()
        assert after - before < 10_000
        rss = resident()
        parser.collect()
        parser.get_buffer()[:4096] = b"x" * 4096
        parser.received(4096)
        assert resident() - rss < 16 * MIB
    finally:
        tracemalloc.stop()


def resident() -> int:
    """Bytes of this process that are in memory."""
    import resource
    import sys

    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def test_an_array_header_costs_nothing() -> None:
    parser = RequestParser()
    tracemalloc.start()
    try:
        receive(parser, b"*1048576\r\n$1\r\na\r\n" * 1)
        assert parser.next_event() is NEED_DATA
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_limits_are_settings() -> None:
    limits = Limits(bulk_bytes=100, array_elements=3, inline_bytes=20, command_bytes=150)
    assert commands(command(b"a" * 100, b"b"), limits=limits) == [[b"a" * 100, b"b"]]
    assert commands(command(b"a" * 101), limits=limits) == ["! invalid bulk length"]
    assert commands(command(b"a", b"b", b"c", b"d"), limits=limits) == ["! invalid multibulk length"]
    assert commands(b"PING 123456789012345\r\n", limits=limits) == ["! too big inline request"]
    assert commands(command(b"a" * 100, b"b" * 50), limits=limits) == [[b"a" * 100, b"b" * 50]]
    assert commands(command(b"a" * 100, b"b" * 51), limits=limits) == ["! too big command"]
    assert commands(command(b"a" * 100, b"b") * 2, limits=limits) == [[b"a" * 100, b"b"]] * 2


def test_only_what_the_parser_keeps_counts_as_the_commands_size() -> None:
    limits = Limits(command_bytes=150)
    wire = command(b"PUT", b"x" * 400, b"y" * 100)
    assert commands(wire, limits=limits, large_bulk=200) == [[b"PUT", b"x" * 400, b"y" * 100]]


@pytest.mark.parametrize(
    ("wire", "seen"),
    [
        (command(b"AUTH", b"x" * 16_384), [[b"AUTH", b"x" * 16_384]]),
        (command(b"AUTH", b"x" * 16_385), ["! unauthenticated bulk length"]),
        (command(*[b"x"] * 10), [[b"x"] * 10]),
        (command(*[b"x"] * 11), ["! unauthenticated multibulk length"]),
        (b"*1\r\n$536870913\r\n", ["! invalid bulk length"]),
        (b"*1048577\r\n", ["! invalid multibulk length"]),
        (
            command(b"PING") * 3 + command(*[b"x"] * 11),
            [[b"PING"]] * 3 + ["! unauthenticated multibulk length"],
        ),
    ],
)
def test_limits_for_strangers(wire: bytes, seen: list) -> None:
    assert commands(wire, authenticated=False) == seen


def test_a_pipeline_may_begin_with_the_password() -> None:
    parser = RequestParser(authenticated=False)
    receive(parser, command(b"AUTH", b"x") + command(*[b"y"] * 11) * 2 + command(b"RESET"))
    assert parser.next_event() == Command([b"AUTH", b"x"])
    parser.authenticated = True
    assert parser.next_event() == Command([b"y"] * 11)
    assert parser.next_event() == Command([b"y"] * 11)
    assert parser.next_event() == Command([b"RESET"])
    parser.authenticated = False
    receive(parser, command(*[b"y"] * 11))
    with pytest.raises(ProtocolError, match="unauthenticated multibulk length"):
        parser.next_event()


WORDS = st.one_of(
    st.sampled_from(
        [b"", b"V.STOREBATCH", b"\r\n", b"$1\r\nx\r\n", b"a\r\n$1", b"$5", b"*2\r\n", b"w" * 254]
    ),
    st.binary(max_size=40),
)


@given(st.lists(WORDS, min_size=1, max_size=12), st.lists(WORDS, max_size=4), st.data())
@settings(max_examples=300)
def test_words_around_a_large_argument(before: list[bytes], after: list[bytes], data: st.DataObject) -> None:
    words = [*before, BODY * 70, *after]
    wire = command(*words) + command(b"PING")
    cuts = data.draw(st.lists(st.integers(0, 600), max_size=6))
    assert commands(*pieces(wire, cuts)) == [words, [b"PING"]]


@pytest.mark.parametrize(
    "words",
    [
        b"$03\r\nPUT\r\n",
        b"$+3\r\nPUT\r\n",
        b"$3\r\nPUT\n\n",
        b"$4\r\nPUT\r\n",
        b":3\r\nPUT\r\n",
        b"$-1\r\n",
        b"$2\r\nPUT\r\n",
    ],
)
def test_broken_words_before_a_large_argument(words: bytes) -> None:
    wire = b"*4\r\n$3\r\nSET\r\n" + words + b"$70000\r\n"
    by_hand = commands(*one_by_one(wire), large_bulk=8 * 1024)
    assert commands(wire) == by_hand
    assert isinstance(by_hand[-1], str) and by_hand[-1].startswith("! ")


def test_limits_hold_for_words_before_a_large_argument() -> None:
    limits = Limits(command_bytes=16 * 1024)
    words = [b"w" * 200] * 90
    seen = commands(command(*words, BODY * 70), limits=limits)
    assert seen == ["! too big command"]

"""Replies: every type to the byte in both protocols, and back again however it is cut."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError, ProtocolError, UsageError
from pionkv.protocol.events import Body
from pionkv.protocol.limits import Limits
from pionkv.protocol.parser_replies import ReplyParser
from pionkv.protocol.values import Simple, Verbatim
from protocol_dialogue import Dialogue, one_by_one, pieces, replies

ENCODED = [
    (reply.simple("OK"), reply.simple("OK"), b"+OK\r\n", b"+OK\r\n"),
    (reply.OK, reply.OK, b"+OK\r\n", b"+OK\r\n"),
    (reply.simple("a\r\nb"), reply.simple("a\nb"), b"+a  b\r\n", b"+a b\r\n"),
    (reply.error("ERR", "no"), reply.error("X", ""), b"-ERR no\r\n", b"-X\r\n"),
    (reply.error("ERR", "a\r\n+OK"), reply.error("E", "3 × 4"), b"-ERR a  +OK\r\n", "-E 3 × 4\r\n".encode()),
    (reply.integer(0), reply.integer(-7), b":0\r\n", b":-7\r\n"),
    (reply.bulk(b""), reply.bulk(b"a\r\n"), b"$0\r\n\r\n", b"$3\r\na\r\n\r\n"),
    (reply.bulk(bytearray(b"ab")), reply.bulk(memoryview(b"ab")), b"$2\r\nab\r\n", b"$2\r\nab\r\n"),
    (reply.bulk_header(5), reply.array_header(3), b"$5\r\n", b"*3\r\n"),
    (reply.null(2), reply.null(3), b"$-1\r\n", b"_\r\n"),
    (reply.null_array(2), reply.null_array(3), b"*-1\r\n", b"_\r\n"),
    (reply.map_header(2, 2), reply.map_header(2, 3), b"*4\r\n", b"%2\r\n"),
    (reply.set_header(2, 2), reply.set_header(2, 3), b"*2\r\n", b"~2\r\n"),
    (reply.push_header(2, 2), reply.push_header(2, 3), b"*2\r\n", b">2\r\n"),
    (reply.double(1.5, 2), reply.double(1.5, 3), b"$3\r\n1.5\r\n", b",1.5\r\n"),
    (reply.double(10.0, 2), reply.double(10.0, 3), b"$2\r\n10\r\n", b",10\r\n"),
    (reply.double(math.inf, 2), reply.double(-math.inf, 3), b"$3\r\ninf\r\n", b",-inf\r\n"),
    (reply.double(math.nan, 2), reply.double(0.1, 3), b"$3\r\nnan\r\n", b",0.1\r\n"),
    (reply.boolean(True, 2), reply.boolean(True, 3), b":1\r\n", b"#t\r\n"),
    (reply.boolean(False, 2), reply.boolean(False, 3), b":0\r\n", b"#f\r\n"),
    (reply.big_number(2**70, 2), reply.big_number(-1, 3), b"$22\r\n1180591620717411303424\r\n", b"(-1\r\n"),
    (reply.verbatim("é", 2), reply.verbatim("é", 3), "$2\r\né\r\n".encode(), "=6\r\ntxt:é\r\n".encode()),
    (reply.verbatim(b"x", 2, "mkd"), reply.verbatim(b"x", 3, "mkd"), b"$1\r\nx\r\n", b"=5\r\nmkd:x\r\n"),
    (
        reply.encode({b"a": [1, None, True], "b": {b"x"}}, 2),
        reply.encode({b"a": [1, None, True], "b": {b"x"}}, 3),
        b"*4\r\n$1\r\na\r\n*3\r\n:1\r\n$-1\r\n:1\r\n$1\r\nb\r\n*1\r\n$1\r\nx\r\n",
        b"%2\r\n$1\r\na\r\n*3\r\n:1\r\n_\r\n#t\r\n$1\r\nb\r\n~1\r\n$1\r\nx\r\n",
    ),
    (
        reply.encode((Simple("OK"), 2.5, 2**64, Verbatim(b"t"), CommandError("E", "m")), 2),
        reply.encode((Simple("OK"), 2.5, 2**64, Verbatim(b"t"), CommandError("E", "m")), 3),
        b"*5\r\n+OK\r\n$3\r\n2.5\r\n$20\r\n18446744073709551616\r\n$1\r\nt\r\n-E m\r\n",
        b"*5\r\n+OK\r\n,2.5\r\n(18446744073709551616\r\n=5\r\ntxt:t\r\n-E m\r\n",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "first_wire", "second_wire"), ENCODED)
def test_encoders_to_the_byte(first: bytes, second: bytes, first_wire: bytes, second_wire: bytes) -> None:
    assert first == first_wire
    assert second == second_wire


def test_the_last_reply_of_a_broken_connection() -> None:
    assert reply.protocol_error(ProtocolError("too big")) == b"-ERR Protocol error: too big\r\n"


@pytest.mark.parametrize("value", [object(), [1, object()], {b"a": 1j}])
def test_values_without_a_reply_type(value: object) -> None:
    with pytest.raises(UsageError, match="has no reply type"):
        reply.encode(value, 3)


WIRE = [
    (b"+OK\r\n", "OK"),
    (b"+\r\n", ""),
    (b":0\r\n", 0),
    (b":-12\r\n", -12),
    (b":+12\r\n", 12),
    (b"$0\r\n\r\n", b""),
    (b"$4\r\n\r\n\r\n\r\n", b"\r\n\r\n"),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"_\r\n", None),
    (b"*0\r\n", []),
    (b"*2\r\n*1\r\n:1\r\n*0\r\n", [[1], []]),
    (b"%0\r\n", {}),
    (b"%2\r\n+a\r\n:1\r\n$1\r\nb\r\n%1\r\n:1\r\n_\r\n", {"a": 1, b"b": {1: None}}),
    (b"%1\r\n*2\r\n:1\r\n*1\r\n:2\r\n+x\r\n", {(1, (2,)): "x"}),
    (b"%1\r\n%1\r\n:1\r\n*1\r\n:2\r\n+x\r\n", {((1, (2,)),): "x"}),
    (b"~2\r\n:1\r\n:1\r\n", [1, 1]),
    (b",1.5\r\n", 1.5),
    (b",-1e10\r\n", -1e10),
    (b",inf\r\n", math.inf),
    (b"#t\r\n", True),
    (b"#f\r\n", False),
    (b"(1180591620717411303424\r\n", 2**70),
    (b"=7\r\ntxt:abc\r\n", Verbatim(b"abc")),
    (b"=5\r\nmkd:x\r\n", Verbatim(b"x", "mkd")),
    (b"|1\r\n+ttl\r\n:3\r\n:7\r\n", 7),
    (b"*2\r\n|1\r\n+ttl\r\n:3\r\n:7\r\n|0\r\n:8\r\n", [7, 8]),
    (b">2\r\n+message\r\n:1\r\n", ["message", 1]),
    (b">0\r\n", []),
]


@pytest.mark.parametrize(("wire", "value"), WIRE)
def test_every_split_point(wire: bytes, value: Any) -> None:
    assert replies(wire) == [value]
    for cut in range(1, len(wire)):
        assert replies(*pieces(wire, [cut])) == [value], cut
    assert replies(*one_by_one(wire * 3)) == [value] * 3


@pytest.mark.parametrize(
    ("wire", "code", "message"),
    [
        (b"-ERR no such thing\r\n", "ERR", "no such thing"),
        (b"-LOADING\r\n", "LOADING", ""),
        (b"!9\r\nERR a\r\nb!\r\n", "ERR", "a\r\nb!"),
    ],
)
def test_errors_are_values(wire: bytes, code: str, message: str) -> None:
    for chunks in ([wire], one_by_one(wire)):
        (error,) = replies(*chunks)
        assert isinstance(error, CommandError)
        assert (error.code, error.message) == (code, message)
    (nested,) = replies(b"*1\r\n" + wire)
    assert isinstance(nested[0], CommandError)


def test_not_a_number() -> None:
    (value,) = replies(b",nan\r\n")
    assert math.isnan(value)


@pytest.mark.parametrize(
    "wire",
    [
        b"PONG\r\n", b"\r\n", b"\n", b"+OK\n", b":\r\n", b":1 \r\n", b":01\r\n", b":--1\r\n",
        b":1_0\r\n", b"(x\r\n", b",\r\n", b",x\r\n", b",1_0\r\n", b", 1\r\n", b",infinity\r\n",
        b"#x\r\n", b"#\r\n", b"_x\r\n", b"$-2\r\n", b"$01\r\n", b"$\r\n", b"$?\r\n", b"*?\r\n",
        b"*-2\r\n", b"%-1\r\n", b"~-1\r\n", b"!-1\r\n", b"=-1\r\n", b"=3\r\nabc\r\n", b"=4\r\nabcd\r\n",
        b"$3\r\nabcd\r\n", b"$3\r\nabc\n", b"*1\r\n>1\r\n+x\r\n", b"$536870913\r\n", b"*1048577\r\n",
        b"%1048577\r\n", b"+" + b"x" * 70_000, b"*1\r\n" * 40,
    ],
)  # fmt: skip
def test_broken_replies(wire: bytes) -> None:
    for chunks in ([wire], one_by_one(wire)):
        seen = replies(*chunks)
        assert len(seen) == 1 and str(seen[0]).startswith("! "), seen


def test_limits_of_replies() -> None:
    limits = Limits(bulk_bytes=5, array_elements=2, inline_bytes=10, reply_depth=2)
    assert replies(b"$5\r\nabcde\r\n*2\r\n:1\r\n:2\r\n", limits=limits) == [b"abcde", [1, 2]]
    for wire in (b"$6\r\n", b"*3\r\n", b"+12345678901\r\n", b"*1\r\n*1\r\n*1\r\n:1\r\n"):
        assert str(replies(wire, limits=limits)[0]).startswith("! ")


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.binary(max_size=30)
    | st.builds(Verbatim, st.binary(max_size=20), st.sampled_from(["txt", "mkd"]))
)
HASHABLE = st.binary(max_size=8) | st.integers()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HASHABLE, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.data())
@settings(max_examples=300)
def test_resp3_comes_back_as_it_was(value: Any, data: st.DataObject) -> None:
    wire = reply.encode(value, 3)
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=5))
    (back,) = replies(*pieces(wire, cuts))
    assert repr(back) == repr(value)


def as_resp2(value: Any) -> Any:
    """What is left of a value in RESP2."""
    if isinstance(value, Verbatim):
        return value.text
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return b"%d" % value
    if isinstance(value, float):
        return repr(value).removesuffix(".0").encode()
    if isinstance(value, dict):
        return [as_resp2(item) for pair in value.items() for item in pair]
    return [as_resp2(item) for item in value] if isinstance(value, list) else value


@given(VALUES, st.data())
@settings(max_examples=300)
def test_resp2_comes_back_as_far_as_it_can(value: Any, data: st.DataObject) -> None:
    wire = reply.encode(value, 2)
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=5))
    assert replies(*pieces(wire, cuts)) == [as_resp2(value)]


@given(st.frozensets(HASHABLE, max_size=6), st.sampled_from([2, 3]))
def test_sets_come_back_as_lists(value: frozenset[Any], protocol: int) -> None:
    (back,) = replies(reply.encode(value, protocol))
    expected = value if protocol == 3 else frozenset(map(as_resp2, value))
    assert frozenset(back) == expected and len(back) == len(value)


@given(st.floats())
def test_doubles_are_exact(value: float) -> None:
    (back,) = replies(reply.double(value, 3))
    assert back == value or (math.isnan(back) and math.isnan(value))


# Large bulk strings


def test_where_large_bulks_stand() -> None:
    wire = reply.encode([b"x" * 10, [1, {b"k": b"y" * 20}], b"z"], 3)
    dialogue = Dialogue(ReplyParser(large_bulk=10), bodies=[10, 20])
    assert dialogue.feed(wire) == [[b"x" * 10, [1, {b"k": b"y" * 20}], b"z"]]
    assert dialogue.bulks == [((0,), 10), ((1, 1, 1), 20)]


def test_a_large_bulk_alone() -> None:
    for bodies in ("collect", [100], [1] * 100, [33, 80]):
        dialogue = Dialogue(ReplyParser(large_bulk=10), bodies)
        assert dialogue.feed(*one_by_one(reply.bulk(b"q" * 100) + b":1\r\n")) == [b"q" * 100, 1]
        assert dialogue.bulks == [((), 100)]


def test_a_large_key_of_a_map() -> None:
    wire = reply.encode({b"k" * 20: b"v" * 20, (b"k" * 20, 1): 2}, 3)
    assert replies(wire, large_bulk=10) == [{b"k" * 20: b"v" * 20, (b"k" * 20, 1): 2}]


def test_discarded_bulks_of_a_reply() -> None:
    wire = reply.encode([b"x" * 100_000, b"y"], 2) + b"+OK\r\n"
    assert replies(wire, bodies="discard") == [[Body(100_000, discarded=True), b"y"], "OK"]


@given(st.lists(st.binary(max_size=60) | st.none(), max_size=8), st.data())
@settings(max_examples=200)
def test_arrays_of_bulks_into_destinations(values: list[bytes | None], data: st.DataObject) -> None:
    wire = reply.encode(values, 2) + b"+OK\r\n"
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=8))
    sizes = data.draw(st.lists(st.integers(1, 70), max_size=20))
    assert replies(*pieces(wire, cuts), bodies=sizes, large_bulk=10) == [values, "OK"]

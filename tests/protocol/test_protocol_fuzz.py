"""Garbage is understood or raises `ProtocolError`, and nothing else; the two lanes and all cuts agree."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pionkv.protocol.batch import parse_batch
from pionkv.protocol.scanning import scan
from pionkv.server.compiled import compile_scan
from protocol_dialogue import BY_HAND, command, commands, pieces, replies

COMPILED = compile_scan()
WORDS = st.lists(st.binary(max_size=40), min_size=1, max_size=6)
WIRE_ALPHABET = b"*$~%>|=+-:_#,(!\r\n0123459aP"

FRAGMENTS = st.sampled_from(
    [
        b"*", b"$", b"\r\n", b"\r", b"\n", b"*1\r\n", b"*2\r\n", b"*0\r\n", b"*-1\r\n",
        b"$4\r\nPING\r\n", b"$1\r\na\r\n", b"$0\r\n\r\n", b"$-1\r\n", b"+OK\r\n", b"+\r\n", b"(1\r\n",
        b":1\r\n", b"_\r\n", b"#t\r\n", b",1.5\r\n", b"=5\r\ntxt:a\r\n", b"~1\r\n", b"%1\r\n",
        b">1\r\n", b"|1\r\n", b"-ERR\r\n", b"!1\r\nx\r\n", b"*1\r\n$4\r\nPING\r\n",
        b"*1\r\n$4\r\nPINGxx", b"PING\r\n", b'"', b"'", b"*12345\r\n", b"~99999\r\n", b"*9999\r\n",
        b"$007\r\n", b"a", b" ",
    ]
)  # fmt: skip
GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from([bytes([byte]) for byte in WIRE_ALPHABET]), max_size=60).map(b"".join),
    st.lists(FRAGMENTS, max_size=20).map(b"".join),
)


def encoded(pipeline: list[list[bytes]]) -> bytes:
    return b"".join(command(*words) for words in pipeline)


@st.composite
def damaged_pipelines(draw: st.DrawFn) -> bytes:
    """Several commands, with a few bytes changed, inserted or taken out."""
    wire = bytearray(encoded(draw(st.lists(WORDS, min_size=2, max_size=6))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(wire) - 1))
        wire[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b"0", b"\r", b"\n", b"$", b"*", b"x"])
        )
    return bytes(wire)


@st.composite
def cut(draw: st.DrawFn, wires: st.SearchStrategy[bytes]) -> tuple[bytes, list[bytes]]:
    wire = draw(wires)
    return wire, pieces(wire, draw(st.lists(st.integers(0, len(wire)), max_size=6)))


@given(cut(st.one_of(GARBAGE, damaged_pipelines())))
@settings(max_examples=600)
def test_garbage_in_requests(case: tuple[bytes, list[bytes]]) -> None:
    wire, chunks = case
    seen = commands(wire)
    assert commands(*chunks) == seen
    assert commands(wire, **BY_HAND) == seen
    assert commands(*chunks, large_bulk=3) == seen


@given(cut(GARBAGE))
@settings(max_examples=600)
def test_garbage_in_replies(case: tuple[bytes, list[bytes]]) -> None:
    wire, chunks = case
    assert repr(replies(*chunks)) == repr(replies(wire))
    assert repr(replies(*chunks, large_bulk=3)) == repr(replies(wire))


@given(st.lists(WORDS, max_size=30), st.data())
def test_every_pipeline_is_understood(pipeline: list[list[bytes]], data: st.DataObject) -> None:
    wire = encoded(pipeline)
    chunks = pieces(wire, data.draw(st.lists(st.integers(0, len(wire)), max_size=4)))
    assert commands(*chunks) == pipeline


@given(st.lists(WORDS, min_size=1, max_size=30))
def test_batches_of_whole_commands(pipeline: list[list[bytes]]) -> None:
    wire = encoded(pipeline)
    alike = len({(words[0], len(words)) for words in pipeline}) == 1
    assert parse_batch(wire) == (pipeline, alike, len(wire))


@given(st.one_of(GARBAGE, damaged_pipelines()))
@example(b"*1\r\n$4\r\nPING\r\n*1\n")
@example(b"*1\r\n$4\r\nPINGxx$5\r\n")
@example(b"*1\r\n$4\r\nPING\r\n+\r\n")
@example(b"*2\r\n$1\r\na\r\n+bcd\r\n")
@example(b"*1\r\n=7\r\ntxt:abc\r\n")
@example(b"~1\r\n$1\r\na\r\n")
@example(b"|1\r\n$1\r\na\r\n$1\r\nb\r\n*1\r\n$1\r\nx\r\n")
@example(b"*1\r\n*1\r\n$1\r\na\r\n")
@example(b"*1\r\n:1\r\n")
@example(b"*1\r\n$3\r\nab\r\nX*1\r\n$1\r\na\r\n")
@settings(max_examples=1000)
def test_a_batch_is_what_parsing_by_hand_gives(wire: bytes) -> None:
    parsed = parse_batch(wire)
    if parsed is not None:
        found, _, end = parsed
        assert found == commands(wire[:end], **BY_HAND)
        assert commands(wire[end:], **BY_HAND) == commands(wire, **BY_HAND)[len(found) :]


@given(
    st.one_of(GARBAGE, damaged_pipelines(), st.lists(WORDS, max_size=30).map(encoded)), st.integers(0, 300)
)
@example(b"*1\r\n$99999\r\n", 300)
@example(b"*99999\r\n" + b"$0\r\n\r\n" * 20, 300)
@example(b"*1\r\n$4\r\nPING\r\n" * 1200, 1 << 20)
@settings(max_examples=2000)
def test_compiled_it_finds_the_same(wire: bytes, size: int) -> None:
    size = min(size, len(wire))
    assert COMPILED(wire, size) == scan(wire, size) == scan(wire[:size], size)


def test_a_batch_allocates_nothing_for_large_headers() -> None:
    for header in (b"*4000000000\r\n", b"~4000000000\r\n", b">99999\r\n", b"|99999\r\n"):
        assert parse_batch(b"*2\r\n" + header) is None
        assert parse_batch(header) is None

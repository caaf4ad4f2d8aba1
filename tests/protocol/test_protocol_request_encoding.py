"""Writing commands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pionkv.protocol.request import LEAVE_FROM, Word, encode_command
from protocol_dialogue import commands


@pytest.mark.parametrize(
    ("args", "wire"),
    [
        ([b"PING"], b"*1\r\n$4\r\nPING\r\n"),
        (["ECHO", "é"], "*2\r\n$4\r\nECHO\r\n$2\r\né\r\n".encode()),
        (["X", 12, -1, 1.5], b"*4\r\n$1\r\nX\r\n$2\r\n12\r\n$2\r\n-1\r\n$3\r\n1.5\r\n"),
        (
            ["X", b"", bytearray(b"a"), memoryview(b"bc")],
            b"*4\r\n$1\r\nX\r\n$0\r\n\r\n$1\r\na\r\n$2\r\nbc\r\n",
        ),
        (["X", memoryview(b"")], b"*2\r\n$1\r\nX\r\n$0\r\n\r\n"),
        (["X", memoryview(b"abcdefgh").cast("I")], b"*2\r\n$1\r\nX\r\n$8\r\nabcdefgh\r\n"),
    ],
)
def test_to_the_byte(args: list[Word], wire: bytes) -> None:
    assert encode_command(args) == [wire]


def test_large_arguments_are_left_as_they_are() -> None:
    blob = bytearray(LEAVE_FROM)
    other = memoryview(bytearray(LEAVE_FROM * 4)).cast("f")
    pieces = encode_command(["PUT", blob, "k", other])
    assert [bytes(piece) for piece in pieces[::2]] == [
        b"*4\r\n$3\r\nPUT\r\n$16384\r\n",
        b"\r\n$1\r\nk\r\n$65536\r\n",
        b"\r\n",
    ]
    assert isinstance(pieces[1], memoryview) and pieces[1].obj is blob
    assert isinstance(pieces[3], memoryview) and pieces[3].obj is other.obj


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.integers(1, 64))
def test_a_server_understands_it(args: list[bytes], leave_from: int) -> None:
    wire = b"".join(encode_command(args, leave_from))
    assert commands(wire) == [args]


@pytest.mark.parametrize("word", [None, True, [b"x"], memoryview(bytearray(8))[::2]])
def test_what_is_no_argument(word: object) -> None:
    with pytest.raises(TypeError):
        encode_command(["X", word])  # type: ignore[list-item]

"""Inline commands. The expectations were taken from redis-server 7.0."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pionkv.protocol.errors import ProtocolError
from pionkv.protocol.inline import split_inline
from protocol_dialogue import commands


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", []),
        (b" \t\v\f\r", []),
        (b"PING", [b"PING"]),
        (b"  ECHO  a\tb ", [b"ECHO", b"a", b"b"]),
        (b'ECHO "a b"', [b"ECHO", b"a b"]),
        (b'ECHO ""', [b"ECHO", b""]),
        (b"ECHO ''", [b"ECHO", b""]),
        (b'"" x', [b"", b"x"]),
        (rb'ECHO "a\x41\n\z"', [b"ECHO", b"aA\nz"]),
        (rb'ECHO "\r\t\b\a\\\""', [b"ECHO", b'\r\t\b\a\\"']),
        (rb'ECHO "\xg1\x4"', [b"ECHO", b"xg1x4"]),
        (rb'ECHO "\x00\xFf"', [b"ECHO", b"\x00\xff"]),
        (rb"ECHO 'a\'b\n\x41'", [b"ECHO", rb"a'b\n\x41"]),
        (b"ECHO '\"'", [b"ECHO", b'"']),
        (b'ECHO "\'"', [b"ECHO", b"'"]),
        (b'a"b c"', [b"ab c"]),
        (b"a'b c' d", [b"ab c", b"d"]),
        (b'ECHO "a"\r', [b"ECHO", b"a"]),
    ],
)
def test_words(line: bytes, words: list[bytes]) -> None:
    assert split_inline(line) == words


@pytest.mark.parametrize(
    "line",
    [
        b'"',
        b"'",
        b'ECHO "a',
        b"ECHO 'a",
        b'ECHO "a"b',
        b"ECHO 'a'b",
        b'a"b c"d',
        b"'a'\"b\"",
        rb"x 'a\'",
        rb"x 'a\\'",
        rb'x "a\"',
        b'x "\\',
    ],
)
def test_unbalanced(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="unbalanced quotes in request"):
        split_inline(line)


@given(st.lists(st.binary(max_size=20), min_size=1))
def test_anything_can_be_quoted(words: list[bytes]) -> None:
    line = b" ".join(b'"' + b"".join(b"\\x%02x" % byte for byte in word) + b'"' for word in words)
    assert split_inline(line) == words


@given(st.text(alphabet="ab\"'\\ x4\t", max_size=60))
def test_words_or_unbalanced_and_nothing_else(text: str) -> None:
    try:
        assert all(isinstance(word, bytes) for word in split_inline(text.encode()))
    except ProtocolError as error:
        assert str(error) == "unbalanced quotes in request"


def test_the_longest_line() -> None:
    line = b"ECHO " + b"x" * (65_536 - len("ECHO \r\n"))
    assert commands(line + b"\r\n") == [line.split()]
    assert commands(line + b"x\r\n") == ["! too big inline request"]


def test_a_long_line_of_quoted_words_takes_time_in_proportion() -> None:
    line = b'"a" ' * 16_000
    assert split_inline(line) == [b"a"] * 16_000

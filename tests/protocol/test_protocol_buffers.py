"""The parser's own buffer: how it grows, shrinks, and what it never does."""

from __future__ import annotations

import pytest
from pionkv.protocol.errors import UsageError
from pionkv.protocol.events import NEED_DATA
from pionkv.protocol.intake import LARGEST_BUFFER, SMALLEST_BUFFER
from pionkv.protocol.parser import RequestParser
from protocol_dialogue import Dialogue, command, commands


def fill(parser: RequestParser, data: bytes) -> None:
    """One read that fills all that is offered, with as much of repeated `data` as fits."""
    buffer = parser.get_buffer()
    buffer[:] = (data * (len(buffer) // len(data) + 1))[: len(buffer)]
    parser.received(len(buffer))
    while parser.next_event() is not NEED_DATA:
        pass


def test_it_follows_the_traffic() -> None:
    parser = RequestParser()
    assert len(parser.get_buffer()) == SMALLEST_BUFFER
    for _ in range(6):
        fill(parser, b"PING\r\n")
    assert LARGEST_BUFFER // 2 <= len(parser.get_buffer()) <= LARGEST_BUFFER
    dialogue = Dialogue(parser)
    for _ in range(6):
        dialogue.feed(b"\r\nPING\r\n")
    assert len(parser.get_buffer()) == SMALLEST_BUFFER


def test_large_bodies_do_not_make_it_grow() -> None:
    parser = RequestParser()
    dialogue = Dialogue(parser, bodies=[1 << 20] * 3)
    dialogue.feed(command(b"PUT", b"x" * (1 << 20)) * 3)
    assert len(parser.get_buffer()) == SMALLEST_BUFFER


def test_it_becomes_as_long_as_the_longest_small_argument() -> None:
    argument = b"x" * 300_000
    wire = command(b"PUT", argument)
    assert commands(*(wire[i : i + 100] for i in range(0, len(wire), 100)), large_bulk=300_001) == [
        [b"PUT", argument]
    ]


def test_it_does_not_grow_without_bound_when_nobody_parses() -> None:
    parser = RequestParser()
    kept = 0
    with pytest.raises(UsageError, match="until it returns NEED_DATA"):
        while True:
            buffer = parser.get_buffer()
            assert len(buffer)
            parser.received(len(buffer))
            kept += len(buffer)
            assert kept < 4 * LARGEST_BUFFER


def test_it_is_replaced_and_never_resized() -> None:
    parser = RequestParser()
    held = parser.get_buffer()
    for _ in range(6):
        fill(parser, b"PING\r\n")
    held[:4] = b"fine"
    assert len(held) == SMALLEST_BUFFER


def test_what_is_pending_survives_every_move() -> None:
    words = [b"w%d" % i + b"x" * (i % 700) for i in range(3000)]
    wire = command(*words)
    for size in (1, 7, 1000, 9000, 16_384):
        step = size if size > 1 else 997
        assert commands(*(wire[i : i + step] for i in range(0, len(wire), step))) == [words]

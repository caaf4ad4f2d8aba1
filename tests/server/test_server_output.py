"""The writing half of a connection: what leaves in one write, and what has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from pionkv.server.metrics import Metrics
from pionkv.server.output import (
    FIRST_BYTES,
    GATHER_BYTES,
    SLICE_BYTES,
    TLS_SLICE_BYTES,
    TURN_BYTES,
    Departures,
    Output,
)

HEADER, CRLF = b"$5\r\n", b"\r\n"


class Transport:
    """Takes everything at once, and keeps what came in one write together."""

    def __init__(self, plain: bool) -> None:
        self.plain = plain
        self.writes: list[list[bytes]] = []

    def can_write_eof(self) -> bool:
        return self.plain

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.writes.append([data])

    def writelines(self, pieces: list[bytes | memoryview]) -> None:
        self.writes.append([bytes(piece) for piece in pieces])


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def attached(
    loop: asyncio.AbstractEventLoop, *, plain: bool = True, lane: str = "unix"
) -> tuple[Output, Transport]:
    output, transport = Output(loop, Metrics(), Departures(loop)), Transport(plain)
    output.attach(transport, lane)  # type: ignore[arg-type]
    return output, transport


def whole(output: Output, data: bytes) -> bool:
    return output.send_whole([HEADER, memoryview(data), CRLF], len(data))


def test_a_reply_of_a_slice_leaves_in_one_write_after_what_was_gathered(loop) -> None:
    output, transport = attached(loop)
    output.write(b"+OK\r\n")
    data = bytes(SLICE_BYTES)
    assert whole(output, data)
    assert transport.writes == [[b"+OK\r\n", HEADER, data, CRLF]]
    output.flush()
    output.write(b"")
    output.flush()
    assert len(transport.writes) == 1


@pytest.mark.parametrize("before", [0, 5000])
@pytest.mark.parametrize("size", [GATHER_BYTES + 256, 1 << 17, SLICE_BYTES])
def test_a_large_reply_over_tcp_begins_with_a_write_of_its_own(size, before, loop) -> None:
    output, transport = attached(loop, lane="tcp")
    for _ in range(before):
        output.write(b"+OK\r\n")
    data = bytes(range(256)) * (size // 256)
    assert whole(output, data)
    first, rest = (b"".join(pieces) for pieces in transport.writes)
    assert len(first) == FIRST_BYTES
    assert first + rest == b"+OK\r\n" * before + HEADER + data + CRLF


def test_what_goes_on_with_a_reply_or_is_copied_anyway_leaves_in_one_write(loop) -> None:
    output, transport = attached(loop, lane="tcp")
    small = bytes(GATHER_BYTES)
    assert whole(output, small) and transport.writes == [[HEADER + small + CRLF]]
    slices = memoryview(bytes(range(256)) * (3 * SLICE_BYTES // 256))
    with output.reply_in_parts():
        output.write(HEADER)
        loop.run_until_complete(output.send([slices]))
        output.write(CRLF)
    output.flush()
    assert b"".join(map(b"".join, transport.writes[1:])) == HEADER + slices + CRLF
    assert [sum(map(len, pieces)) for pieces in transport.writes[1:]] == [
        FIRST_BYTES, len(HEADER) + SLICE_BYTES - FIRST_BYTES, SLICE_BYTES, SLICE_BYTES + len(CRLF),
    ]  # fmt: skip


@pytest.mark.parametrize("plain, most", [(True, SLICE_BYTES), (False, TLS_SLICE_BYTES)])
def test_a_longer_one_has_to_be_sliced(plain, most, loop) -> None:
    output, transport = attached(loop, plain=plain)
    assert whole(output, bytes(most))
    output.turn = TURN_BYTES
    assert not whole(output, bytes(most + 1)) and len(transport.writes) == 1


def test_others_have_their_turn_and_a_new_one_begins_with_the_next_event(loop) -> None:
    output, transport = attached(loop)
    data = bytes(TURN_BYTES // 4)
    assert [whole(output, data) for _ in range(5)] == [True] * 4 + [False]
    output.turn = TURN_BYTES
    assert whole(output, data) and len(transport.writes) == 5


def test_small_replies_leave_together_at_the_end_of_a_turn_or_before_a_large_one(loop) -> None:
    departures = Departures(loop)
    outputs = [Output(loop, Metrics(), departures) for _ in range(3)]
    transports = [Transport(plain=True) for _ in outputs]
    for output, transport in zip(outputs, transports, strict=True):
        output.attach(transport, "unix")  # type: ignore[arg-type]
    for output in outputs[:2]:
        output.write(b"+OK\r\n")
        output.flush_soon()
        output.flush_soon()
    assert not any(transport.writes for transport in transports)
    loop.run_until_complete(asyncio.sleep(0))
    assert [transport.writes for transport in transports] == [[[b"+OK\r\n"]]] * 2 + [[]]
    outputs[0].write(b"+1\r\n")
    outputs[0].flush_soon()
    outputs[1].held = True
    outputs[1].write(b"+2\r\n")
    outputs[1].flush_soon()
    assert whole(outputs[2], bytes(TURN_BYTES // 4))
    assert [len(transport.writes) for transport in transports] == [2, 1, 1]
    outputs[1].held = False
    outputs[0].write(b"+3\r\n")
    outputs[0].flush_soon()
    outputs[0].detach()
    loop.run_until_complete(asyncio.sleep(0))
    assert [len(transport.writes) for transport in transports] == [2, 1, 1]


def test_a_peer_that_lags_behind_is_waited_for(loop) -> None:
    output, transport = attached(loop)
    output.pause()
    assert not whole(output, bytes(1 << 17)) and not transport.writes
    output.resume()
    assert whole(output, bytes(1 << 17))


def test_a_muted_client_gets_nothing(loop) -> None:
    output, transport = attached(loop)
    output.muted = True
    assert whole(output, bytes(1 << 17))
    output.flush()
    assert not transport.writes

"""A bare socket: what no client library would hold."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from io import RawIOBase
from typing import cast

import xxhash
from outcome import Check, holds, same
from server_process import ServerProcess
from wire import Wire

MIB = 1 << 20
ROWS, DIM, LAYERS = 32_768, 1024, 33
LAYER_BYTES = ROWS * DIM * 4


def checks(server: ServerProcess, *, long: bool) -> Iterator[Check]:
    """What takes too long for a run of the tests."""
    yield Check("a bare socket", "a reply beyond 4 GiB", partial(huge_reply, server))


def huge_reply(server: ServerProcess) -> str:
    """33 layers of 128 MiB in one array: counted and hashed as they come, held by nobody."""
    first = struct.pack(f"<{DIM}f", *(i / 7 - 50 for i in range(DIM))) * ROWS
    with Wire(server.port) as wire:
        wire.ok("V.CREATE", "huge", DIM, "VQUANT", "mlx4g32")
        wire.ok("V.STOREBATCH", "huge", 0, 0, ROWS, memoryview(first))
        packed = memoryview(wire.ok("V.FETCH", "huge", 0, "RANGE", 0, ROWS, "FMT", "RAW"))
        for layer in range(1, LAYERS):
            wire.ok("V.STOREBATCH", "huge", layer, 0, ROWS, packed, "FMT", "RAW")
        one = wire.ok("V.FETCH", "huge", 0, "RANGE", 0, ROWS)
        same("bytes of a layer", len(one), LAYER_BYTES)
        expected, before = xxhash.xxh3_64_digest(one), server.anonymous_bytes()
        wire.send(b"V.FETCH huge BATCH 0 %d\r\nPING\r\n" % ROWS)
        with wire.socket.makefile("rb", buffering=0) as stream:
            received = _read_layers(cast(RawIOBase, stream), expected)
            same("what follows", _line(cast(RawIOBase, stream)), b"+PONG")
        grown = server.anonymous_bytes() - before
        holds(f"the server's memory grew by {grown}", grown < 64 * MIB)
        wire.ok("V.DROP", "huge")
    return f"{received} bytes in one reply; the server's memory grew by {max(grown, 0) / MIB:.0f} MiB"


def _read_layers(stream: RawIOBase, expected: bytes) -> int:
    """Bytes of the rows in an array reply, each layer's hash checked."""
    same("array", _line(stream), b"*%d" % LAYERS)
    room = memoryview(bytearray(MIB))
    for layer in range(LAYERS):
        same("header", _line(stream), b"$%d" % LAYER_BYTES)
        found, left = xxhash.xxh3_64(), LAYER_BYTES
        while left:
            count = stream.readinto(room[: min(left, MIB)])
            holds("the reply ended early", count)
            found.update(room[:count])
            left -= cast(int, count)
        same(f"layer {layer}", found.digest(), expected)
        same("end of a layer", _line(stream), b"")
    return LAYERS * LAYER_BYTES


def _line(stream: RawIOBase) -> bytes:
    found = bytearray()
    while not found.endswith(b"\r\n"):
        found += cast(bytes, stream.read(1))
    return bytes(found[:-2])

"""How fast requests and replies are parsed, without a socket: ours beside the alternatives.

Small commands go through hiredis, once a compiled loop has found where they end and that they are nothing
else. The peers say what that is worth and what it costs: our own lane in plain Python, which handles all the
rest, and `hiredis.Reader` alone, which is faster and accepts what must be refused. Large bodies go to a
buffer of the caller; the peers are a plain copy, and hiredis, which makes a new object of each body.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial

import hiredis
from harness import Row, interleaved, rate_row, write_results
from pionkv.protocol import batch, reply
from pionkv.protocol.events import NEED_DATA, BulkStart, ReplyBulkStart
from pionkv.protocol.parser import RequestParser
from pionkv.protocol.parser_replies import ReplyParser
from pionkv.protocol.request import Word, encode_command
from pionkv.server.compiled import compile_scan

MIB = 1 << 20
BY_HAND = 8 * 1024
"""A `large_bulk` with which nothing goes through a batch."""

COMMANDS: dict[str, list[Word]] = {
    "PING": ["PING"],
    "GET": ["GET", "key:000000000001"],
    "SET": ["SET", "key:000000000001", b"xxx"],
    "KV.PREFIX.LOOKUP": ["KV.PREFIX.LOOKUP", "0123456789abcdef0123456789abcdef"],
    "V.FETCH": ["V.FETCH", "0123456789abcdef0123456789abcdef_pk", 12, "RANGE", 0, 512, "FMT", "RAW"],
    "SET of 100 random bytes": ["SET", "key:000000000001", os.urandom(100)],
}


def feed(parser: RequestParser | ReplyParser, data: memoryview) -> int:
    """Receive all of `data`, and count the whole commands or replies; large bodies go to `TARGET`."""
    whole = at = 0
    while at < len(data):
        buffer = parser.get_buffer()
        count = min(len(buffer), len(data) - at)
        buffer[:count] = data[at : at + count]
        at += count
        parser.received(count)
        if isinstance(parser, RequestParser):
            while commands := parser.take_batch():
                whole += len(commands)
        while (event := parser.next_event()) is not NEED_DATA:
            if isinstance(event, BulkStart | ReplyBulkStart):
                parser.direct(TARGET)
            else:
                whole += 1
    return whole


TARGET = bytearray(64 * MIB)


def hiredis_alone(data: bytes) -> int:
    reader = hiredis.Reader(notEnoughData=None)
    reader.feed(data)
    return sum(1 for _ in iter(reader.gets, None))


def repeated(call: Callable[[], int], times: int, expected: int) -> None:
    for _ in range(times):
        assert call() == expected


def pipelines(depth: int, total: int, rounds: int) -> list[Row]:
    rows = []
    for name, words in COMMANDS.items():
        data = b"".join(encode_command(words)) * depth
        times = max(1, total // depth)
        arms = {
            "ours": partial(feed, RequestParser(), memoryview(data)),
            "by hand": partial(feed, RequestParser(large_bulk=BY_HAND), memoryview(data)),
            "hiredis": partial(hiredis_alone, data),
        }
        seconds = interleaved(
            {arm: partial(repeated, call, times, depth) for arm, call in arms.items()}, rounds
        )
        work = f"{name}, pipeline {depth}"
        for arm, peer in (("by hand", "ours in plain Python"), ("hiredis", "hiredis alone, unchecked")):
            rows.append(rate_row(work, "commands/s", depth * times, seconds["ours"], (peer, seconds[arm])))
    return rows


def bodies(size: int, rounds: int) -> list[Row]:
    body = os.urandom(size)
    source = memoryview(body)
    request = b"".join(encode_command(["V.STOREBATCH", "s", 0, 0, 1, body]))
    answer = reply.bulk(body)
    times = max(1, 256 * MIB // size)

    def copy() -> int:
        TARGET[:size] = source
        return 1

    arms = {
        "request": partial(feed, RequestParser(), memoryview(request)),
        "reply": partial(feed, ReplyParser(), memoryview(answer)),
        "copy": copy,
        "hiredis": partial(hiredis_alone, answer),
    }
    seconds = interleaved({arm: partial(repeated, call, times, 1) for arm, call in arms.items()}, rounds)
    gigabytes = size * times / 1e9
    name = f"body of {size / MIB:g} MiB"
    return [
        rate_row(
            f"{name} of a command", "GB/s", gigabytes, seconds["request"], ("plain copy", seconds["copy"])
        ),
        rate_row(f"{name} of a reply", "GB/s", gigabytes, seconds["reply"], ("hiredis", seconds["hiredis"])),
    ]


def main() -> None:
    """Measure everything and write `docs/results/parser.json`."""
    batch.use(compile_scan())
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--commands", type=int, default=30_000, help="commands of each kind in a round")
    options = arguments.parse_args()
    rows = [row for depth in (1, 16, 1000) for row in pipelines(depth, options.commands, options.rounds)]
    rows += [row for size in (MIB // 4, MIB, 16 * MIB) for row in bodies(size, options.rounds)]
    write_results("parser", rows)


if __name__ == "__main__":
    main()

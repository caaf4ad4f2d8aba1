"""Whether a prefix is read: the time that computing it takes against measured bandwidth."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import xxhash
from pionkv.kernels import LayerSpec
from pionkv.server.tier.context import Context
from pionkv.server.tier.guard import Guard
from pionkv.server.tier.interface import Head, TierAway
from pionkv.server.tier.patience import Overdue, Patience
from pionkv.server.tier.reader import Reader, Slow
from pionkv.server.tier.record import Piece, Record, Segment
from pionkv.storage import Schema, Store

MB = 1_000_000
SCHEMA = Schema.uniform(LayerSpec("fp16", 500)).encode()
ROWS = 1000
"""Rows of two sides, 1,000 bytes each: two pieces of a megabyte."""


def now() -> float:
    """The time of the loop that runs."""
    return asyncio.get_running_loop().time()


def record(prefill_us: int = 0) -> Record:
    pieces = tuple(Piece(bytes([number]), MB, bytes(16)) for number in range(2))
    segments = (Segment(0, ROWS, pieces),)
    return Record(b"n", ROWS, (0,), (SCHEMA, SCHEMA), segments, (), (), None, None, prefill_us, 0, "here")


class SlowTier:
    """Answers each piece after some time."""

    address = "slow"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked = 0

    def shard_of(self, name: bytes) -> str:
        return "slow"

    async def get_piece(self, name: bytes, piece: bytes) -> bytes:
        self.asked += 1
        await asyncio.sleep(self.seconds)
        return bytes(MB)

    async def state(self, name: bytes) -> Any:
        raise TierAway("still")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Runs something with a reader of a tier, in a loop of its own."""

    def start(tier: Any, work: Any, deadline: float = 0.05) -> Any:
        async def main() -> Any:
            with Store.open(tmp_path / "store") as store:
                guard = Guard(tier, deadline, Counter())
                context = Context(store, guard, guard._counts, "here")
                try:
                    return await work(Reader(context), context)
                finally:
                    guard.close()

        return asyncio.run(main())

    return start


@pytest.mark.parametrize(
    "bandwidth, measured_us, asked_us, worth_it",
    [
        (0, 0, None, True),  # nothing is known of the tier: it is tried
        (10 * MB, 0, None, True),  # 0.2 s against the 0.555 s that are assumed
        (2 * MB, 0, None, False),  # 1 s against them
        (2 * MB, 3_000_000, None, True),  # 1 s against 3 s measured when it was computed
        (2 * MB, 3_000_000, 500_000, False),  # 1 s against 0.5 s that this asker needs
        (100 * MB, 1000, None, True),  # 20 ms are within the deadline of 50 ms
        (10 * MB, 1000, None, False),  # 200 ms are not
    ],
)
def test_the_decision(run, bandwidth, measured_us, asked_us, worth_it) -> None:
    async def work(reader: Reader, context: Context) -> Any:
        context.down.bytes_per_second = bandwidth
        return reader.decide(record(measured_us), asked_us)

    decision = run(SlowTier(0), work)
    assert decision.worth_it is worth_it
    assert decision.seconds == pytest.approx(2 * MB / bandwidth if bandwidth else 0)


def test_what_is_not_worth_it_is_not_read_and_the_bandwidth_is_measured_anew(run) -> None:
    tier = SlowTier(0)

    async def work(reader: Reader, context: Context) -> Any:
        context.down.bytes_per_second = 1.0
        said = await reader.take(b"n", Head(1, record().encode()), Patience(now(), 0.05))
        asked = tier.asked
        while not tier.asked:
            await asyncio.sleep(0)
        return said, asked

    said, asked = run(tier, work)
    assert said == "slower than prefill" and asked == 0 and tier.asked == 1


def test_a_transfer_that_turns_out_slow_is_given_up(run) -> None:
    tier = SlowTier(0.15)

    async def work(reader: Reader, context: Context) -> None:
        # The pieces are zeros, as their sender says.
        digest = xxhash.xxh3_128_digest(bytes(MB))
        pieces = tuple(Piece(bytes([number]), MB, digest) for number in range(16))
        found = record(MB)  # a second
        slow = Record(
            b"n", 8 * ROWS, (0,), found.schemas, (Segment(0, 8 * ROWS, pieces),),
            (), (), None, None, MB, 0, "here",
        )  # fmt: skip
        with pytest.raises(Slow):
            await reader.take(b"n", Head(1, slow.encode()), Patience(now(), 0.05))
        assert context.store.image(b"n") is None
        assert 0 < context.down.bytes_per_second < 100 * MB

    run(tier, work)
    assert tier.asked < 16


def test_the_questions_of_a_read_share_one_deadline_until_its_record_is_there() -> None:
    read = Patience(began=10.0, deadline=1.0)
    assert read.question(10.0) == 1.0 and read.question(10.75) == 0.25
    with pytest.raises(Overdue):
        read.question(11.0)
    read.known(5.0)
    assert read.question(12.0) == 1.0 and read.left(12.0) == 3.0 and read.question(14.5) == 0.5
    with pytest.raises(Overdue):
        read.left(15.0)


@pytest.mark.parametrize(
    "prefill_us, saved, until",
    [
        (None, 0.0, 21.0),  # nobody knows yet how long computing takes
        (None, 5.0, 25.0),  # the record says so
        (3_000_000, 5.0, 23.0),  # who asks knows better
        (1_000, 5.0, 21.0),  # what takes less than the deadline is waited for so long
    ],
)
def test_who_joins_a_read_waits_as_long_as_if_it_were_its_own(prefill_us, saved, until) -> None:
    other = Patience(began=12.0, deadline=1.0, prefill_us=60_000_000, saved=saved)
    assert Patience(20.0, 1.0, prefill_us).of_joiner(other) == until

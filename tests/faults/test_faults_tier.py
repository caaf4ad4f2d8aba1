"""A tier whose shards and servers die, stall, fill up and are cut off. For long: `make faults`."""

from __future__ import annotations

from faults_tier import TierLoop


def test_a_tier_breaks_in_every_way_and_no_row_is_wrong(tmp_path) -> None:
    loop = TierLoop(tmp_path, 3)
    loop.run(7)
    assert [loop.counts[kind] for kind in loop.kinds] == [1] * 7
    assert loop.counts["hits"] > 30 and loop.counts["rows"] > 1000

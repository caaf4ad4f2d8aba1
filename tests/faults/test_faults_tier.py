"""A tier whose shards and servers die, stall, fill up and are cut off. For long: `make faults`."""

from __future__ import annotations

import network
import pytest
from faults_network import NetworkLoop
from faults_tier import TierLoop


def test_a_tier_breaks_in_every_way_and_no_row_is_wrong(tmp_path) -> None:
    loop = TierLoop(tmp_path, 3)
    loop.run(7)
    assert [loop.counts[kind] for kind in loop.kinds] == [1] * 7
    assert loop.counts["hits"] > 30 and loop.counts["rows"] > 1000


@pytest.mark.skipif(not network.may_be_made(), reason="network namespaces may not be made here")
def test_links_of_a_tier_are_cut_without_a_word_and_no_row_is_wrong(tmp_path) -> None:
    loop = NetworkLoop(tmp_path, 4)
    loop.run(2)
    assert [loop.counts[kind] for kind in loop.kinds] == [1, 1, 0]
    assert loop.counts["hits"] > 15 and loop.counts["rows"] > 1000

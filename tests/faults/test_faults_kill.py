"""kill -9 at random moments: nothing acknowledged is lost, no row is wrong. For long: `make faults`."""

from __future__ import annotations

import pytest
from faults_killing import KillLoop


@pytest.mark.parametrize("durability, rounds", [("everysec", 5), ("always", 2)])
def test_workers_supervisor_and_writers_are_killed(durability, rounds, tmp_path) -> None:
    loop = KillLoop(tmp_path, 7, "--durability", durability)
    loop.run(rounds)
    assert sum(loop.killed.values()) == rounds
    assert loop.tally.counts["done"] > 10 and loop.tally.counts["seen"] > 1000

"""Prefixes whose layers code groups of rows: the tier keeps the groups and the tail as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tier_clients import Peer

DIM, LAYERS = 32, 2
SIDES = ("k", "v")


def add(peer: Peer, format: str, start: int, end: int) -> None:
    """Publish rows [start, end) of every layer and side."""
    txn = peer.command("KV.PREFIX.BEGIN", "n", "KV", DIM, format, "LAYERS", LAYERS)
    for layer in range(LAYERS):
        for number, side in enumerate(SIDES):
            values = np.random.default_rng([layer, number, start]).standard_normal((end - start, DIM))
            blob = values.astype("<f2").tobytes()
            words = (f"n_p{side}", layer, start, end - start, blob, "FMT", "F16", "TXN", txn)
            assert peer.command("V.STOREBATCH", *words) == "OK"
    assert isinstance(peer.command("KV.PREFIX.PUBLISH", txn), list)
    peer.written("n")


def read(peer: Peer, tokens: int) -> Any:
    """Every row, decoded; lists of bytes."""
    found = peer.command("V.FETCHALL", "n_pk", "n_pv", 0, tokens, "FMT", "F16")
    assert len(found) == 2 * LAYERS, found
    return found


def writes_nothing_new(peer: Peer) -> None:
    """Its bytes have the digests of those that the tier has."""
    peer.command("KV.PREFIX.EXPIRE", "n", 5000)
    peer.written("n")
    assert not peer.tier().get("tier_bytes_out")


@pytest.mark.parametrize("format", ["kivi4", "kivi2"])
def test_groups_and_tail_come_back_as_they_were(pair, format) -> None:
    one, other = pair
    add(one, format, 0, 1000)
    assert other.lookup("n") == "HIT", other.tier()
    assert read(other, 1000) == read(one, 1000)
    writes_nothing_new(other)


def test_a_prefix_that_was_cut_within_a_group_and_grew_goes_on_alike_on_both(pair) -> None:
    one, other = pair
    add(one, "kivi4", 0, 1000)
    assert other.lookup("n") == "HIT", other.tier()
    assert one.command("KV.PREFIX.TRUNCATE", "n", 805) > 0
    add(one, "kivi4", 805, 1100)
    assert other.lookup("n") == "HIT", (other.tier(), other.explain("n"))
    assert read(other, 1100) == read(one, 1100)
    assert other.tier()["tier_refreshes"] == 1
    writes_nothing_new(other)
    add(other, "kivi4", 1100, 1400)
    assert one.lookup("n") == "HIT"
    assert read(one, 1400) == read(other, 1400)

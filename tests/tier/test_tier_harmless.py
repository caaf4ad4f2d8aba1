"""A tier that is dead, slow, full, refuses or lies costs its content and nothing else."""

from __future__ import annotations

import signal

import pytest
from prefix_rows import expected, publish, whole
from tier_clients import Peer, Relay, until

DEADLINE = ("--tier-deadline", "1000")


@pytest.fixture
def alone(peer, node) -> Peer:
    """A server on a tier of one node."""
    return peer(node.url, *DEADLINE)


def test_a_server_starts_and_serves_without_its_tier(peer, node) -> None:
    node.kill()
    server = peer(node.url, *DEADLINE)
    publish(server, "n", 1, 0, 8)
    assert server.lookup("n") == "HIT" and server.lookup("absent") == "MISS"
    assert server.tier()["tier_state"].startswith("away")
    node.start()
    server.written("n")
    assert server.tier()["tier_state"] == "asked"


def test_a_stopped_tier_is_asked_once_and_hits_return_with_it(alone, node) -> None:
    publish(alone, "n", 1, 0, 8)
    alone.written("n")
    alone.command("FLUSHALL")
    node.signal(signal.SIGSTOP)
    failures = alone.tier().get("tier_away", 0)
    for number in range(50):
        assert alone.lookup(f"absent{number}") == "MISS"
    assert alone.lookup("n") == "MISS"
    assert alone.tier()["tier_away"] == failures + 1
    assert alone.command("KV.PREFIX.CLAIM", "n", 1000) == b"CLAIMED"
    node.signal(signal.SIGCONT)
    until(lambda: alone.lookup("n") == "HIT", "the hit")
    assert whole(alone, "n", 8) == expected((1, 0, 8))


@pytest.mark.parametrize(
    "deadline, prefill_ms, reason",
    [
        ("2000", 2000, "overdue"),  # a piece might take 2.64 s
        ("300", 60_000, "away"),  # a piece may take 0.94 s
    ],
)
def test_a_shard_that_stops_in_mid_transfer_costs_the_prefill_or_a_piece(
    peer, node, deadline, prefill_ms, reason
) -> None:
    with Relay(node.port) as relay:
        server = peer(relay.url, "--tier-deadline", deadline)
        publish(server, "n", 1, 0, 60_000)
        server.written("n")
        server.command("FLUSHALL")
        relay.after(5 << 20, lambda: node.signal(signal.SIGSTOP))
        assert server.command("KV.PREFIX.LOOKUP", "n", "PREFILL_MS", prefill_ms) == "MISS"
        assert relay.passed >= 5 << 20
        counts = server.tier()
        assert counts[f"tier_miss_{reason}"] == 1 and counts["tier_breaker_opened"] == 1
        assert not server.command("DBSIZE") and server.lookup("other") == "MISS"
        node.signal(signal.SIGCONT)
        until(lambda: server.command("KV.PREFIX.LOOKUP", "n", "PREFILL_MS", 3_600_000) == "HIT", "the hit")
    assert whole(server, "n", 60_000) == expected((1, 0, 60_000))


def test_a_drop_that_the_tier_was_not_told_of_is_told_later_even_after_a_crash(alone, node, peer) -> None:
    publish(alone, "n", 1, 0, 8)
    alone.written("n")
    node.signal(signal.SIGSTOP)
    assert alone.command("KV.PREFIX.DROP", "n") == 1
    alone.server.kill()
    node.signal(signal.SIGCONT)
    alone.server.start()
    again = Peer(alone.server)
    assert again.lookup("n") == "MISS"
    until(lambda: not list(node.client.scan_iter(match="*:p*")), "the drop")
    assert peer(node.url).lookup("n") == "MISS"
    again.close()


def test_a_full_tier_keeps_nothing_half_and_takes_more_when_it_can(alone, node) -> None:
    publish(alone, "small", 1, 0, 8)
    alone.written("small")
    node.client.config_set("maxmemory", "1mb")
    publish(alone, "n", 2, 0, 3000)
    until(lambda: alone.tier().get("tier_unwritten_full"), "the refusal")
    assert alone.lookup("n") == "HIT" and alone.explain("n")["tier"] != "the same"
    assert not node.client.exists(*(node.client.keys("*:n:h") or ["none"]))
    node.client.config_set("maxmemory", "0")
    alone.written("n")


def test_a_piece_takes_as_much_memory_of_the_tier_as_it_has_bytes(alone, node) -> None:
    publish(alone, "n", 1, 0, 20_000)
    alone.written("n")
    pieces = {key: node.client.strlen(key) for key in node.client.scan_iter(match="*:p*")}
    longest = max(pieces, key=pieces.__getitem__)
    assert pieces[longest] > 4_000_000
    assert node.client.memory_usage(longest) < 1.01 * pieces[longest]


@pytest.mark.parametrize("what", ["flipped", "shorter", "gone"])
def test_a_damaged_or_missing_piece_is_a_miss_and_never_rows(alone, node, what) -> None:
    publish(alone, "n", 1, 0, 2000)
    alone.written("n")
    alone.command("FLUSHALL")
    client = node.client
    piece = next(client.scan_iter(match="*:p*"))
    value = client.get(piece)
    if what == "gone":
        client.delete(piece)
    else:
        client.set(piece, value[:-1] if what == "shorter" else value[:70_000] + b"\xff" + value[70_001:])
    assert alone.lookup("n") == "MISS"
    reason = "tier_miss_incomplete" if what == "gone" else "tier_miss_damaged"
    assert alone.tier()[reason] == 1
    assert alone.command("KV.PREFIX.EXPLAIN", "n")[1] == b"MISS"
    publish(alone, "n", 3, 0, 5)
    alone.written("n")
    alone.command("FLUSHALL")
    assert alone.lookup("n") == "HIT" and whole(alone, "n", 5) == expected((3, 0, 5))


def test_a_record_that_is_damaged_is_a_miss(alone, node) -> None:
    publish(alone, "n", 1, 0, 8)
    alone.written("n")
    alone.command("FLUSHALL")
    key = next(node.client.scan_iter(match="*:n:h"))
    record = node.client.hget(key, "r")
    node.client.hset(key, "r", record[:-20] + b"x" + record[-19:])
    assert alone.lookup("n") == "MISS" and alone.tier()["tier_miss_unreadable"] == 1


def test_a_tier_that_lost_everything_is_filled_again(alone, node) -> None:
    publish(alone, "n", 1, 0, 8)
    alone.written("n")
    node.client.flushall()
    assert alone.lookup("n") == "HIT"
    alone.written("n")


def test_a_tier_that_refuses_is_reported_and_costs_nothing(peer, node) -> None:
    node.client.config_set("requirepass", "secret")
    server = peer(node.url, *DEADLINE)
    publish(server, "n", 1, 0, 8)
    assert server.lookup("n") == "HIT" and server.lookup("absent") == "MISS"
    assert "assword" in server.explain("n")["tier"] or "uthentication" in server.explain("n")["tier"]
    allowed = peer(node.url.replace("redis://", "redis://:secret@"), *DEADLINE)
    publish(allowed, "m", 1, 0, 8)
    allowed.written("m")
    assert "secret" not in str(allowed.tier()) and "secret" not in str(
        allowed.command("CONFIG", "GET", "tier*")
    )


def test_the_queue_is_bounded_and_what_overflowed_is_written_later(peer, node) -> None:
    server = peer(node.url, *DEADLINE, "--tier-queue-bytes", "100kb")
    node.signal(signal.SIGSTOP)
    for number in range(6):
        publish(server, f"n{number}", number, 0, 300)
    assert server.tier()["tier_overflow"] >= 4
    assert int(server.tier()["tier_queued_bytes"]) <= 200_000
    node.signal(signal.SIGCONT)
    for number in range(6):
        server.written(f"n{number}")


def test_an_address_of_an_unknown_kind_ends_the_start(start_server) -> None:
    with pytest.raises(AssertionError, match="begins with none of redis://"):
        start_server("--tier", "ftp://somewhere")

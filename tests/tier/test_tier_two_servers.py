"""Two servers on one tier: what is published on one can be restored on the other, as it is now."""

from __future__ import annotations

import signal
from typing import Any

import msgpack
import numpy as np
import pytest
from prefix_rows import expected, publish, rows, whole
from tier_clients import Peer, until

MANIFEST = {"weights": "w", "tokens": "t"}


def published(peer: Peer, name: str, owner: int, end: int, *options: Any, start: int = 0) -> None:
    """A prefix that the tier holds."""
    publish(peer, name, owner, start, end, *options)
    peer.written(name)


def test_what_one_publishes_the_other_restores_with_all_that_belongs_to_it(pair, cluster) -> None:
    one, other = pair
    ids = np.arange(100, 400, dtype="<u4")
    manifest = msgpack.packb({"weights": "w", "head_dim": 32})
    options = ("TOKENS", ids.tobytes(), "MODEL", "m", "MANIFEST", manifest, "PREFILL_MS", 777)
    publish(one, "n", 5, 0, 300, *options)
    one.command("SSM.PREFIX.STORE", "n", 3, b"state" * 1000)
    one.command("KV.PREFIX.EXPIRE", "n", 5000)
    one.written("n")
    assert other.lookup("n") == "HIT", other.tier()
    assert whole(other, "n", 300) == expected((5, 0, 300))
    assert other.command("SSM.PREFIX.FETCH", "n", 3) == b"state" * 1000
    assert other.command("KV.PREFIX.MANIFEST", "n") == manifest
    assert other.command("KV.PREFIX.BLOCKS", "n") == one.command("KV.PREFIX.BLOCKS", "n")
    assert 4900 < other.command("KV.PREFIX.TTL", "n") <= 5000
    explained = other.explain("n")
    assert explained["where"] == "here and in the tier" and explained["tier"] == "the same"
    keys = [key for key in cluster.all_keys() if not key.startswith(b"pionkv:i:")]
    assert len({key[key.index(b"{") : key.index(b"}")] for key in keys}) == 1, keys
    assert other.tier()["tier_hits"] == 1


@pytest.mark.parametrize(
    "words",
    [
        ("V.FETCHALL", "n_pk", "n_pv", 0, 8, "FMT", "RAW"),
        ("V.FETCH", "n_pk", 0, "RANGE", 0, 8, "FMT", "RAW"),
        ("KV.PREFIX.MAP", "n"),
        ("V.MAP", "n_pk", 0, 8),
        ("KV.PREFIX.WARM", "n"),
        ("KV.PREFIX.MANIFEST", "n"),
        ("KV.PREFIX.ADMIT", "n", msgpack.packb({"weights": "w"})),
        ("KV.PREFIX.FORK", "n", "child"),
        ("KV.PREFIX.VERIFY", "n"),
        ("KV.PREFIX.PIN", "n"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_needs_the_prefix_brings_it(pair, words) -> None:
    one, other = pair
    published(one, "n", 1, 8, "MANIFEST", msgpack.packb({"weights": "w"}))
    answer = other.command(*words)
    assert answer is not None and not isinstance(answer, Exception), answer
    assert whole(other, "n", 8) == expected((1, 0, 8))


def test_the_longest_prefix_of_some_tokens_is_found_in_the_tier(pair) -> None:
    one, other = pair
    ids = np.arange(1, 501, dtype="<u4")
    published(one, "short", 1, 200, "TOKENS", ids[:200].tobytes(), "MODEL", "m")
    published(one, "long", 2, 450, "TOKENS", ids[:450].tobytes(), "MODEL", "m")
    elsewhere = np.concatenate([ids[:260], ids[:100] + 1000]).astype("<u4")
    found = other.command("KV.PREFIX.MATCH", elsewhere.tobytes(), "MODEL", "m")
    assert found[:2] == [b"long", 260]
    assert other.command("KV.PREFIX.MATCH", ids.tobytes(), "MODEL", "m")[:2] == [b"long", 450]
    assert other.command("KV.PREFIX.MATCH", ids.tobytes(), "MODEL", "another") is None
    assert whole(other, "long", 450) == expected((2, 0, 450))


def test_an_entry_of_the_index_that_leads_nowhere_hides_no_other(pair, cluster) -> None:
    one, other = pair
    ids = np.arange(7, 507, dtype="<u4")
    published(one, "short", 1, 200, "TOKENS", ids[:200].tobytes())
    published(one, "gone", 2, 450, "TOKENS", ids[:450].tobytes())
    one.command("KV.PREFIX.DROP", "gone")
    assert other.command("KV.PREFIX.MATCH", ids.tobytes())[:2] == [b"short", 200]


def test_rows_that_were_replaced_are_not_served_again(pair) -> None:
    one, other = pair
    published(one, "n", 1, 40)
    assert other.lookup("n") == "HIT", other.tier()
    assert other.command("KV.PREFIX.PIN", "n") == 1
    one.command("KV.PREFIX.TRUNCATE", "n", 10)
    published(one, "n", 2, 30, start=10)
    assert other.lookup("n") == "HIT", other.tier()
    assert whole(other, "n", 30) == expected((1, 0, 10), (2, 10, 30))
    assert other.explain("n")["pins"] == 1


def test_rows_that_are_added_are_written_alone(pair, cluster) -> None:
    one, other = pair
    published(one, "n", 1, 2000)
    before = one.tier()["tier_bytes_out"]
    published(one, "n", 1, 2010, start=2000)
    assert one.tier()["tier_bytes_out"] - before == 10 * 4 * len(rows(1, 0, "k", 0, 1))
    assert other.lookup("n") == "HIT", other.tier()
    assert whole(other, "n", 2010) == expected((1, 0, 2010))


def test_a_drop_on_one_is_a_drop_on_the_other(pair, cluster) -> None:
    one, other = pair
    published(one, "n", 1, 8)
    assert other.lookup("n") == "HIT", other.tier()
    assert one.command("KV.PREFIX.DROP", "n") == 1
    assert other.lookup("n") == "MISS" and one.lookup("n") == "MISS"
    assert not [key for key in cluster.all_keys() if b":p" in key]
    published(other, "n", 2, 8)
    assert one.lookup("n") == "HIT" and whole(one, "n", 8) == expected((2, 0, 8))


def test_rows_that_were_all_cut_do_not_come_back(pair) -> None:
    one, other = pair
    published(one, "n", 1, 8)
    one.command("KV.PREFIX.TRUNCATE", "n", 0)
    assert one.lookup("n") == "MISS"
    published(one, "n", 2, 5)
    assert other.lookup("n") == "HIT" and whole(other, "n", 5) == expected((2, 0, 5))


def test_a_prefix_that_is_registered_here_and_empty_is_brought(pair) -> None:
    one, other = pair
    published(one, "n", 1, 8)
    assert other.command("KV.PREFIX.REGISTER", "n", 32, "fp16") == "OK"
    assert other.lookup("n") == "HIT" and whole(other, "n", 8) == expected((1, 0, 8))


def test_a_drop_reaches_what_is_in_the_tier_alone(pair, cluster) -> None:
    one, other = pair
    published(one, "n", 1, 8)
    assert other.command("KV.PREFIX.DROP", "n", "nobody") == 1
    assert one.lookup("n") == "MISS"


def test_rows_stored_outside_a_transaction_are_written_too(pair) -> None:
    one, other = pair
    assert one.command("KV.PREFIX.REGISTER", "n", 32, "fp16") == "OK"
    for layer in range(2):
        for side in "kv":
            blob = rows(3, layer, side, 0, 20)
            assert one.command("V.STOREBATCH", f"n_p{side}", layer, 0, 20, blob, "FMT", "F16") == "OK"
    one.written("n")
    assert other.lookup("n") == "HIT" and whole(other, "n", 20) == expected((3, 0, 20))


def test_layers_without_rows_and_states_alone_go_along(pair) -> None:
    one, other = pair
    one.command("KV.PREFIX.REGISTER", "hybrid", 32, "fp16")
    for layer in (1, 4):
        for side in "kv":
            one.command(
                "V.STOREBATCH", f"hybrid_p{side}", layer, 0, 5, rows(4, layer, side, 0, 5), "FMT", "F16"
            )
    one.command("SSM.PREFIX.STORE", "hybrid", 0, b"zero")
    one.command("SSM.PREFIX.STORE", "states", 7, b"seven" * 300_000)
    one.command("KV.PREFIX.REGISTER", "both", 32, "fp16")
    one.command("SSM.PREFIX.STORE", "both", 1, b"one")
    for name in ("hybrid", "states", "both"):
        one.written(name)
        assert other.lookup(name) == "HIT", name
    for layer in (1, 4):
        fetched = other.command("V.FETCH", "hybrid_pk", layer, "RANGE", 0, 5, "FMT", "RAW")
        assert fetched == rows(4, layer, "k", 0, 5)
    assert other.command("V.FETCH", "hybrid_pk", 0, "RANGE", 0, 5, "FMT", "RAW") is None
    assert other.command("SSM.PREFIX.FETCH", "hybrid", 0) == b"zero"
    assert other.command("SSM.PREFIX.FETCH", "states", 7) == b"seven" * 300_000
    assert other.command("SSM.PREFIX.FETCH", "both", 1) == b"one"
    assert b"value_dim:32" in other.command("V.INFO", "both_pk")


def test_a_claim_holds_on_every_server_until_the_prefix_can_be_had(pair) -> None:
    one, other = pair
    claimed = one.connect()
    assert claimed.execute_command("KV.PREFIX.CLAIM", "n", 60_000) == b"CLAIMED"
    assert other.command("KV.PREFIX.CLAIM", "n", 60_000) == b"HELD"
    waiting = other.connect()
    for piece in waiting.connection.pack_command("KV.PREFIX.LOOKUP", "n", "WAIT", 20_000):
        waiting.connection._sock.sendall(piece)
    publish(one, "n", 6, 0, 9)
    claimed.execute_command("KV.PREFIX.CLAIM", "n", 0)
    assert waiting.connection.read_response() == b"HIT"
    assert whole(other, "n", 9) == expected((6, 0, 9))
    assert other.command("KV.PREFIX.CLAIM", "n", 60_000) == "HIT"


def test_a_claim_ends_with_its_connection(pair) -> None:
    one, other = pair
    claimed = one.connect()
    assert claimed.execute_command("KV.PREFIX.CLAIM", "n", 60_000) == b"CLAIMED"
    claimed.close()
    until(lambda: other.command("KV.PREFIX.CLAIM", "n", 60_000) == b"CLAIMED", "the claim")


def test_what_is_evicted_here_comes_back_and_nothing_is_lost(peer, cluster) -> None:
    one = peer(cluster.url, "--max-bytes", "4mb")
    names = [f"n{number}" for number in range(12)]
    for number, name in enumerate(names):
        published(one, name, number, 2000)
    assert one.client.info("stats")["evicted_keys"] > 3
    for number, name in enumerate(names):
        assert one.lookup(name) == "HIT", one.explain(name)
        assert whole(one, name, 2000) == expected((number, 0, 2000))


def test_a_restarted_server_writes_what_a_crash_left_unwritten(peer, node) -> None:
    one = peer(node.url, "--tier-deadline", "500")
    node.signal(signal.SIGSTOP)
    publish(one, "n", 1, 0, 8)
    one.server.kill()
    node.signal(signal.SIGCONT)
    one.server.start()
    again = Peer(one.server)
    again.written("n")
    assert peer(node.url).lookup("n") == "HIT"


def test_a_user_brings_only_what_its_patterns_allow(pair) -> None:
    one, other = pair
    ids = np.arange(1, 201, dtype="<u4")
    published(one, "team-b:n", 1, 200, "TOKENS", ids.tobytes())
    other.command("ACL", "SETUSER", "a", "reset", "on", ">pw", "~team-a:*", "+@all")
    restricted = other.connect()
    restricted.execute_command("AUTH", "a", "pw")
    assert restricted.execute_command("KV.PREFIX.MATCH", ids.tobytes()) is None
    with pytest.raises(Exception, match="No permissions|NOPERM"):
        restricted.execute_command("KV.PREFIX.LOOKUP", "team-b:n")
    assert other.explain("team-b:n")["where"] == "in the tier"


def test_tenants_do_not_meet_in_the_tier(pair) -> None:
    """The same name and tokens: each finds its own, wherever it is stored."""
    one, other = pair
    ids = np.arange(9, 209, dtype="<u4")
    for server in pair:
        for tenant in ("red", "blue"):
            server.command("ACL", "SETUSER", tenant, "reset", "on", ">pw", f"tenant={tenant}", "~*", "+@all")
    published(one, "3:red,n", 1, 200, "TOKENS", ids.tobytes())
    red, blue = other.connect(), other.connect()
    red.execute_command("AUTH", "red", "pw")
    blue.execute_command("AUTH", "blue", "pw")
    assert blue.execute_command("KV.PREFIX.MATCH", ids.tobytes()) is None
    assert other.command("KV.PREFIX.MATCH", ids.tobytes()) is None
    assert blue.execute_command("KV.PREFIX.LOOKUP", "n") in (b"MISS", "MISS")
    assert red.execute_command("KV.PREFIX.MATCH", ids.tobytes())[:2] == [b"n", 200]
    assert red.execute_command("KV.PREFIX.LOOKUP", "n") in (b"HIT", "HIT")


def test_workers_of_one_server_fetch_a_prefix_once(peer, cluster) -> None:
    one, other = peer(cluster.url), peer(cluster.url, "--workers", "2")
    published(one, "n", 1, 3000)
    many = [other.connect() for _ in range(8)]
    for each in many:
        for piece in each.connection.pack_command("KV.PREFIX.LOOKUP", "n"):
            each.connection._sock.sendall(piece)
    assert [each.connection.read_response() for each in many] == [b"HIT"] * 8
    until(lambda: other.tier().get("tier_bytes_in"), "the count")
    assert other.tier()["tier_bytes_in"] == 3000 * 4 * 64


def test_a_plain_address_of_a_cluster_will_do(peer, cluster) -> None:
    one = peer(cluster.nodes[1].url)
    for number in range(8):
        published(one, f"n{number}", number, 4)
    assert all([key for key in node.client.scan_iter()] for node in cluster.nodes)


def test_attention_finds_the_rows_of_another_server(pair) -> None:
    one, other = pair
    published(one, "n", 1, 8)
    found = other.command("ATTEND.PREFIX.LOOKUP", "n_attn", 0)
    assert found == one.command("ATTEND.PREFIX.LOOKUP", "n_attn", 0) and not isinstance(found, Exception)
    assert whole(other, "n", 8) == expected((1, 0, 8))


def test_rows_for_attention_that_cannot_be_stored_drop_nothing_from_the_tier(pair) -> None:
    one, other = pair
    good, bad = np.ones((2, 8, 64), "<f4"), np.full((2, 8, 64), 1e30, "<f4")
    words = ("ATTEND.PREFIX.STORE", "s", 0, *good.shape)
    assert one.command(*words, good.tobytes(), good.tobytes()) == "OK"
    one.written("s:attend")
    assert "is beyond 65504" in str(other.command(*words, bad.tobytes(), good.tobytes()))
    assert other.lookup("s:attend") == "HIT"

"""ATTEND.PREFIX.*: attention over rows that the server holds, compared with the oracle."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attend_peer import Layer, assert_close, fused, normal, output, output_and_lse, query
from pionkv.kernels.attention import Selector, contiguous_map, oracle
from pionkv.protocol.request import encode_command
from server_process import ServerProcess

FORMATS = ("fp32", "fp16", "bf16", "int8", "fp8", "turbo4", "mlx4g32", "mlx8g64", "kivi4_keys")
NOT_FOUND = "ERR ATTEND.PREFIX.QUERY failed (session not found, or unsupported D)"


def connected(server: ServerProcess, wire_class: Any) -> Any:
    return wire_class(socket.create_connection(("127.0.0.1", server.port)))


def test_what_is_stored_is_attended(wire: Any) -> None:
    layer = Layer(1)
    assert wire.command("ATTEND.PREFIX.LOOKUP", "s", 0) == "MISS"
    assert layer.store(wire, "s") == "OK"
    assert wire.command("ATTEND.PREFIX.LOOKUP", "s", 0) == "HIT"
    assert wire.command("ATTEND.PREFIX.LOOKUP", "s", 1) == "MISS"
    one, many = normal(9, 2, 1, 64), normal(10, 2, 7, 64)
    assert_close(output(query(wire, "s", one), one), layer.expected(one)[0])
    out, lse = output_and_lse(query(wire, "s", many), many)
    for found, expected in zip((out, lse), layer.expected(many), strict=True):
        assert_close(found, expected)
    out, lse = output_and_lse(query(wire, "s", one, 0, "LSE"), one)
    assert_close(lse, layer.expected(one)[1])


@pytest.mark.parametrize("window", [-1, 0, 1, 5, 40, 100])
def test_a_window_keeps_the_last_rows(wire: Any, window: int) -> None:
    layer, q = Layer(1), normal(9, 2, 3, 64)
    layer.store(wire, "s")
    out, lse = output_and_lse(query(wire, "s", q, 0, window), q)
    expected = layer.expected(q, window=max(0, window))
    assert_close(out, expected[0])
    assert_close(lse, expected[1])
    suffix = normal(11, 2, 3, 64), normal(12, 2, 3, 64)
    found = output(fused(wire, "s", q, suffix, bytes([0, 1]), window), q)
    assert_close(found, layer.expected(q, window=max(0, window), suffix=suffix)[0])


@pytest.mark.parametrize("head_map", [bytes([0, 0, 1, 1]), bytes([1, 0, 1, 0]), bytes([1, 1, 1, 1])])
@pytest.mark.parametrize(("count", "rows"), [(1, 1), (1, 6), (6, 6), (3, 6), (2, 0)])
def test_rows_of_the_client_follow_the_stored_ones(wire: Any, head_map: bytes, count: int, rows: int) -> None:
    layer, q = Layer(1), normal(9, 4, count, 64)
    layer.store(wire, "s")
    suffix = normal(11, 2, rows, 64), normal(12, 2, rows, 64)
    found = output(fused(wire, "s", q, suffix, head_map), q)
    assert_close(found, layer.expected(q, suffix=suffix, head_map=tuple(head_map))[0])


@pytest.mark.parametrize("window", [(), (4,)])
def test_rows_that_the_client_names(wire: Any, window: tuple[int, ...]) -> None:
    layer, q = Layer(1), normal(9, 4, 1, 64)
    layer.store(wire, "s")
    indices = np.stack([np.random.default_rng(head).permutation(40)[:9] for head in range(4)]).astype(
        np.int32
    )
    counts = np.array([9, 1, 4, 2], np.uint32)
    blobs = q.tobytes(), indices.tobytes(), counts.tobytes()
    answer = wire.command("ATTEND.PREFIX.QUERY_SPARSE", "s", 0, 4, 64, 9, *blobs, *window)
    seen = oracle.seen_by_index(indices, counts, 40, sum(window))
    assert_close(output(answer, q), layer.expected(q, seen=seen)[0])


@pytest.mark.parametrize("selector", list(Selector))
@pytest.mark.parametrize("window", [-1, 6])
@pytest.mark.parametrize("head_map", [b"", bytes([1, 0, 0, 1])])
def test_blocks_that_the_server_chooses(wire: Any, selector: Selector, window: int, head_map: bytes) -> None:
    layer, q = Layer(1), normal(9, 4, 1, 64)
    layer.store(wire, "s")
    heads = tuple(head_map) or contiguous_map(4, 2)
    ranks = oracle.block_scores(q[:, 0], layer.k, heads, 8, selector)
    seen = oracle.seen_in_blocks(ranks, 40, 8, 2, window)
    numbers = "s", 0, 4, 64, 8, 2, 2
    answer = wire.command(
        "ATTEND.PREFIX.QUERY_SPARSE_AUTO", *numbers, q.tobytes(), head_map, window, int(selector)
    )
    assert_close(output(answer, q), layer.expected(q, seen=seen, head_map=heads)[0])
    for rows in (3, 0):
        suffix = normal(11, 2, rows, 64), normal(12, 2, rows, 64)
        blobs = q.tobytes(), suffix[0].tobytes(), suffix[1].tobytes(), head_map
        answer = wire.command(
            "ATTEND.PREFIX.QUERY_SPARSE_AUTO_FUSED", *numbers, rows, *blobs, window, int(selector)
        )
        assert_close(output(answer, q), layer.expected(q, seen=seen, suffix=suffix, head_map=heads)[0])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["n", "n_attn"])
def test_a_stored_prefix_needs_no_store(wire: Any, format: str, name: str) -> None:
    layer, q = Layer(1, rows=300), normal(9, 4, 2, 64)
    layer.store_prefix(wire, "n", 0, format)
    for side, array in (("_pk", "k"), ("_pv", "v")):
        stored = np.frombuffer(wire.command("V.FETCH", "n" + side, 0, "RANGE", 0, 300), np.float32)
        setattr(layer, array, stored.reshape(300, 2, 64).swapaxes(0, 1))
    assert wire.command("ATTEND.PREFIX.LOOKUP", name, 0) == "HIT"
    out, lse = output_and_lse(query(wire, name, q), q)
    expected = layer.expected(q)
    assert_close(out, expected[0])
    assert_close(lse, expected[1])


def test_what_was_stored_under_a_name_comes_before_a_prefix_of_that_name(wire: Any) -> None:
    own, prefix, q = Layer(1), Layer(2, rows=30), normal(9, 2, 1, 64)
    prefix.store_prefix(wire, "n")
    assert_close(output(query(wire, "n", q), q), prefix.expected(q)[0])
    own.store(wire, "n")
    assert_close(output(query(wire, "n", q), q), own.expected(q)[0])
    assert wire.command("ATTEND.PREFIX.DROP", "n", "nobody") == 1
    assert wire.command("ATTEND.PREFIX.DROP", "n") == 0
    assert_close(output(query(wire, "n", q), q), prefix.expected(q)[0])
    assert wire.command("KV.PREFIX.DROP", "n") == 1
    assert str(query(wire, "n", q)) == NOT_FOUND


@pytest.mark.parametrize("rows", [40, 25, 70])
def test_rows_stored_again_are_never_answered_from_a_copy(wire: Any, rows: int) -> None:
    q = normal(9, 2, 1, 64)
    for seed, count in ((1, 40), (2, rows)):
        layer = Layer(seed, rows=count)
        assert layer.store(wire, "s") == "OK"
        other = Layer(5)
        assert other.store(wire, "s", 3) == "OK"
        assert_close(output(query(wire, "s", q), q), layer.expected(q)[0])
        assert_close(output(query(wire, "s", q, 3), q), other.expected(q)[0])
    assert b"layer_0_tokens:%d\r\n" % rows in wire.command("V.INFO", "s:attend_pk")


def test_a_prefix_that_changes_is_seen_as_it_is(wire: Any) -> None:
    layer, q = Layer(1), normal(9, 2, 1, 64)
    layer.store_prefix(wire, "n")
    query(wire, "n", q)
    wire.command("KV.PREFIX.TRUNCATE", "n", 10)
    layer.k, layer.v = layer.k[:, :10], layer.v[:, :10]
    assert_close(output(query(wire, "n", q), q), layer.expected(q)[0])
    wire.command("KV.PREFIX.DROP", "n")
    assert str(query(wire, "n", q)) == NOT_FOUND


@pytest.mark.parametrize("crash", [False, True])
def test_stored_rows_survive_a_restart(
    start_server: Callable[..., Any], wire_class: Any, crash: bool
) -> None:
    server = start_server()
    layer, q = Layer(1), normal(9, 2, 2, 64)
    wire = connected(server, wire_class)
    assert layer.store(wire, "s") == "OK"
    wire.close()
    server.restart(crash=crash)
    wire = connected(server, wire_class)
    assert wire.command("ATTEND.PREFIX.LOOKUP", "s", 0) == "HIT"
    assert_close(output_and_lse(query(wire, "s", q), q)[0], layer.expected(q)[0])
    wire.close()


def test_two_workers_see_the_same_rows(start_server: Callable[..., Any], wire_class: Any) -> None:
    server = start_server("--workers", "2")
    wires = {}
    while len(wires) < 2:
        wire = connected(server, wire_class)
        lines = wire.command("INFO", "workers").split(b"\r\n")
        wires[next(line for line in lines if line.startswith(b"worker_id"))] = wire
    first, second = wires.values()
    q = normal(9, 2, 1, 64)
    for seed in (1, 2, 3):
        layer = Layer(seed)
        assert layer.store(first, "s") == "OK"
        for wire in (first, second):
            assert_close(output(query(wire, "s", q), q), layer.expected(q)[0])


def send_query(wire: Any, name: str, q: Any) -> None:
    words = "ATTEND.PREFIX.QUERY", name, 0, q.shape[0], q.shape[2], 1, q.tobytes()
    wire.send(b"".join(map(bytes, encode_command(words))))


def in_hand(app: Any) -> int:
    """Queries that wait, and the one whose rows the thread is to work on."""
    desk = app.service.attention
    return sum(map(len, desk._waiting.values())) + (desk._busy is not None)


def test_queries_that_wait_together_share_a_pass(server: Any, wire: Any) -> None:
    layers = {"a": Layer(1, rows=200), "b": Layer(2, rows=200)}
    for name, layer in layers.items():
        layer.store(wire, name)
        query(wire, name, normal(9, 4, 1, 64))
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(30)

    before = server.call(lambda app: app.service.metrics.attend_passes)
    server.call(lambda app: app.service.attention._thread.submit(hold))
    assert held.wait(30)
    wires = [server.connect() for _ in range(9)]
    asked = [("ab"[number % 2], normal(20 + number, 4, 1 + number % 3, 64)) for number in range(9)]
    for each, (name, q) in zip(wires, asked, strict=True):
        send_query(each, name, q)
        while server.call(in_hand) < len(asked[: wires.index(each) + 1]):
            pass
    go_on.set()
    for each, (name, q) in zip(wires, asked, strict=True):
        answer = each.reply()
        out = output(answer, q) if q.shape[1] == 1 else output_and_lse(answer, q)[0]
        assert_close(out, layers[name].expected(q)[0])
    assert server.call(lambda app: app.service.metrics.attend_passes) - before == 3


def test_rows_that_do_not_fit_are_decoded_for_each_query(start_local: Callable[..., Any]) -> None:
    server = start_local(attend_bytes=0)
    wire = server.connect()
    layer, q = Layer(1, rows=300), normal(9, 4, 2, 64)
    layer.store(wire, "s")
    for _ in range(2):
        assert_close(output_and_lse(query(wire, "s", q), q)[0], layer.expected(q)[0])
    assert b"attend_resident_layers:0\r\n" in wire.command("INFO", "pion")


def lookups(wire: Any, names: str) -> list[str]:
    return [wire.command("ATTEND.PREFIX.LOOKUP", name, 0) for name in names]


def test_the_least_recently_used_rows_go_cold(start_local: Callable[..., Any]) -> None:
    layer = Layer(1, rows=300)
    size = 2 * 300 * 2 * 64 * 4
    server = start_local(attend_bytes=2 * size, attend_cold="refuse")
    wire, q = server.connect(), normal(9, 2, 1, 64)
    cold = "COLDMISS session evicted to cold tier (call KV.PREFIX.WARM)"
    for name in ("a", "b", "c"):
        assert layer.store(wire, name) == "OK"
    assert lookups(wire, "abcd") == ["COLD", "HIT", "HIT", "MISS"]
    assert str(query(wire, "a", q)) == cold
    assert_close(output(query(wire, "b", q), q), layer.expected(q)[0])
    layer.store_prefix(wire, "n")
    assert str(query(wire, "n_attn", q)) == cold
    assert wire.command("KV.PREFIX.WARM", "n", 2, 64, "n_attn") == "1"
    assert_close(output(query(wire, "n_attn", q), q), layer.expected(q)[0])
    assert lookups(wire, "abc") == ["COLD", "HIT", "COLD"]
    lines = (line.split(b":", 1) for line in wire.command("INFO", "pion").split(b"\r\n") if b":" in line)
    info = {name: int(value) for name, value in lines if name.startswith(b"attend_")}
    assert info[b"attend_resident_bytes"] == 2 * size
    assert info[b"attend_resident_layers"] == info[b"attend_cold_layers"] == info[b"attend_demoted"] == 2
    assert info[b"attend_cold_misses"] == 2
    prefix = wire.command("KV.PREFIX.INFO")
    assert b"sdpa_warm:2\r\nsdpa_cold:2\r\nsdpa_demotions:2\r\nsdpa_rehydrates:0" in prefix


def test_what_is_dropped_takes_its_copies_along(server: Any, wire: Any) -> None:
    layer, q = Layer(1), normal(9, 2, 1, 64)
    for name in ("a", "b"):
        layer.store(wire, name)
        query(wire, name, q)
    wire.command("ATTEND.PREFIX.DROP", "a")
    assert server.call(lambda app: len(app.service.attention.residents)) == 1
    wire.command("KV.PREFIX.DROP", "b:attend")
    server.call(lambda app: app.service.attention.tick())
    assert server.call(lambda app: app.service.attention.residents.nbytes) == 0


def test_what_is_kept_ready_is_in_the_byte_budget(start_local: Callable[..., Any]) -> None:
    budget = 8 << 20
    server = start_local(max_bytes=budget)
    wire, q = server.connect(), normal(9, 2, 1, 64)
    layer = Layer(1, rows=1000)
    for name in range(40):
        assert layer.store(wire, f"s{name}") == "OK"
        output(query(wire, f"s{name}", q), q)
        held = server.call(lambda app: app.service.attention.residents.nbytes)
        assert 0 < held <= budget // 4
        assert server.call(lambda app: app.service.store.info().bytes) + held <= budget
    assert wire.command("ATTEND.PREFIX.LOOKUP", "s0", 0) == "MISS"
    assert wire.command("ATTEND.PREFIX.LOOKUP", "s39", 0) == "HIT"


def test_warm_gives_rows_a_name(wire: Any) -> None:
    layer, other, q = Layer(1), Layer(2), normal(9, 2, 1, 64)
    layer.store_prefix(wire, "n")
    other.store(wire, "x")
    assert wire.command("KV.PREFIX.WARM", "n", 4, 64, "x") == "0 skipped_dim=1"
    assert_close(output(query(wire, "x", q), q), other.expected(q)[0])
    assert wire.command("KV.PREFIX.WARM", "n", 2, 64, "x") == "1"
    assert_close(output(query(wire, "x", q), q), layer.expected(q)[0])
    other.store(wire, "n_attn")
    assert_close(output(query(wire, "n_attn", q), q), other.expected(q)[0])
    assert wire.command("KV.PREFIX.WARM", "n", 2, 64, "n_attn") == "1"
    assert_close(output(query(wire, "n_attn", q), q), layer.expected(q)[0])


def test_a_large_layer_and_a_large_answer(wire: Any) -> None:
    layer, q = Layer(1, heads=4, rows=600, dim=128), normal(9, 8, 70, 128)
    assert layer.store(wire, "s") == "OK"
    out, lse = output_and_lse(query(wire, "s", q), q)
    expected = layer.expected(q)
    assert_close(out, expected[0])
    assert_close(lse, expected[1])
    assert wire.command("PING") == "PONG"


def test_a_value_that_cannot_be_stored_leaves_nothing(wire: Any) -> None:
    layer = Layer(1)
    layer.v[1, 7, 5] = 1e30
    refused = str(layer.store(wire, "s"))
    assert refused == "ERR ATTEND.PREFIX.STORE: value 1e+30 at row 7, element 69 is beyond 65504"
    assert wire.command("KV.PREFIX.LIST") == []
    assert layer.store(wire, "s", 0, "VQUANT", "bf16") == "OK"
    assert str(layer.store(wire, "s", 1)) == "SCHEMAMISMATCH K format: stored bf16, asked fp16"


def test_names_are_those_that_a_user_may_see(wire: Any, server: Any) -> None:
    layer, q = Layer(1), normal(9, 2, 1, 64)
    layer.store_prefix(wire, "mine")
    layer.store_prefix(wire, "yours")
    wire.command("ACL", "SETUSER", "u", "on", ">p", "+@all", "~mine*", "~yours_attn")
    user = server.connect()
    user.command("AUTH", "u", "p")
    denied = "NOPERM No permissions to access a key"
    assert_close(output(query(user, "mine_attn", q), q), layer.expected(q)[0])
    assert str(query(user, "yours", q)) == denied
    assert str(query(user, "yours_attn", q)) == NOT_FOUND
    assert str(layer.store(user, "yours")) == denied
    assert str(user.command("ATTEND.PREFIX.DROP", "mine", "yours")) == denied
    assert str(user.command("KV.PREFIX.WARM", "mine", 2, 64, "yours")) == denied
    assert user.command("KV.PREFIX.WARM", "mine", 2, 64, "mine2") == "1"


WITHOUT_MLX = "import sys; sys.modules['mlx.core'] = None; from pionkv.server.cli import main; main()"


def test_without_mlx_the_server_says_so(tmp_path: Path, wire_class: Any) -> None:
    with closing(
        ServerProcess(tmp_path / "data", program=(sys.executable, "-c", WITHOUT_MLX, "serve"))
    ) as server:
        server.start()
        wire, layer, q = connected(server, wire_class), Layer(1), normal(9, 2, 1, 64)
        either = "ERR attention engine not available (start with --metal-attention or --cuda-attention)"
        metal = "ERR Metal attention not available (start with --metal-attention)"
        assert str(layer.store(wire, "s")) == str(query(wire, "s", q)) == either
        assert str(wire.command("ATTEND.PREFIX.LOOKUP", "s", 0)) == metal
        assert str(fused(wire, "s", q, (q, q), bytes([0, 1]))) == metal
        layer.store_prefix(wire, "n")
        assert wire.command("KV.PREFIX.WARM", "n", 2, 64) == "1"
        wire.close()


def test_notices_tell_of_what_is_stored_and_dropped(server: Any, wire: Any) -> None:
    listener = server.connect()
    listener.command("PSUBSCRIBE", "__keyevent@0__:*")
    Layer(1).store(wire, "s")
    wire.command("ATTEND.PREFIX.DROP", "s")
    told = [listener.reply()[2:] for _ in range(2)]
    assert told == [[b"__keyevent@0__:publish", b"s:attend"], [b"__keyevent@0__:drop", b"s:attend"]]


def test_a_name_given_by_warm_tells_that_what_it_meant_is_dropped(server: Any, wire: Any) -> None:
    Layer(1).store_prefix(wire, "n")
    Layer(2).store(wire, "n_attn")
    listener = server.connect()
    listener.command("PSUBSCRIBE", "__keyevent@0__:*")
    assert wire.command("KV.PREFIX.WARM", "n", 2, 64, "n_attn") == "1"
    assert listener.reply()[2:] == [b"__keyevent@0__:drop", b"n_attn:attend"]


def test_too_many_queries_are_refused_on_the_header(wire: Any) -> None:
    q = normal(9, 1, 8193, 8)
    assert str(query(wire, "s", q)) == "ERR ATTEND.PREFIX.QUERY: 8193 queries (limit 8192)"
    assert wire.command("PING") == "PONG"


def test_a_client_that_leaves_while_it_waits_disturbs_nobody(server: Any, wire: Any) -> None:
    layer, q = Layer(1), normal(9, 2, 1, 64)
    layer.store(wire, "s")
    leaving = server.connect()
    send_query(leaving, "s", q)
    leaving.close()
    large = Layer(1, rows=2000)
    shape = large.heads, large.rows, large.dim
    words = "ATTEND.PREFIX.STORE", "cut", 0, *shape, large.k.tobytes(), large.v.tobytes()
    cut = server.connect()
    cut.send(b"".join(map(bytes, encode_command(words)))[:-1000])
    cut.close()
    assert_close(output(query(wire, "s", q), q), layer.expected(q)[0])
    assert wire.command("ATTEND.PREFIX.LOOKUP", "cut", 0) == "MISS"
    assert wire.command("KV.PREFIX.LIST") == [b"s:attend"]

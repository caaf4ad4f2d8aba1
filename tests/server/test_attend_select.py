"""ATTEND.CREATE and what follows: value rows by the likeness of their keys."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from attend_peer import Floats, normal
from pionkv.kernels.attention.ranking import KeyIndex, KeyMatrix
from pionkv.server.attention import selecting

KEY_DIM, VALUE_DIM = 32, 64


def create(wire: Any, sid: str = "s", *more: object) -> Any:
    given = more or ("KQUANT", "fp32", "VQUANT", "fp32")
    return wire.command("ATTEND.CREATE", sid, KEY_DIM, VALUE_DIM, *given)


def store(wire: Any, keys: Floats, values: Floats, sid: str = "s", layer: int = 0) -> Any:
    return wire.command("ATTEND.STORE", sid, layer, len(keys), keys.tobytes(), values.tobytes())


def query(wire: Any, q: Floats, k: int, sid: str = "s", layer: int = 0) -> Floats:
    answer = wire.command("ATTEND.QUERY", sid, layer, k, q.tobytes())
    return np.frombuffer(answer, np.float32).reshape(-1, VALUE_DIM)


def best(keys: Floats, values: Floats, q: Floats, k: int) -> Floats:
    return values[np.argsort(-(keys @ q), kind="stable")[:k]]


def rows(count: int, seed: int = 1) -> tuple[Floats, Floats]:
    return normal(seed, count, KEY_DIM), normal(seed + 1, count, VALUE_DIM)


def test_the_values_of_the_keys_most_alike_come_best_first(wire: Any) -> None:
    keys, values = rows(500)
    slot = create(wire)
    assert create(wire) == slot >= 0
    assert wire.command("ATTEND.QUERY", "s", 0, 3, normal(9, KEY_DIM).tobytes()) == []
    assert store(wire, keys[:300], values[:300]) == "OK"
    assert store(wire, keys[300:], values[300:]) == "OK"
    assert wire.command("ATTEND.FINALIZE", "s", 0) == "OK"
    for number in range(5):
        q = normal(20 + number, KEY_DIM)
        for k in (1, 7, 500, 4096):
            np.testing.assert_array_equal(query(wire, q, k), best(keys, values, q, k))
    assert len(query(wire, normal(9, KEY_DIM), 4096)) == 500
    assert wire.command("ATTEND.QUERY", "s", 1, 3, normal(9, KEY_DIM).tobytes()) == []


def test_of_equal_keys_the_earlier_come_first(wire: Any) -> None:
    keys, values = rows(50)
    keys[10:40] = keys[10]
    create(wire)
    store(wire, keys, values)
    q = keys[10] * 100
    np.testing.assert_array_equal(query(wire, q, 12), values[10:22])


@pytest.mark.parametrize("formats", [(), ("KQUANT", "fp16", "VQUANT", "mlx4g32"), ("VQUANT", "turbo4")])
def test_keys_and_values_in_other_formats(wire: Any, formats: tuple[str, ...]) -> None:
    keys, values = rows(100)
    wire.command("ATTEND.CREATE", "s", KEY_DIM, VALUE_DIM, *formats)
    store(wire, keys, values)
    for row in (3, 77):
        found = query(wire, keys[row] * 3, 1)
        kept = np.frombuffer(wire.command("V.FETCH", "s:topk_pv", 0, row), np.float32)
        np.testing.assert_array_equal(found[0], kept)
        assert np.corrcoef(found[0], values[row])[0, 1] > 0.98


def test_a_boundary_has_all_values_in_its_format(wire: Any) -> None:
    create(wire, "b", "VQUANT", "turbo4", "BOUNDARY", 2, "BOUNDARY_VQUANT", "fp16")
    create(wire, "r", "VQUANT", "bf16_rope_fp8_body", "ROPE", 32)
    info = wire.command("ATTEND.INFO").decode()
    assert "].vquant:fp16\r\n" in info
    assert "].vquant:bf16_rope_fp8_body\r\n" in info


def kinds_kept(app: Any) -> list[type]:
    return [type(held.rows) for held in app.service.attention.residents._held.values()]


@pytest.mark.parametrize("limit", [1 << 30, 0])
def test_an_index_where_there_are_many_keys(
    start_local: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(selecting, "INDEX_ROWS", 1000)
    server = start_local(attend_bytes=limit)
    wire, (keys, values) = server.connect(), rows(2000)
    create(wire)
    store(wire, keys, values)
    assert wire.command("ATTEND.FINALIZE", "s", 0) == "OK"
    kinds = server.call(
        lambda app: [type(one.rows) for one in app.service.attention.residents._held.values()]
    )
    assert kinds == ([KeyIndex] if limit else [])
    queries = [normal(20 + number, KEY_DIM) for number in range(30)]
    asked = [(query(wire, q, 10), best(keys, values, q, 10)) for q in queries]
    found = sum((row == expected).all(1).any() for got, expected in asked for row in got)
    assert found >= 0.95 * 300
    assert all(found[0] @ found[0] == expected[0] @ expected[0] for found, expected in asked)
    more = rows(5, seed=50)
    store(wire, *more)
    store(wire, *more, layer=1)
    q = more[0][2] * 50
    np.testing.assert_array_equal(query(wire, q, 1)[0], more[1][2])
    server.call(lambda app: app.service.attention.tick())
    kinds = server.call(
        lambda app: [type(one.rows) for one in app.service.attention.residents._held.values()]
    )
    assert kinds == ([KeyMatrix] if limit else [])


def test_rows_of_many_clients_all_arrive(server: Any, wire: Any) -> None:
    create(wire)
    parts = [rows(300, seed=10 * number) for number in range(6)]
    for keys, _ in parts:
        keys /= np.linalg.norm(keys, axis=1, keepdims=True)

    def send(number: int) -> None:
        with closing(server.connect()) as own:
            for start in range(0, 300, 50):
                part = (side[start : start + 50] for side in parts[number])
                assert store(own, *part) == "OK"

    threads = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert b"layer_0_tokens:1800\r\n" in wire.command("V.INFO", "s:topk_pk")
    for keys, values in parts:
        for row in (0, 123, 299):
            np.testing.assert_array_equal(query(wire, keys[row] * 100, 1)[0], values[row])


def test_sessions_survive_are_listed_and_go(start_server: Callable[..., Any], wire_class: Any) -> None:
    import socket

    server, (keys, values) = start_server(), rows(3000)
    with closing(wire_class(socket.create_connection(("127.0.0.1", server.port)))) as wire:
        create(wire)
        create(wire, "t")
        assert store(wire, keys, values) == "OK"
    server.restart(crash=True)
    with closing(wire_class(socket.create_connection(("127.0.0.1", server.port)))) as wire:
        q = normal(9, KEY_DIM)
        np.testing.assert_array_equal(query(wire, q, 5), best(keys, values, q, 5))
        lines = dict(line.split(":", 1) for line in wire.command("ATTEND.INFO").decode().split("\r\n")[:-1])
        assert list(lines)[:5] == ["sessions", "total_tokens", "total_queries", "query_hits", "enabled"]
        assert [lines[name] for name in ("sessions", "total_tokens", "query_hits")] == ["2", "3000", "1"]
        assert wire.command("ATTEND.DROP", "s", "t", "nobody") == 2
        assert wire.command("ATTEND.INFO").startswith(b"sessions:0\r\n")
        answer = str(wire.command("ATTEND.QUERY", "s", 0, 1, q.tobytes()))
        assert answer == "ERR session not found (call ATTEND.CREATE first)"


def test_a_user_is_told_of_its_own_sessions(server: Any, wire: Any) -> None:
    create(wire, "mine")
    create(wire, "yours")
    wire.command("ACL", "SETUSER", "u", "on", ">p", "+@all", "~mine*")
    user = server.connect()
    user.command("AUTH", "u", "p")
    assert user.command("ATTEND.INFO").startswith(b"sessions:1\r\n")
    assert "NOPERM" in str(store(user, *rows(1), sid="yours"))


def test_one_shot_attention_over_the_best_rows(wire: Any) -> None:
    q, k, v = normal(1, 4, 64), normal(2, 4, 200, 64), normal(3, 4, 200, 64)
    for most in (1, 20, 200, 1000):
        blobs = q.tobytes(), k.tobytes(), v.tobytes()
        answer = wire.command("ATTEND.QUERYBATCH", 4, 200, 64, most, *blobs)
        scores = np.einsum("hd,hnd->hn", q.astype(np.float64), k) / 8
        for head, row in enumerate(np.frombuffer(answer, np.float32).reshape(4, 64)):
            chosen = np.argsort(-scores[head])[:most]
            weights = np.exp(scores[head, chosen])
            np.testing.assert_allclose(row, weights @ v[head, chosen] / weights.sum(), atol=1e-4)

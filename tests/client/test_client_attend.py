"""Attention asked of a real server: on both lanes, in every form, and what its failures become."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pionkv.client import ConnectionLost, ServerRefused, StoreClient, TimedOut
from pionkv.client.attend import merge
from pionkv.kernels.attention import contiguous_map, oracle
from pionkv.kernels.formats import LayerSpec
from server_process import ServerProcess

HEADS, KV_HEADS, DIM, ROWS, SUFFIX = 4, 2, 32, 80, 5
Start = Callable[..., ServerProcess]
GQA = np.array(contiguous_map(HEADS, KV_HEADS), np.uint8)


def normal(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


K, V = (normal(seed, KV_HEADS, ROWS, DIM).astype(np.float16).astype(np.float32) for seed in (1, 2))
SUFFIXES = normal(3, KV_HEADS, SUFFIX, DIM), normal(4, KV_HEADS, SUFFIX, DIM)
Q = normal(5, HEADS, SUFFIX, DIM)


def fill(client: StoreClient, namespace: str) -> None:
    """A prefix of one layer, stored token by token."""
    client.register(namespace, LayerSpec("fp32", KV_HEADS * DIM))
    for side, array in (("_pk", K), ("_pv", V)):
        client.store(namespace + side, 0, 0, np.ascontiguousarray(array.swapaxes(0, 1)).reshape(ROWS, -1))


def attended(q: NDArray[Any] = Q, rows: int = ROWS) -> tuple[NDArray[Any], NDArray[Any]]:
    """What the oracle says of the last so many rows."""
    return oracle.attend(q, K[:, -rows:], V[:, -rows:], contiguous_map(len(q), KV_HEADS))


def fused(q: NDArray[Any] = Q, rows: int = ROWS) -> NDArray[Any]:
    """The same with the suffix, a query at a time: the last ones of it are the queries'."""
    out = np.empty(q.shape)
    for at in range(q.shape[1]):
        seen = SUFFIX - q.shape[1] + at + 1
        keys = np.concatenate([K[:, -rows:], SUFFIXES[0][:, :seen]], axis=1)
        values = np.concatenate([V[:, -rows:], SUFFIXES[1][:, :seen]], axis=1)
        one, _ = oracle.attend(q[:, at : at + 1], keys, values, contiguous_map(HEADS, KV_HEADS))
        out[:, at : at + 1] = one
    return out


def close_to(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("attend") / "data", "--binary-port", "0")
    server.start()
    with StoreClient(port=server.port) as client:
        fill(client, "p")
    yield server
    server.close()


@pytest.fixture
def client(served: ServerProcess) -> Iterator[StoreClient]:
    with StoreClient(port=served.port) as client:
        yield client


def test_queries_of_stored_rows_in_every_shape(client: StoreClient) -> None:
    out, lse = attended()
    found, sums = client.attend_query("p", 0, Q, with_lse=True)
    close_to(found, out)
    close_to(sums, lse)
    close_to(client.attend_query("p", 0, Q), out)
    close_to(client.attend_query("p", 0, Q[:, 0]), out[:, 0])
    one, of_one = client.attend_query("p", 0, Q[:, :1], with_lse=True)
    close_to(one, out[:, :1])
    close_to(of_one, lse[:, :1])
    close_to(client.attend_query("p", 0, Q, fa_window=20), attended(rows=20)[0])
    assert client.attend_query_calls == 5 and client.attend_query_ms_total > 0


def test_a_suffix_is_merged_by_the_server_or_here(client: StoreClient) -> None:
    whole = fused()
    close_to(client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA), whole)
    assert client.attend.framed
    close_to(client.attend_query_fused("p", 0, Q[:, -1:], *SUFFIXES, GQA), whole[:, -1:])
    close_to(client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA, fa_window=20), fused(rows=20))
    last = Q[:, -1:]
    ours = oracle.attend(last, *SUFFIXES, contiguous_map(HEADS, KV_HEADS))
    close_to(merge([client.attend_query("p", 0, last, with_lse=True), ours]), whole[:, -1:])


def test_chosen_rows(client: StoreClient) -> None:
    q = Q[:, -1]
    every = np.tile(np.arange(ROWS), (HEADS, 1))
    close_to(
        client.attend_query_sparse("p", 0, q, every, np.full(HEADS, ROWS)), attended(q[:, None])[0][:, 0]
    )
    for selector in ("block_mean", "quest"):
        for block, most, map_ in ((8, ROWS // 8, None), (16, ROWS, GQA)):
            found = client.attend_query_sparse_auto("p", 0, q, block, most, KV_HEADS, map_, selector=selector)
            close_to(found, attended(q[:, None])[0][:, 0])
            found = client.attend_query_sparse_auto_fused(
                "p", 0, q, block, most, *SUFFIXES, KV_HEADS, map_, selector=selector
            )
            close_to(found, fused(Q[:, -1:])[:, 0])
    fewer = client.attend_query_sparse_auto("p", 0, q, 8, 2, KV_HEADS, fa_window=0)
    assert np.isfinite(fewer).all() and not np.allclose(fewer, attended(q[:, None])[0][:, 0], atol=1e-3)


def test_rows_stored_for_attention_alone(client: StoreClient) -> None:
    client.attend_store_layer("alone", 0, K, V)
    close_to(client.attend_query("alone", 0, Q), attended()[0])
    client.attend_drop("alone")
    with pytest.raises(ServerRefused, match="session not found"):
        client.attend_query("alone", 0, Q)


def test_the_server_s_refusals_are_those_of_the_command_on_both_lanes(client: StoreClient) -> None:
    texts = set()
    for framed in (True, False):
        with pytest.raises(ServerRefused, match="QUERY_FUSED failed .session not found") as refused:
            client.attend_query_fused("absent", 0, Q, *SUFFIXES, GQA)
        assert client.attend.framed
        texts.add(str(refused.value))
        close_to(client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA), fused())
        if framed:
            client.attend._frames = None
            client.attend._looked = True
            with pytest.raises(ServerRefused) as refused:
                client.attend_query_fused("absent", 0, Q, *SUFFIXES, GQA)
            texts.add(str(refused.value))
            client.attend._looked = False
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.attend_query("p", 0, Q[0, 0]), "Q must be 2-D or 3-D"),
        (lambda c: c.attend_query("p", 0, Q[:, 0], with_lse=True), "with_lse needs Q as"),
        (
            lambda c: c.attend_query_fused("p", 0, Q[:3], *SUFFIXES, GQA[:3]),
            "3 query heads are no multiple of 2",
        ),
        (lambda c: c.attend_query_fused("p", 0, Q, *SUFFIXES, GQA[:3]), "head_map must have the shape"),
        (lambda c: c.attend_query_fused("p", 0, Q, SUFFIXES[0], V, GQA), "are not .kv_heads, rows, 32."),
        (lambda c: c.attend_query_sparse_auto("p", 0, Q[:, 0], 8, 1, selector="x"), "unknown selector 'x'"),
        (lambda c: c.attend_query_sparse_auto("p", 0, Q[:, 0], 8, 1, 3), "no multiple of 3"),
        (lambda c: c.attend_query_sparse("p", 0, Q[:, 0], np.zeros((1, 2)), np.zeros(4)), "indices must be"),
        (lambda c: c.attend_store_layer("p", 0, K, V[:1]), "V has the shape"),
    ],
)
def test_shapes_are_checked_before_anything_is_sent(client: StoreClient, call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(client)
    assert client.attend.traffic.sent == 0


def test_a_server_without_the_lane_and_one_that_loses_it(start_server: Start) -> None:
    server = start_server("--binary-port", "0")
    with StoreClient(port=server.port) as client:
        fill(client, "p")
        close_to(client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA), fused())
        assert client.attend.framed
        server.flags = ()
        server.restart()
        close_to(client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA), fused())
    with StoreClient(port=server.port) as client:
        close_to(client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA), fused())
        assert not client.attend.framed


def test_cold_rows_are_warmed_once(start_server: Start) -> None:
    server = start_server("--binary-port", "0", "--attend-cold", "refuse")
    with StoreClient(port=server.port) as client:
        fill(client, "p")
        close_to(client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA), fused())
        assert client.attend.framed and client.cold_rehydrates_observed == 1
        close_to(client.attend_query("p", 0, Q), attended()[0])
        fill(client, "q")
        close_to(client.attend_query("q", 0, Q, kv_heads=KV_HEADS), attended()[0])
        assert client.cold_rehydrates_observed == 2


def test_passwords_users_and_what_they_may_see(start_server: Start) -> None:
    server = start_server("--binary-port", "0", "--password", "pw")
    with StoreClient(port=server.port, password="pw") as owner:
        fill(owner, "team:p")
        fill(owner, "other:p")
        close_to(owner.attend_query_fused("team:p", 0, Q, *SUFFIXES, GQA), fused())
        assert owner.attend.framed
        for user, rules in (("sees", "+@all"), ("blind", "-info")):
            owner.redis.execute_command("ACL", "SETUSER", user, "on", ">pw", "~team:*", "+@all", rules)
    for user in ("sees", "blind"):
        with StoreClient(port=server.port, username=user, password="pw") as client:
            close_to(client.attend_query_fused("team:p", 0, Q, *SUFFIXES, GQA), fused())
            assert client.attend.framed == (user == "sees")
            with pytest.raises(ServerRefused, match="NOPERM"):
                client.attend_query_fused("other:p", 0, Q, *SUFFIXES, GQA)
            with pytest.raises(ServerRefused, match="NOPERM"):
                client.attend_query("other:p", 0, Q)


def test_a_server_that_is_down_or_hangs(start_server: Start) -> None:
    server = start_server("--binary-port", "0")
    with StoreClient(port=server.port, timeout=3.0) as client:
        fill(client, "p")
        client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA)
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(TimedOut):
            client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA)
        os.kill(server.pid, signal.SIGCONT)
        close_to(client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA), fused())
        server.kill()
        with pytest.raises(ConnectionLost):
            client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA)


def test_the_unix_socket_needs_no_lane(start_server: Start, tmp_path: Any) -> None:
    path = tmp_path / "socket"
    start_server("--binary-port", "0", "--unix-socket", str(path))
    with StoreClient(unix_socket_path=str(path)) as client:
        fill(client, "p")
        close_to(client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA), fused())
        assert not client.attend.framed
    with socket.socket(socket.AF_UNIX) as still_there:
        still_there.connect(str(path))


def test_the_lane_is_used_where_it_is_secured_as_the_client_s_connections(
    start_server: Start, certificates: Any
) -> None:
    flags = (*certificates.flags("no"), "--binary-port", "0")
    secured = start_server(*flags, "--port", "-1")
    both = start_server(*flags)
    for port, framed in ((secured.port, True), (both.tls_port, False)):
        url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificates.root}"
        with StoreClient(url=url) as client:
            fill(client, "p")
            close_to(client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA), fused())
            assert client.attend.framed == framed
    with StoreClient(port=both.port) as client:
        close_to(client.attend_query_fused("p", 0, Q, *SUFFIXES, GQA), fused())
        assert client.attend.framed

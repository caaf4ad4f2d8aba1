"""The store client against a real server."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_peers import Peer, greet
from pionkv.client import BadReply, ServerRefused, StoreClient, Unavailable
from pionkv.kernels import LayerSpec

FP16 = LayerSpec("fp16", 8)


@pytest.fixture
def client(store_port: int) -> Iterator[StoreClient]:
    with StoreClient(port=store_port) as client:
        yield client


def numbers(rows: int, dim: int = 8, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, dim)).astype(dtype)


def test_rows_come_back_by_range_by_id_and_by_batch(client: StoreClient, namespace: str) -> None:
    client.create(namespace, LayerSpec("fp32", 8))
    rows = numbers(5)
    client.store(namespace, 0, 0, rows[:3])
    client.store(namespace, 0, 3, rows[3:])
    client.store(namespace, 1, 0, rows + 1)
    np.testing.assert_array_equal(client.fetch_range(namespace, 0, 1, 4), rows[1:4])
    np.testing.assert_array_equal(client.fetch(namespace, 0, [4, 0, 4]), rows[[4, 0, 4]])
    both = client.fetch_batch(namespace, 0, 5)
    np.testing.assert_array_equal(both, [rows, rows + 1])
    assert len(client.fetch_batch(namespace, 0, 5, layers=1)) == 1
    assert client.info(namespace).rows == (5, 5)
    assert client.drop(namespace, "no such") == 1
    with pytest.raises(ServerRefused, match="session not found"):
        client.info(namespace)


def test_every_form_goes_in_and_out(client: StoreClient, namespace: str) -> None:
    client.create(namespace, FP16)
    halves = numbers(4, dtype="float16")
    client.store(namespace, 0, 0, halves)
    client.store(namespace, 1, 0, halves.view(np.uint8).reshape(4, 16), form="RAW")
    for layer in (0, 1):
        np.testing.assert_array_equal(client.fetch_range(namespace, layer, 0, 4, "F16"), halves)
        np.testing.assert_array_equal(client.fetch_range(namespace, layer, 0, 4), halves.astype("float32"))
    raw = client.fetch_range(namespace, 0, 0, 4, "RAW")
    assert raw.shape == (4, FP16.row_bytes)
    np.testing.assert_array_equal(raw.view("<f2"), halves)
    words = (numbers(4).view(np.uint32) >> 16).astype(np.uint16)
    client.create(namespace + "b", LayerSpec("bf16", 8))
    client.store(namespace + "b", 0, 0, words, form="BF16")
    expected = (words.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(client.fetch_range(namespace + "b", 0, 0, 4), expected)


def test_large_rows_and_pieces_of_an_array(client: StoreClient, namespace: str) -> None:
    client.create(namespace, LayerSpec("fp32", 1024))
    rows = numbers(4096, 2048)[:, ::2]
    client.store(namespace, 0, 0, rows)
    np.testing.assert_array_equal(client.fetch_range(namespace, 0, 0, 4096), rows)


def test_a_prefix_is_stored_when_both_sides_are(client: StoreClient, namespace: str) -> None:
    specs = [LayerSpec("fp32", 8), LayerSpec("fp16", 16)]
    client.register(namespace, specs, [LayerSpec("fp32", 8)] * 2, prefill_ms=12)
    client.register(namespace, specs, [LayerSpec("fp32", 8)] * 2)
    assert not client.lookup(namespace)
    client.store(namespace + "_pk", 0, 0, numbers(3))
    client.store(namespace + "_pk", 1, 0, numbers(3, 16))
    assert not client.lookup(namespace)
    client.store(namespace + "_pv", 0, 0, numbers(3))
    client.store(namespace + "_pv", 1, 0, numbers(3) * 2)
    assert client.lookup(namespace)
    (k0, v0), (k1, v1) = client.fetch_all(namespace, 1, 3)
    np.testing.assert_array_equal(k0, v0)
    assert (k1.shape, v1.shape) == ((2, 16), (2, 8))
    assert int(client.prefix_info()["registered_prefixes"]) >= 1
    with pytest.raises(ServerRefused) as caught:
        client.register(namespace, FP16)
    assert caught.value.code == "SCHEMAMISMATCH"
    assert client.drop_prefix(namespace, "no such") == 1


def test_refusals_carry_their_code_and_leave_the_client_usable(client: StoreClient, namespace: str) -> None:
    client.create(namespace, FP16)
    with pytest.raises(ServerRefused, match="gap") as caught:
        client.store(namespace, 0, 5, numbers(1))
    assert caught.value.code == "ERR"
    with pytest.raises(ServerRefused, match="not a multiple of 32"):
        client.create(namespace + "x", LayerSpec("mlx4g32", 33))
    with pytest.raises(ServerRefused, match="beyond"):
        client.store(namespace, 0, 0, numbers(1) * 1e9)
    with pytest.raises(BadReply, match="something else than rows"):
        client.fetch_range(namespace, 0, 0, 1)
    client.ping()
    client.store(namespace, 0, 0, numbers(1))


@pytest.mark.parametrize(
    ("rows", "form"),
    [
        (np.zeros((1, 8), np.float64), None),
        (np.zeros((1, 8), np.float64), "F32"),
        (np.zeros((1, 8), np.float32), "F16"),
        (np.zeros(8, np.float32), None),
        (np.zeros((1, 8), np.uint16), None),
    ],
)
def test_arrays_of_another_kind_are_not_sent(client: StoreClient, rows: np.ndarray, form: str | None) -> None:
    with pytest.raises(TypeError):
        client.store("never", 0, 0, rows, form=form)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = StoreClient(port=port)
    with pytest.raises(Unavailable):
        client.ping()
    with pytest.raises(Unavailable):
        client.fetch("s", 0, [0])


def test_a_length_that_no_rows_have_is_a_bad_reply(play: Callable[..., Peer]) -> None:
    def lie(connection: socket.socket) -> None:
        greet(connection)
        connection.recv(1000)
        connection.sendall(b"$7\r\nabcdefg\r\n")

    with pytest.raises(BadReply, match="7 bytes for 2 rows"):
        StoreClient(port=play(lie).port).fetch("s", 0, [0, 1])


def test_a_password_and_a_unix_socket(start_server: Callable[..., Any], tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    start_server("--password", "right", "--unix-socket", path)
    with StoreClient(unix_socket_path=path, password="right") as client:
        client.create("s", FP16)
        client.store("s", 0, 0, numbers(2))
        assert client.fetch("s", 0, [1]).shape == (1, 8)
    for password in ("wrong", None):
        with StoreClient(unix_socket_path=path, password=password) as client:
            with pytest.raises((Unavailable, ServerRefused)):
                client.ping()
            with pytest.raises(Unavailable):
                client.fetch("s", 0, [1])

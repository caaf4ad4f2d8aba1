"""Store clients of a server on this machine change to its Unix socket, and back when it is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pionkv.client import StoreClient
from pionkv.kernels import LayerSpec
from server_process import ServerProcess
from store_clients import Blocking

ROWS = np.random.default_rng(1).standard_normal((1200, 512)).astype("float16")
"""More than a MiB."""


def endpoint_of(client: Any) -> Any:
    """Where its rows come from."""
    return client.endpoint if isinstance(client, Blocking) else client._link.endpoint


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data", "--unix-socket", str(tmp_path / "s"))
    process.start()
    with StoreClient(port=process.port) as client:
        client.create("s", LayerSpec("fp16", 512))
        client.store("s", 0, 0, ROWS)
    yield process
    process.close()


def fetched(client: Any) -> bool:
    return bool(np.array_equal(client.fetch_range("s", 0, 0, len(ROWS), "F16"), ROWS))


def test_rows_take_the_unix_socket_once_many_have_come(
    server: ServerProcess, connect: Callable[..., Any], tmp_path: Path
) -> None:
    client = connect(port=server.port)
    client.fetch_range("s", 0, 0, 1)
    assert endpoint_of(client).unix_socket_path is None
    assert fetched(client) and fetched(client) and fetched(client)
    assert endpoint_of(client).unix_socket_path == str(tmp_path / "s")


def test_who_does_not_want_it_stays(server: ServerProcess, connect: Callable[..., Any]) -> None:
    client = connect(port=server.port, prefer_unix=False)
    assert fetched(client) and fetched(client) and fetched(client)
    assert endpoint_of(client).unix_socket_path is None


def test_without_the_socket_it_goes_back_to_the_address_given(
    server: ServerProcess, connect: Callable[..., Any]
) -> None:
    client = connect(port=server.port)
    assert fetched(client) and fetched(client)
    server.stop()
    server.flags = ()
    server.start(server.port)
    assert fetched(client)
    assert endpoint_of(client).unix_socket_path is None
    assert fetched(client)


def test_a_socket_of_another_server_is_left_alone(
    server: ServerProcess, connect: Callable[..., Any], tmp_path: Path
) -> None:
    """The path is there, and somebody else listens on it."""
    (tmp_path / "s").unlink()
    other = ServerProcess(tmp_path / "other", "--unix-socket", str(tmp_path / "s"))
    other.start()
    try:
        client = connect(port=server.port)
        assert fetched(client) and fetched(client) and fetched(client)
        assert endpoint_of(client).unix_socket_path is None
    finally:
        other.close()

"""Fixtures of the client's tests: peers, proxies, a shared real server, small models with random weights."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pionkv.client import StoreClient
from pionkv.client.deadline import Deadline
from pionkv.client.demo.processes import running_server
from pionkv.kernels.blas import preload_blas

sys.path.insert(0, str(Path(__file__).parent))

from client_peers import SECONDS, Clock, Peer, Proxy  # noqa: E402
from store_clients import Blocking  # noqa: E402

preload_blas()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deadline() -> Deadline:
    """Long enough for anything that works."""
    return Deadline(SECONDS, SECONDS)


@pytest.fixture
def play() -> Iterator[Callable[..., Peer]]:
    """Starts scripted peers; they end with the test."""
    started: list[Peer] = []

    def start(*scripts: Callable[[socket.socket], None]) -> Peer:
        started.append(Peer(*scripts))
        return started[-1]

    yield start
    for peer in started:
        peer.close()


@pytest.fixture(params=[StoreClient, Blocking])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes store clients, of both kinds in turn."""
    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(request.param(**options))
        return made[-1]

    yield make
    for client in made:
        client.end() if isinstance(client, Blocking) else client.close()


@pytest.fixture(scope="session")
def store_port() -> Iterator[int]:
    """The port of a real server that the tests of this folder share, each under names of its own."""
    with running_server() as port:
        yield port


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return str(request.node.nodeid)


@pytest.fixture
def proxy(store_port: int) -> Iterator[Proxy]:
    """A proxy before the shared server."""
    proxy = Proxy(store_port)
    yield proxy
    proxy.close()


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Any]:
    """Makes small llamas: `tiny("float16", layers=4)`."""
    import mlx.core as mx
    from mlx_lm.models import llama

    def make(
        dtype: str = "float32", layers: int = 4, heads: int = 4, kv_heads: int = 2, head_dim: int = 32
    ) -> Any:
        mx.random.seed(7)
        arguments = llama.ModelArgs(
            model_type="llama",
            hidden_size=64,
            num_hidden_layers=layers,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=1e-5,
            vocab_size=300,
        )
        model = llama.Model(arguments)
        model.set_dtype(getattr(mx, dtype))
        mx.eval(model.parameters())
        return model

    return make


@pytest.fixture(scope="session")
def sliding() -> Any:
    """A small model with sliding windows, whose caches are no plain `KVCache`."""
    from mlx_lm.models import gemma3_text

    arguments = gemma3_text.ModelArgs(
        model_type="gemma3_text",
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=300,
        sliding_window=16,
        sliding_window_pattern=2,
    )
    return gemma3_text.Model(arguments)

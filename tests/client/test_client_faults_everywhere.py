"""What a server does between two calls changes no answer, whichever integration asks, and every call ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import pytest
from client_peers import SECONDS, Fault, Proxy
from http_server import HttpServer
from model_folder import save
from pionkv.client import AsyncPionPromptCache, PionPromptCache, TransformersCache
from server_process import ServerProcess
from small_models import build, plain

BOUNDS = {"deadline": 1.0, "silence": 0.3, "connect_timeout": 0.3}
LANE = {"lane": "tcp", "background": False}


class Integration(Protocol):
    """Something that a store is behind of."""

    def ask(self, number: int) -> object:
        """What is answered to a prompt, of which there are many."""

    def close(self) -> None:
        """Leave nothing behind."""


class Leap:
    """A clock on which any pause is over soon: it leaps when told to."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


clock = Leap()


def tokens(number: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(number).integers(3, 300, 80)]


class Mlx:
    def __init__(self, port: int, folder: Path) -> None:
        self.model = build(plain)
        self.cache = PionPromptCache(self.model, port=port, clock=clock, **BOUNDS, **LANE)  # type: ignore[arg-type]

    def ask(self, number: int) -> object:
        return self.said(self.cache.get_or_prefill(tokens(number)))

    def said(self, caches: list[Any]) -> bytes:
        return np.array(self.model(mx.array([7, 8, 9])[None], cache=caches)).tobytes()

    def close(self) -> None:
        self.cache.close()


class Asyncio(Mlx):
    def __init__(self, port: int, folder: Path) -> None:
        super().__init__(port, folder)
        self.runner = asyncio.Runner()
        self.waiting = AsyncPionPromptCache(self.model, port=port, clock=clock, **BOUNDS, **LANE)

    def ask(self, number: int) -> object:
        return self.said(self.runner.run(self.waiting.get_or_prefill(tokens(number))))

    def close(self) -> None:
        self.runner.run(self.waiting.close())
        self.runner.close()
        super().close()


class Torch:
    def __init__(self, port: int, folder: Path) -> None:
        torch = pytest.importorskip(
            "torch", reason="torch is not installed: pip install pionkv[transformers]"
        )
        transformers = pytest.importorskip("transformers", reason="transformers is not installed, either")
        torch.set_num_threads(1)
        torch.manual_seed(5)
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 300}
        config = transformers.LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.3)
        model = transformers.LlamaForCausalLM(config).eval()
        url = f"redis://127.0.0.1:{port}"
        self.cache = TransformersCache(model, url=url, background=False, clock=clock, **BOUNDS)  # type: ignore[arg-type]

    def ask(self, number: int) -> object:
        return self.cache.generate(tokens(number), max_new_tokens=12, do_sample=False).tolist()

    def close(self) -> None:
        self.cache.close()


class Http:
    def __init__(self, port: int, folder: Path) -> None:
        self.server = HttpServer(folder, f"redis://127.0.0.1:{port}", "--store-deadline", "1")

    def ask(self, number: int) -> object:
        question = {"role": "user", "content": f"What is told about lamp number {number} of the harbour?"}
        return self.server.chat([question], max_tokens=8)[0]

    def close(self) -> None:
        self.server.kill()


INTEGRATIONS: dict[str, Callable[[int, Path], Integration]] = {
    "PionPromptCache": Mlx, "AsyncPionPromptCache": Asyncio, "TransformersCache": Torch, "mlx-server": Http,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(build(plain), tmp_path_factory.mktemp("model"))


@pytest.fixture(params=INTEGRATIONS)
def made(request: pytest.FixtureRequest, folder: Path) -> Iterator[Callable[[int], Integration]]:
    started: list[Integration] = []

    def make(port: int) -> Integration:
        started.append(INTEGRATIONS[request.param](port, folder))
        return started[-1]

    yield make
    for each in started:
        each.close()


def test_no_fault_between_two_calls_changes_an_answer(
    made: Callable[[int], Integration], server_process: ServerProcess
) -> None:
    # Without a server there is no cache: what is answered then is right.
    right, proxy = made(1), Proxy(server_process.port)
    asked = made(proxy.port)
    numbers = iter(range(1000))

    def the_answers_are_the_same() -> None:
        clock.ahead += 1000
        number = next(numbers)
        assert [asked.ask(number), asked.ask(number)] == [right.ask(number)] * 2

    def until_it_is_used() -> None:
        before, end = proxy.passed, time.monotonic() + 3 * SECONDS
        while proxy.passed == before:
            the_answers_are_the_same()
            assert time.monotonic() < end, "the server is never asked again"

    until_it_is_used()
    os.kill(server_process.pid, signal.SIGSTOP)
    the_answers_are_the_same()
    os.kill(server_process.pid, signal.SIGCONT)
    until_it_is_used()
    proxy.fault = Fault(proxy.passed, "stall")
    the_answers_are_the_same()
    proxy.fault = None
    until_it_is_used()
    server_process.restart(crash=True)
    until_it_is_used()
    server_process.kill()
    the_answers_are_the_same()
    proxy.close()

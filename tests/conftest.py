"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from server_process import ServerProcess  # noqa: E402


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers with extra command-line flags; they end with the test."""
    started: list[ServerProcess] = []

    def start(*flags: str) -> ServerProcess:
        server = ServerProcess(tmp_path / f"data{len(started)}", *flags)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture
def server_process(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server with default settings."""
    return start_server()

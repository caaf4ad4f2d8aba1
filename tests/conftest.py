"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

if TYPE_CHECKING:
    from certificates import Certificates

sys.path.insert(0, str(Path(__file__).parent))

from server_process import ServerProcess  # noqa: E402


def pytest_configure() -> None:
    # A shell that starts the tests in the background lets them, and all that they start, ignore interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--requests", type=int, default=4000, help="hostile requests that a server is sent")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A root, a server's and a client's certificate, and some that are no good."""
    from certificates import Certificates

    return Certificates(tmp_path_factory.mktemp("certificates"))


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


@pytest.fixture(scope="session")
def kept_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with default settings for all tests that do not end it; see `emptied_process`."""
    server = ServerProcess(tmp_path_factory.mktemp("kept") / "data")
    server.start()
    yield server
    server.close()


@pytest.fixture
def emptied_process(kept_process: ServerProcess) -> ServerProcess:
    """A server with default settings and nothing stored. Others use it, too: it may be halted, not ended."""
    with redis.Redis(port=kept_process.port) as client:
        client.flushall()
        client.config_resetstat()
    return kept_process


@pytest.fixture
def server_process(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server with default settings."""
    return start_server()

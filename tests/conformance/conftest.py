from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess

sys.path.insert(0, str(Path(__file__).parent))

from wire import Wire  # noqa: E402
from wire import encode as encode_command  # noqa: E402


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of a module; each test uses names of its own."""
    server = ServerProcess(tmp_path_factory.mktemp("conformance") / "data")
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def wire_class() -> type[Wire]:
    """For tests that need connections of their own."""
    return Wire


@pytest.fixture(scope="session")
def encode() -> Callable[..., list[bytes | memoryview]]:
    """Makes the bytes of a command."""
    return encode_command


@pytest.fixture
def wire(shared_server: ServerProcess) -> Iterator[Wire]:
    with Wire(shared_server.port) as connection:
        yield connection

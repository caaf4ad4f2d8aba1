from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))


@pytest.fixture(scope="module")
def fuzzed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all examples of a module."""
    server = ServerProcess(tmp_path_factory.mktemp("fuzz") / "data")
    server.start()
    yield server
    server.close()

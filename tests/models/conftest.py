"""The real model, loaded once, and a prompt short enough for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pionkv.client.demo.conversation import handbook
from pionkv.client.demo.processes import running_server
from pionkv.kernels.blas import preload_blas

if TYPE_CHECKING:
    from pionkv.client.demo.smollm import Loaded

# Before any test imports mlx: it has to find the BLAS that was loaded first.
preload_blas()


@pytest.fixture(scope="session")
def loaded() -> Loaded:
    """SmolLM2 in float32."""
    from pionkv.client.demo import smollm

    return smollm.load()


@pytest.fixture(scope="session")
def short_prompt() -> str:
    """The first sections of the handbook, some 350 tokens."""
    return handbook().split("\n4. Alarms")[0]


@pytest.fixture(scope="session")
def store_port() -> Iterator[int]:
    """The port of a real server for the tests of this folder."""
    with running_server() as port:
        yield port

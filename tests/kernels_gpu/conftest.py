from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gpu_cases import shapes  # noqa: E402
from gpu_shim import Shim, Variant  # noqa: E402
from pionkv.kernels import FORMATS, Element  # noqa: E402
from pionkv.kernels.gpu_source import Dialect, Direction, plan  # noqa: E402


def variants(dialect: Dialect) -> list[Variant]:
    """Every kernel that the tests launch."""
    return [
        Variant(plan(dialect, spec, direction, element, 1).kernel, direction, element)
        for name in FORMATS
        for spec, _ in shapes(name)
        for element in Element
        for direction in Direction
    ]


@pytest.fixture(scope="session")
def shim_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Dialect], Shim]:
    """The kernels of a dialect, compiled once for the whole run."""
    built: dict[Dialect, Shim] = {}

    def shim(dialect: Dialect) -> Shim:
        if dialect not in built:
            built[dialect] = Shim(dialect, variants(dialect), tmp_path_factory.mktemp(dialect.value))
        return built[dialect]

    return shim

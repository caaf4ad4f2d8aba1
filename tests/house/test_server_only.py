"""`pip install pionkv` alone serves: without mlx, torch and what else only clients and extras need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis import Redis
from server_process import ServerProcess

NOT_NEEDED = ("mlx", "mlx_lm", "torch", "transformers", "tokenizers", "usearch", "obstore", "jinja2")
ROWS = np.arange(4 * 64, dtype=np.float32)


def test_the_server_runs_where_the_extras_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NOT_NEEDED:
        folder = tmp_path / "absent" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise ModuleNotFoundError(f'No module named {__name__!r}')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "absent"))
    server = ServerProcess(tmp_path / "data")
    try:
        server.start()
        commands: list[tuple[Any, ...]] = [
            ("SET", "k", "v"),
            ("KV.PREFIX.REGISTER", "n", 64, "turbo4"),
            ("V.STOREBATCH", "n_pk", 0, 0, 4, ROWS.tobytes()),
            ("V.STOREBATCH", "n_pv", 0, 0, 4, ROWS.tobytes()),
        ]
        with Redis(port=server.port) as wire:
            for line in commands:
                assert wire.execute_command(*line) in (True, b"OK"), line
            assert wire.execute_command("KV.PREFIX.LOOKUP", "n") == b"HIT"
            rows = wire.execute_command("V.FETCH", "n_pk", 0, "RANGE", 0, 4)
            assert np.abs(np.frombuffer(rows, np.float32) - ROWS).max() < 0.2 * ROWS.max()
        assert server.stop() == 0
    finally:
        server.close()
    assert "Traceback" not in server.errors.read_text()

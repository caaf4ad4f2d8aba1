"""What is compiled or loaded beside the running server."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from pionkv.protocol import batch
from pionkv.protocol.request import encode_command
from pionkv.server import warming
from pionkv.server.warming import KernelLoader


def test_without_a_compiler_commands_are_parsed_by_hand(
    server: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> batch.Scan:
        raise RuntimeError("no locator available")

    monkeypatch.setattr(warming, "compile_scan", fail)
    monkeypatch.setattr(batch, "_scan", batch._nothing)
    loader = KernelLoader()
    loader.stop()
    log = Mock()
    monkeypatch.setattr(warming, "logger", lambda: log)
    loader._run()
    assert not loader.busy
    log.warning.assert_called_once_with("commands are parsed by hand", error="no locator available")
    commands = [("SET", "k", "1"), ("GET", "k"), ("PING",), ("GET", "none"), ("KV.PREFIX.LOOKUP", "none")] * 3
    wire.send(b"".join(bytes(piece) for command in commands for piece in encode_command(command)))
    assert [wire.reply() for _ in commands] == ["OK", b"1", "PONG", None, "MISS"] * 3

"""`pionkv validate` on a small model: every figure is that of the format, and nothing is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from model_folder import save
from pionkv.client import StoreClient
from pionkv.client.verbs_validate import validate
from small_models import build, plain
from typer.testing import CliRunner, Result

TOKENS, ROW = 60, 64  # one head of 64 elements
LAYERS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(build(plain), tmp_path_factory.mktemp("model"))


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(validate)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_every_format_is_measured_and_dropped_again(
    folder: Path, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    server, results = start_server(), tmp_path / "results.json"
    formats = [
        word for name in ("fp32", "int8", "kivi4", "bf16_rope_fp8_body") for word in ("--format", name)
    ]
    options = ["--model", folder, "--port", server.port, "--results", results, "--tokens", TOKENS]
    sizes = ["--rounds", 2, "--answer-tokens", 4]
    done = run(*options, *sizes, *formats, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(results.read_text())
    assert report == json.loads(done.stdout)
    assert report["rounds"] == 2 and report["not_measured"] and report["machine"]["load_before"]
    found = {(each["format"], each["tokens"]): each for each in report["results"]}
    assert set(found) == {(name, size) for name in formats[1::2] for size in (TOKENS // 2, TOKENS)}
    for size in (TOKENS // 2, TOKENS):
        rows = 2 * LAYERS * size
        assert found["kivi4", size]["answers"] == 2
        exact, coded = found["fp32", size], found["int8", size]
        assert exact["fp16_bytes"] == coded["fp16_bytes"] == rows * ROW * 2
        assert (exact["stored_bytes"], exact["ratio"]) == (rows * ROW * 4, 0.5)
        assert coded["stored_bytes"] < coded["fp16_bytes"] < coded["resident_bytes"] * 2
        assert exact["identical"] == exact["equal_bits"] == exact["answers"] == 2
        assert exact["largest_logprob_difference"] == 0 and exact["output"] == exact["output_uncached"]
        for name in ("first_token_seconds", "first_token_seconds_uncached", "tokens_per_second"):
            spread = exact[name]
            assert 0 < spread["min"] <= spread["median"] <= spread["max"]
        assert "rope" in found["bf16_rope_fp8_body", size]["problem"]
    with StoreClient(port=server.port) as client:
        assert client.redis.execute_command("KV.PREFIX.SCAN", 0) == [b"0", []]
    table = run(*options, *sizes, "--format", "int8")
    assert "resident" in table.stdout and f"written to {results}" in table.stdout.replace("\n", "")


def test_what_cannot_be_measured_is_said(folder: Path, emptied_process: Any, tmp_path: Path) -> None:
    options = ["--port", emptied_process.port, "--results", tmp_path / "results.json"]
    assert run("--format", "fp99", *options).exit_code == 2
    assert run("--prompt", tmp_path / "none", *options).exit_code == 2
    impossible = run("--model", folder, "--format", "bf16_rope_fp8_body", "--rounds", 1, *options)
    assert impossible.exit_code == 1, "nothing could be measured"
    missing = run("--model", tmp_path / "none", *options)
    assert missing.exit_code == 1 and "the model cannot be loaded" in missing.output
    nobody = run("--port", 1)
    assert nobody.exit_code == 1 and "pionkv serve" in nobody.output
